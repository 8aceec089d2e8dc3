"""What SFT and KTO are told in the same words. The stages add their own fields; see eft/train/sft.py and kto.py.

A recipe states the *global* batch: how many rows move the weights at once. How it is reached is derived: micro_batch
rows per rank, as many ranks as the launch has, and gradient accumulation for the rest. So the same file gives the same
training on one GPU and on eight. An indivisible one is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from eft.config import Section, StageConfig
from eft.errors import EftError, UsageError


class Lora(Section):
    """Train low-rank adapters instead of all weights."""

    rank: int = Field(16, ge=1, description="rank of the update")
    alpha: int = Field(32, ge=1, description="scale of the update: alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: str | list[str] = Field(
        "all-linear", description="modules to adapt; embeddings and LM head are never among them"
    )
    bits: Literal[4, 8] | None = Field(
        None, description="keep the frozen weights in 4 bits (NF4) or 8 (QLoRA, needs bitsandbytes); null: in 16"
    )


class Watch(Section):
    """What is looked at beside the loss: rows held out from training, and mutations sampled from the model."""

    every: int = Field(0, ge=0, description="steps between two looks, eval_rows too; 0: before and after training only")
    table: Path | None = Field(
        None, description="table with improved and regressed rows; default: validation.parquet of the KTO set"
    )
    rows: int | None = Field(
        None, ge=0, description="held-out rows whose log-likelihood is measured; default: eval_rows, at most 64"
    )
    samples: int = Field(0, ge=0, description="mutations to sample and apply at every look")
    max_new_tokens: int = Field(2048, ge=1, description="of a sampled mutation")
    temperature: float = Field(0.7, ge=0, description="0: greedy")
    top_p: float = Field(0.95, gt=0, le=1)


class TrainConfig(StageConfig):
    """The part of the configuration that SFT and KTO share."""

    positional: ClassVar[str] = "dataset"
    labelled: ClassVar[bool] = False  # whether the rows are of both classes, told by a column

    dataset: Path = Field(description="folder of 'eft build' that holds train.parquet and validation.parquet")
    model: str = Field(
        description="model to start from: a folder, ORG/NAME on the hub, embedded:smollm2-135m, random:qwen3"
    )
    launch: str = Field(
        "auto", description="accelerate config, by path or shipped name; auto: single_gpu, or cpu without a GPU"
    )
    ranks: int | None = Field(None, ge=1, description="processes in all, where not as many as the launch config says")
    device: str = Field(
        "auto",
        exclude=True,  # decides nothing but what is printed
        description="GPU that memory and time are estimated for (h200, a100, rtx 4090, …); auto: this machine's, else h200",
    )
    precision: Literal["fp32", "bf16", "bf16_weights"] = Field(
        "bf16",
        description="fp32; bf16: mixed precision (DeepSpeed and FSDP keep float32 master weights, otherwise autocast); "
        "bf16_weights: bfloat16 weights with float32 master weights in the optimizer, the fastest on a CPU",
    )
    attention: str = Field("auto", description="attention kernel; auto: flash_attention_2 where installed, else sdpa")
    global_batch: int = Field(128, ge=1, description="rows per optimizer step, over all ranks")
    micro_batch: int = Field(1, ge=1, description="rows per rank and forward pass")
    learning_rate: float = Field(1e-5, gt=0)
    schedule: str = Field("cosine", description="learning-rate schedule")
    warmup: float = Field(0.03, ge=0, lt=1, description="share of the steps that the learning rate rises")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    epochs: float = Field(1.0, gt=0)
    steps: int | None = Field(None, ge=1, description="optimizer steps, instead of epochs")
    max_tokens: int = Field(32768, ge=8, description="prompt and response together; longer rows are dropped, never cut")
    max_rows: int | None = Field(None, ge=1, description="train on at most this many rows, chosen at random")
    eval_rows: int = Field(
        256, ge=0, description="validation rows that the loss is measured on, before and after training"
    )
    template: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the chat template; thinking sets enable_thinking"
    )
    thinking: Literal["off", "on", "kept"] | None = Field(
        None,
        description="models that reason: off; on: the row's thought is shown, without loss; kept: it is learned too",
    )
    activation_checkpointing: bool = Field(
        True, description="recompute activations in the backward pass: less memory, a third more time"
    )
    lora: Lora | None = Field(None, description="train adapters of this shape instead of all weights")
    seed: int = 0
    save_every: int = Field(100, ge=1, description="steps between checkpoints")
    keep: int = Field(2, ge=1, description="complete checkpoints to keep while training")
    keep_finished: bool = Field(False, description="keep the checkpoints of a finished training too")
    log_every: int = Field(1, ge=1, description="steps between lines of losses.jsonl")
    report_to: list[str] = Field(default_factory=list, description="wandb, trackio; losses.jsonl is always written")
    watch: Watch = Field(default_factory=Watch, description="held-out rows and sampled mutations")
    explode: float | None = Field(
        100.0,
        gt=1,
        description="stop where the gradient norm is over max_grad_norm and so many times its median three times "
        "in a row; null: never",
    )
    trainer: dict[str, Any] = Field(
        default_factory=dict, description="further arguments of TRL's trainer config, by their names there"
    )

    @field_validator("thinking", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """YAML reads `off` and `on` as truth values."""
        return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value

    def accumulation(self, ranks: int) -> int:
        """How many micro batches every rank adds up per step. Raises UsageError where global_batch is not reached
        exactly."""
        together = self.micro_batch * ranks
        if self.global_batch % together:
            raise UsageError(
                f"global_batch {self.global_batch} is not a multiple of micro_batch × ranks",
                why=f"micro_batch {self.micro_batch} × {ranks} ranks = {together}",
                way_out=f"set global_batch to a multiple of {together}, or lower micro_batch",
            )
        return self.global_batch // together

    def file(self, split: str) -> Path:
        """The Parquet file of a split ("train" or "validation")."""
        return self.path(self.dataset) / f"{split}.parquet"

    def sources(self) -> list[Path]:
        """Files and folders that the result depends on. The model's stage stands for the model where a stage made
        it."""
        found = [self.file("train"), self.file("validation")]
        model = self.path(self.model)
        if model.is_dir():
            found.append(model.parent if (model.parent / "manifest.json").is_file() else model)
        return found

    def check(self) -> None:
        """What can be known to be wrong before anything heavy is imported. Raises EftError."""
        from eft.models.load import locate
        from eft.train import arguments, checks, tokens, trackers

        if not self.file("train").is_file():
            raise EftError(
                "there is no training data",
                where=self.file("train"),
                way_out="run 'eft build' first (without regressed rows it writes no kto/)",
            )
        checks.stage(self.file("train"), labelled=self.labelled)
        if self.device != "auto":
            checks.device(self.device)
        locate(self.model, self.root)
        trackers.check(self.report_to)
        tokens.arguments(self.template, self.thinking)
        arguments.check_bits(self, "none")
        self.out()
