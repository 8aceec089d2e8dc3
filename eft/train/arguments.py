"""A recipe's words as the arguments of TRL's trainers.

Every argument that eft decides has a name of its own in the recipe; all others can be given in the section `trainer:`,
by their names in TRL. What is set in both places, or is unknown, is an error that names the nearest valid one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any

from eft.errors import UsageError, nearest
from eft.train import extensions
from eft.train.config import TrainConfig
from eft.train.launch import Asked

# arguments that eft sets itself, and the recipe's key that decides them ("": the launch or the data do)
OURS = {
    "output_dir": "output",
    "per_device_train_batch_size": "micro_batch",
    "per_device_eval_batch_size": "micro_batch",
    "gradient_accumulation_steps": "global_batch",
    "learning_rate": "learning_rate",
    "lr_scheduler_type": "schedule",
    "warmup_steps": "warmup",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "bf16": "precision",
    "fp16": "precision",
    "gradient_checkpointing": "activation_checkpointing",
    "max_length": "max_tokens",
    "logging_steps": "log_every",
    "save_steps": "save_every",
    "save_total_limit": "keep",
    "seed": "seed",
    "data_seed": "seed",
    "report_to": "report_to",
    "use_cpu": "launch",
    "train_sampling_strategy": "",
    "save_strategy": "save_every",
    "resume_from_checkpoint": "",
    "deepspeed": "launch",
    "fsdp": "launch",
    "fsdp_config": "launch",
    "eval_strategy": "eval_rows",
    "beta": "beta",
    "desirable_weight": "desirable_weight",
    "undesirable_weight": "undesirable_weight",
    "loss_type": "",
    "packing": "packing",
    "packing_strategy": "packing",
    "eval_packing": "packing",
    "padding_free": "packing",
    "completion_only_loss": "",
    "assistant_only_loss": "",
    "average_tokens_across_devices": "",
    "disable_tqdm": "",
    "logging_nan_inf_filter": "",
    "remove_unused_columns": "",
    "shuffle_dataset": "",
    "model_init_kwargs": "model",
    "warmup_ratio": "warmup",
    "eval_steps": "watch",
    "eval_on_start": "eval_rows",
    "chat_template_path": "template",
    "eos_token": "",
    "pad_token": "",
    "precompute_ref_log_probs": "",
    "use_liger_kernel": "",  # it replaces the loss
    "accelerator_config": "launch",  # it may split the batches
    "auto_find_batch_size": "micro_batch",
    # without them a resumed training is another one, or ends with other weights than its last
    "save_only_model": "",
    "ignore_data_skip": "",
    "load_best_model_at_end": "",
    "push_to_hub": "",  # eft export does
}


def check_keys(kind: type, config: TrainConfig) -> None:
    """Raise UsageError for keys of `trainer:` that eft decides, or that `kind` does not have."""
    known = {f.name for f in dataclasses.fields(kind) if f.init}
    for key in config.trainer:
        if key in OURS:
            raise UsageError(
                f"`trainer: {key}` is decided by eft", way_out=f"set `{OURS[key]}`" if OURS[key] else "leave it out"
            )
        if key not in known:
            raise UsageError(
                f"unknown key 'trainer.{key}'",
                why=f"{kind.__name__} has no such argument",
                way_out=nearest(key, known - set(OURS)),
            )


def build(kind: type, config: TrainConfig, asked: Asked, **extra: Any) -> Any:
    """An instance of `kind` (SFTConfig or KTOConfig), which joins the process group. The steps are set later, from the
    data.

    Raises UsageError for unknown or doubly set keys of `config.trainer`, and for what TRL refuses.
    """
    import torch

    check_keys(kind, config)
    cpu = asked.cpu or not torch.cuda.is_available()
    if cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would guess, and warn that it did
        if asked.kind == "deepspeed":
            extensions.build()
    values = {
        "output_dir": str(config.out()),
        "per_device_train_batch_size": config.micro_batch,
        "per_device_eval_batch_size": config.micro_batch,
        "gradient_accumulation_steps": config.accumulation(asked.replicas),
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.schedule,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "max_steps": 1,  # until the data are counted
        "bf16": config.precision == "bf16",
        "fp16": False,
        "gradient_checkpointing": config.activation_checkpointing,
        "max_length": None,  # rows over the budget are gone already; TRL would cut them
        "logging_steps": config.log_every,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,  # it replaces a NaN loss by an average, in silence
        "save_strategy": "steps",
        "save_steps": config.save_every,
        # TRL would delete the old checkpoint before all ranks have written the new one: see checkpoints.py.
        "save_total_limit": None,
        "train_sampling_strategy": "sequential",  # data.py decided the order
        "seed": config.seed,
        "report_to": config.report_to or "none",
        "disable_tqdm": True,  # our own progress bar
        "use_cpu": cpu,
        "dataloader_pin_memory": not cpu,
        "ddp_find_unused_parameters": False,
        "remove_unused_columns": True,
    }
    if asked.sequence > 1:
        # Accelerate reads it later, and it must be the model's.
        os.environ["PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"] = attention(config, cpu)
        # Ranks share a row in equal parts. They hand their batches around beforehand, which gloo does for equal sizes only.
        whole = config.max_tokens if cpu else 1
        values["pad_to_multiple_of"] = -(-whole // asked.sequence) * asked.sequence
    with accepted():
        return kind(**{**values, **extra, **config.trainer})


@contextlib.contextmanager
def accepted() -> Iterator[None]:
    """Turn what TRL and PEFT refuse (a schedule that does not exist, LoRA targets that match nothing) into a
    UsageError."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as e:
        why = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise UsageError("this training cannot be set up", why=why, way_out="correct the recipe") from e


def attention(config: TrainConfig, cpu: bool) -> str:
    """The attention kernel to load the model with: as told, or the fastest that is there and exact."""
    if config.attention != "auto":
        return config.attention
    return "flash_attention_2" if not cpu and importlib.util.find_spec("flash_attn") else "sdpa"


def load_dtype(config: TrainConfig, asked: Asked) -> str:
    """The dtype to load weights in. DeepSpeed makes its float32 master weights from bfloat16 ones; frozen weights under
    adapters need no master; autocast and FSDP want float32."""
    if config.precision == "fp32":
        return "float32"
    if config.precision == "bf16_weights" or asked.kind == "deepspeed" or config.lora is not None:
        return "bfloat16"
    return "float32"


def set_batches(args: Any, micro: int, accumulation: int) -> None:
    """Other micro batches than `build` has set; DeepSpeed's configuration was filled from them already."""
    args.per_device_train_batch_size = micro
    args.gradient_accumulation_steps = accumulation
    plugin = args.deepspeed_plugin
    if plugin is not None:
        plugin.gradient_accumulation_steps = accumulation
        plugin.hf_ds_config.config |= {
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": accumulation,
            "train_batch_size": micro * accumulation * args.world_size,
        }


def lora(config: TrainConfig, model: Any) -> Any:
    """The PEFT config of `config.lora` for `model`, or None. What sees is left out of all-linear."""
    if config.lora is None:
        return None
    from peft import LoraConfig

    from eft.models.load import vision

    blind = "|".join(re.escape(name) for name in vision(model))
    return LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,
        lora_dropout=config.lora.dropout,
        target_modules=config.lora.targets,
        exclude_modules=rf"({blind})\..*" if blind else None,
        task_type="CAUSAL_LM",
    )


def check_targets(config: TrainConfig, model: str) -> None:
    """Raise UsageError where `lora: targets` are not in the located `model`: PEFT only minds when none of them is."""
    if config.lora is None or config.lora.targets == "all-linear":
        return
    from eft.models.load import skeleton

    names = [name for name, _ in skeleton(model).named_modules() if name]
    targets = [config.lora.targets] if isinstance(config.lora.targets, str) else config.lora.targets
    regex = isinstance(config.lora.targets, str)
    for target in targets:
        try:
            found = [n for n in names if (re.fullmatch(target, n) if regex else f".{n}".endswith(f".{target}"))]
        except re.error as e:
            raise UsageError("`lora: targets` is not a regular expression", where=target, why=str(e)) from None
        leaves = sorted({n.rpartition(".")[2] for n in names if not n.rpartition(".")[2].isdigit()})
        if not found:
            raise UsageError(
                f"no module of the model is called '{target}'",
                where="lora: targets",
                why=f"it has {', '.join(n for n in leaves if n.endswith(('proj', 'qkv', '_z', '_a', '_b')))}",
                way_out=nearest(target, leaves),
            )
        head = [n for n in found if n.rpartition(".")[2] in ("lm_head", "embed_tokens")]
        if head:
            raise UsageError(f"'{head[0]}' cannot be adapted", where="lora: targets",
                             why="the loss takes its weights as they are; servers refuse such adapters")  # fmt: skip


def check_bits(config: TrainConfig, kind: str) -> None:
    """Raise UsageError where weights cannot be kept in `lora: bits`. `kind`: of the launch."""
    if config.lora is None or config.lora.bits is None:
        return
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(
            f"`lora: bits: {config.lora.bits}` needs bitsandbytes, which is not installed",
            way_out="pip install bitsandbytes, or leave `bits` out: LoRA on weights in 16 bits",
        )
    if kind in ("deepspeed", "fsdp"):
        raise UsageError(
            f"`lora: bits` is for one process or DDP, not for {kind}",
            why="it would flatten and cast the packed weights",
            way_out="launch with single_gpu or ddp: what ZeRO would shard are the optimizer's states of adapters, a few MB",
        )


def float_adapters(config: TrainConfig, model: Any) -> None:
    """Adapters on quantized weights stay in float32: TRL makes them bfloat16, where a small step rounds to none."""
    import torch

    if config.lora is not None and config.lora.bits:
        for p in model.parameters():
            if p.requires_grad:
                p.data = p.data.to(torch.float32)
