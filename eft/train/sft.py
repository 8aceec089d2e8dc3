"""SFT: fine-tune a model on transitions that improved, loss on the response only.

    eft sft --config recipes/M/sft.yaml [--launch zero2]
    accelerate launch --config_file accelerate_configs/zero2.yaml -m eft.train.sft recipes/M/sft.yaml

Reads `dataset`/{train,validation}.parquet (of `eft build`), writes OUT/final (a model folder, or an adapter under
`lora:`), OUT/losses.jsonl, OUT/manifest.json. Interrupted, the same command continues from the newest complete
checkpoint, and in fp32 ends with the very weights of an undisturbed run. What does not fit is dropped and counted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from eft.train.config import TrainConfig
from eft.train.launch import Asked, as_rank, start


class Config(TrainConfig):
    """`eft sft`."""

    group_by_length: bool = Field(True, description="steps of rows of like length: less padding, same rows")
    packing: bool = Field(
        False,
        description="several rows in one sequence of at most micro_batch × max_tokens tokens, no padding; a step has the "
        "same rows as without, in as few micro batches as hold them",
    )
    weights: bool = Field(True, description="weigh rows by the table's column `weight`, where there is one")

    @property
    def capacity(self) -> int | None:
        """Tokens that a pack holds, None without packing."""
        return self.micro_batch * self.max_tokens if self.packing else None


def inputs(config: Config) -> list[Path]:
    """What the stage reads."""
    return config.sources()


def dry_run(config: Config) -> tuple[str, dict[str, Any]]:
    """What `--dry-run` adds: the plan of the training as YAML comments, and its numbers."""
    from eft.train import plan

    return plan.shown("sft", config, group=config.group_by_length)


def run(config: Config) -> Path:
    """Launch the ranks and wait for them. Returns the output folder."""
    return start("sft", config)


def train(config: Config, asked: Asked) -> None:
    """One rank's work, from the recipe to the finished model."""
    from trl import SFTConfig

    from eft import tokenizers
    from eft.models.load import config_of, load_model
    from eft.train import arguments, data, head, loop, pack, plan, tokens
    from eft.train.sft_trainer import Batches, RowTrainer

    args = arguments.build(SFTConfig, config, asked, packing=False, shuffle_dataset=False, eval_strategy="steps")
    run = loop.join("sft", config, asked, args)
    if run is None:
        return
    options = loop.trainer_options(run)
    if config.packing:
        shape = config_of(run.model)
        pack.check(shape, cpu=args.use_cpu)
        pack.register()
        options["attention"] = pack.attention(shape, options["attention"])
    arguments.check_targets(config, run.model)
    tokenizer = tokenizers.load(run.model)
    prepared = data.prepare(
        config,
        tokenizer,
        labelled=False,
        group=config.group_by_length,
        main=args.distributed_state.is_local_main_process,
        wait=run.wait,
        ranks=asked.replicas,
        capacity=config.capacity,
    )
    tokens.settle_template(tokenizer, tokens.arguments(config.template, config.thinking))
    if run.main:
        tokens.write_example(run.out, tokenizer, prepared, run.say)
    if prepared.packs:
        arguments.set_batches(args, 1, prepared.packs // asked.ranks)
    plan.foresee(run, prepared, tokenizer)
    model = load_model(run.model, **options)
    plan.plan(run, prepared, model)
    head.score_responses_only()
    batches = Batches(
        tokenizer.pad_token_id,
        pad_to_multiple_of=args.pad_to_multiple_of,
        table=prepared.table,
        weighted=config.weights and "weight" in prepared.table.column_names,
    )
    with arguments.accepted():
        trainer = RowTrainer(
            model=model,
            args=args,
            data_collator=batches,
            processing_class=tokenizer,
            peft_config=arguments.lora(config, model),
            train_dataset=prepared.train,
            eval_dataset=prepared.validation,
        )
    arguments.float_adapters(config, trainer.model)
    loop.fit(run, trainer)
    loop.finish(run, trainer, tokenizer)


def main(argv: list[str] | None = None) -> None:
    """Entry of every launched rank. `argv`: the recipe's file, then any `a.b=value`."""
    as_rank("sft", Config, train, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
