"""SFT: fine-tune a model on transitions that improved, loss on the response only.

    eft sft --config recipes/M/sft.yaml [--launch zero2]
    accelerate launch --config_file accelerate_configs/zero2.yaml -m eft.train.sft recipes/M/sft.yaml

Reads `dataset`/{train,validation}.parquet (of `eft build`), writes OUT/final (a model folder, or an adapter under
`lora:`), OUT/losses.jsonl, OUT/manifest.json. Interrupted, the same command continues from the newest complete
checkpoint, and in fp32 ends with the very weights of an undisturbed run. Rows are not packed; what does not fit is
dropped and counted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import Field

from eft.train.config import TrainConfig
from eft.train.launch import Asked, as_rank, start


class Config(TrainConfig):
    """`eft sft`."""

    group_by_length: bool = Field(True, description="steps of rows of like length: less padding, same rows")


def inputs(config: Config) -> list[Path]:
    """What the stage reads."""
    return config.sources()


def run(config: Config) -> Path:
    """Launch the ranks and wait for them. Returns the output folder."""
    return start("sft", config)


def train(config: Config, asked: Asked) -> None:
    """One rank's work, from the recipe to the finished model."""
    from trl import SFTConfig, SFTTrainer

    from eft import tokenizers
    from eft.models.load import load_model
    from eft.train import arguments, data, head, loop, plan

    args = arguments.build(SFTConfig, config, asked, packing=False, shuffle_dataset=False, eval_strategy="steps")
    run = loop.join("sft", config, asked, args)
    if run is None:
        return
    tokenizer = tokenizers.load(run.model)
    prepared = data.prepare(
        config, tokenizer, labelled=False, group=config.group_by_length, main=run.main, wait=run.wait, ranks=asked.ranks
    )
    model = load_model(run.model, **loop.trainer_options(run))
    plan.plan(run, prepared, model)
    head.score_responses_only()
    with arguments.accepted():
        trainer = SFTTrainer(
            model=model,
            args=args,
            processing_class=tokenizer,
            peft_config=arguments.lora(config),
            train_dataset=prepared.train,
            eval_dataset=prepared.validation,
        )
    loop.fit(run, trainer)
    loop.finish(run, trainer, tokenizer)


def main(argv: list[str] | None = None) -> None:
    """Entry of every launched rank. `argv`: the recipe's file, then any `a.b=value`."""
    as_rank("sft", Config, train, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    main()
