"""KTO: continue from the SFT model with improved (desirable) and regressed (undesirable) transitions.

    eft kto --config recipes/M/kto.yaml [--launch zero2]
    accelerate launch --config_file accelerate_configs/zero2.yaml -m eft.train.kto recipes/M/kto.yaml

The model that training starts from is also its reference. KTO (arXiv 2402.01306) estimates how far the model has
drifted from completions paired with another row's prompt, rotated by one within a micro batch: so micro_batch is at
least 2, the order of `eft build` (labels interleaved, tasks mixed) is kept, and every block is full. Nothing is cut:
TRL's max_length is off, rows over max_tokens are gone before. Reads and writes what SFT does, and
`dataset`/weights.json for the weights of the two classes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from eft.errors import EftError, UsageError
from eft.train.config import TrainConfig
from eft.train.launch import Asked, as_rank, start


class Config(TrainConfig):
    """`eft kto`."""

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

    def check(self) -> None:
        super().check()
        if self.micro_batch < 2:
            raise UsageError(
                "KTO needs micro_batch ≥ 2", why="its KL term pairs a prompt with the completion of another row"
            )

    def sources(self) -> list[Path]:
        return [*super().sources(), self.path(self.dataset) / "weights.json"]


def inputs(config: Config) -> list[Path]:
    """What the stage reads."""
    return config.sources()


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
        except (ValueError, TypeError, KeyError) as e:
            raise EftError(
                "the weights of the classes cannot be read", where=file, why=repr(e), way_out="run 'eft build' again"
            ) from None
    given = {"desirable_weight": config.desirable_weight, "undesirable_weight": config.undesirable_weight}
    return {name: value if value is not None else found.get(name, 1.0) for name, value in given.items()}


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


def train(config: Config, asked: Asked) -> None:
    """One rank's work, from the recipe to the finished model."""
    from trl import KTOConfig

    from eft import tokenizers
    from eft.models.load import load_model
    from eft.train import arguments, data, head, loop, plan
    from eft.train.kto_trainer import PairedTrainer, pair_completions

    args = arguments.build(KTOConfig, config, asked, eval_strategy="steps", beta=config.beta, **weights(config))
    run = loop.join("kto", config, asked, args)
    if run is None:
        return
    tokenizer = tokenizers.load(run.model)
    prepared = data.prepare(
        config, tokenizer, labelled=True, group=False, main=run.main, wait=run.wait, ranks=asked.ranks
    )
    check_classes(prepared.counts, config.file("train"))
    options = loop.trainer_options(run)
    model = load_model(run.model, **options)
    # Under LoRA the model without its adapter is the reference, so there is no second one.
    reference = None if config.lora else load_model(run.model, **options)
    plan.plan(run, prepared, model)
    counts = prepared.counts
    run.say(
        f"{counts['desirable']} desirable × {args.desirable_weight:.3g}, {counts['undesirable']} undesirable × "
        f"{args.undesirable_weight:.3g}; beta {args.beta}; reference: {config.model}"
    )
    head.score_responses_only()
    with arguments.accepted():
        trainer = PairedTrainer(
            model=model,
            ref_model=reference,
            args=args,
            processing_class=tokenizer,
            peft_config=arguments.lora(config),
            train_dataset=prepared.train,
            eval_dataset=prepared.validation,
            data_collator=pair_completions(tokenizer.pad_token_id),
        )
    loop.fit(run, trainer)
    loop.finish(run, trainer, tokenizer)


def main(argv: list[str] | None = None) -> None:
    """Entry of every launched rank. `argv`: the recipe's file, then any `a.b=value`."""
    as_rank("kto", Config, train, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
