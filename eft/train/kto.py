"""KTO: continue from the SFT model with improved (desirable) and regressed (undesirable) transitions.

    eft kto --config recipes/M/kto.yaml [--launch zero2]
    accelerate launch --config_file accelerate_configs/zero2.yaml -m eft.train.kto recipes/M/kto.yaml

The model that training starts from is also its reference, whose log-probabilities are computed once and kept beside the
data (reference.py). KTO (arXiv 2402.01306) estimates how far the model has drifted from completions paired with another
row's prompt, rotated by one within a micro batch: so micro_batch is at least 2 and every micro batch is full. Which rows
a step trains on is the order of `eft build` (labels interleaved, tasks mixed); within a step, rows of like length and of
different tasks meet in a micro batch. Nothing is cut: TRL's max_length is off, rows over max_tokens are gone before.
Reads and writes what SFT does, and `dataset`/weights.json for the weights of the two classes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from eft.errors import EftError, UsageError
from eft.train.config import TrainConfig
from eft.train.launch import Asked, as_rank, start


class Config(TrainConfig):
    """`eft kto`."""

    labelled: ClassVar[bool] = True

    micro_batch: int = Field(2, ge=1, description="rows per rank and forward pass, at least 2")
    learning_rate: float = Field(1e-6, gt=0)
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps that the learning rate rises")
    beta: float = Field(0.1, gt=0, description="how strongly the model is held to its reference")
    desirable_weight: float | None = Field(
        None, gt=0, description="weight of improved rows; default: weights.json of the data"
    )
    undesirable_weight: float | None = Field(
        None, gt=0, description="weight of regressed rows; default: weights.json of the data"
    )

    group_by_length: bool = Field(
        True, description="micro batches of like length within a step: less padding, same rows in every step"
    )
    share_prompts: bool = Field(
        True,
        description="the KL term reads the prompt's keys and values of the training pass, where the model's attention "
        "allows it (exact, checked at the start); false: a second pass over every prompt",
    )

    def check(self) -> None:
        super().check()
        if self.micro_batch < 2:
            raise UsageError(
                "KTO needs micro_batch ≥ 2", why="its KL term pairs a prompt with the completion of another row"
            )
        check_labels(self.file("train"))
        weights(self)

    def sources(self) -> list[Path]:
        return [*super().sources(), self.path(self.dataset) / "weights.json"]


def inputs(config: Config) -> list[Path]:
    """What the stage reads."""
    return config.sources()


def dry_run(config: Config) -> tuple[str, dict[str, Any]]:
    """What `--dry-run` adds: the plan of the training as YAML comments, and its numbers."""
    from eft.train import plan

    def arrange(rows: Any) -> Any:
        check_classes(rows.counts, config.file("train"))
        return in_micro_batches(rows, config)[0]

    return plan.shown("kto", config, group=False, arrange=arrange)


def run(config: Config) -> Path:
    """Launch the ranks and wait for them. Returns the output folder."""
    return start("kto", config)


def weights(config: Config) -> dict[str, float]:
    """The weights of the two classes: as told, else from weights.json, else 1. Raises EftError for a broken file."""
    file = config.path(config.dataset) / "weights.json"
    found: dict[str, Any] = {}
    if file.exists():
        try:
            found = json.loads(file.read_text())
            found = {k: float(found[k]) for k in ("desirable_weight", "undesirable_weight")}
            if not all(math.isfinite(v) and v > 0 for v in found.values()):
                raise ValueError(f"they must be positive numbers, and are {found}")
        except (ValueError, TypeError, KeyError) as e:
            raise EftError(
                "the weights of the classes cannot be read", where=file, why=repr(e), way_out="run 'eft build' again"
            ) from None
    given = {"desirable_weight": config.desirable_weight, "undesirable_weight": config.undesirable_weight}
    return {name: value if value is not None else found.get(name, 1.0) for name, value in given.items()}


def check_labels(file: Path) -> None:
    """Raise EftError where the table has no rows of one class; says nothing of files that are no such tables, which is
    told when they are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        labels = pq.read_table(file, columns=["label"])["label"]
    except (pa.ArrowException, OSError):
        return
    if labels.type == pa.bool_():
        good = sum(bool(v) for v in labels.to_pylist())
        check_classes({"desirable": good, "undesirable": len(labels) - good}, file)


def check_classes(counts: dict[str, Any], where: Path) -> None:
    """Raise EftError unless both classes have rows: with one, KTO only learns to say everything more, or less,
    often."""
    for name, label in (("desirable", "improved"), ("undesirable", "regressed")):
        if not counts[name]:
            raise EftError(
                f"no {name} row is left to train on",
                where=where,
                why=f"KTO needs {label} transitions too",
                way_out="raise max_tokens or max_rows, or harvest more; SFT needs improved ones only",
            )


def in_micro_batches(prepared: Any, config: Config) -> tuple[Any, int]:
    """(the same rows with every step's micro batches put together, how many KL partners are of the same task)."""
    from eft.train import order

    def dealt(table: Any, step: int) -> tuple[Any, int]:
        lengths, tasks = table["length"][:], table["task"][:]
        rows = order.micro_batches(
            list(range(len(table))), lengths, tasks, step=step, block=config.micro_batch, group=config.group_by_length
        )
        return table.select(rows), len(order.clashes(rows, tasks, config.micro_batch))

    train, same = dealt(prepared.train, config.global_batch)
    validation = prepared.validation
    if validation is not None:
        validation, _ = dealt(validation, len(validation))
    counts = {**prepared.counts, "kl_partners_of_one_task": same}
    return dataclasses.replace(prepared, train=train, validation=validation, counts=counts), same


def open_store(run: Any, trainer: Any, share: bool) -> Any:
    """The store of the reference's log-probabilities for what `trainer` computes with. Called on all ranks."""
    from accelerate.utils import broadcast_object_list

    from eft.train import reference

    config, model = run.config, trainer.accelerator.unwrap_model(trainer.model_wrapped)
    weights = [reference.weights_hash(run.model) if run.main else ""]  # gigabytes are read once
    broadcast_object_list(weights)
    what = {
        "weights": weights[0],
        "dtype": str(next(model.parameters()).dtype),
        "autocast": trainer.accelerator.mixed_precision if trainer.accelerator.native_amp else "no",
        "bits": getattr(config.lora, "bits", None),
        "attention": model.config._attn_implementation,
        "device": trainer.accelerator.device.type,
        "kl": "prompt states" if share else "whole pass",
    }
    return reference.Store(config.path(config.dataset) / reference.FOLDER, run.out / "reference", what)


def train(config: Config, asked: Asked) -> None:
    """One rank's work, from the recipe to the finished model."""
    from trl import KTOConfig

    from eft import tokenizers
    from eft.models.load import load_model
    from eft.train import arguments, data, head, loop, plan, tokens
    from eft.train.kto_trainer import ComputeReference, PairedTrainer, pair_completions

    args = arguments.build(KTOConfig, config, asked, eval_strategy="steps", beta=config.beta, **weights(config))
    run = loop.join("kto", config, asked, args)
    if run is None:
        return
    arguments.check_targets(config, run.model)
    tokenizer = tokenizers.load(run.model)
    prepared = data.prepare(
        config,
        tokenizer,
        labelled=True,
        group=False,
        main=args.distributed_state.is_local_main_process,
        wait=run.wait,
        ranks=asked.ranks,
    )
    tokens.settle_template(tokenizer, tokens.arguments(config.template, config.thinking))
    check_classes(prepared.counts, config.file("train"))
    prepared, same = in_micro_batches(prepared, config)
    if run.main:
        tokens.write_example(run.out, tokenizer, prepared, run.say)
    plan.foresee(run, prepared, tokenizer)
    model = load_model(run.model, **loop.trainer_options(run))
    plan.plan(run, prepared, model)
    counts = prepared.counts
    run.say(
        f"{counts['desirable']} desirable × {args.desirable_weight:.3g}, {counts['undesirable']} undesirable × "
        f"{args.undesirable_weight:.3g}; beta {args.beta}; reference: {config.model}; "
        f"KL partners of the same task: {same} of {len(prepared.train)}"
    )
    head.score_responses_only()
    collate = pair_completions(tokenizer.pad_token_id)
    with arguments.accepted():
        trainer = PairedTrainer(
            model=model,
            args=args,
            processing_class=tokenizer,
            peft_config=arguments.lora(config, model),
            train_dataset=prepared.train,
            eval_dataset=prepared.validation,
            data_collator=collate,
            share=config.share_prompts,
        )
    arguments.float_adapters(config, trainer.model)
    trainer.add_callback(ComputeReference(trainer, collate, lambda share: open_store(run, trainer, share), run))
    loop.fit(run, trainer)
    loop.finish(run, trainer, tokenizer)


def main(argv: list[str] | None = None) -> None:
    """Entry of every launched rank. `argv`: the recipe's file, then any `a.b=value`."""
    as_rank("kto", Config, train, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
