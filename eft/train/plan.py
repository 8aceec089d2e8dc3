"""What is about to be trained, set in the trainer's arguments and printed, before the first step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eft.train import data

if TYPE_CHECKING:
    from eft.train.loop import Run


def plan(run: Run, prepared: data.Prepared, model: Any) -> None:
    """Set what depends on data and model in the trainer's arguments, and print what is about to be done."""
    import torch

    args, config, asked = run.args, run.config, run.asked
    args.max_steps = prepared.steps
    # Rounded down: TRL's first warmup step has a learning rate of zero, which a training of four steps cannot afford.
    args.warmup_steps = int(config.warmup * prepared.steps)
    if prepared.validation is None:
        args.eval_strategy = type(args.eval_strategy)("no")
    args.eval_steps = prepared.steps
    args.eval_on_start = prepared.validation is not None and run.resume is None
    run.parameters = count_parameters(model.parameters())
    run.counts = {**prepared.counts, "parameters": run.parameters}
    counts, tokens = prepared.counts, prepared.counts["tokens"]
    kinds = {"none": "one process", "ddp": "DDP", "deepspeed": f"DeepSpeed ZeRO-{asked.stage}", "fsdp": "FSDP2"}
    backend = f", {args.distributed_state.backend}" if asked.ranks > 1 else ""
    device = "CPU" if args.use_cpu else torch.cuda.get_device_name()
    dropped = {k.removeprefix("dropped_"): v for k, v in counts.items() if k.startswith("dropped_") and v}
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    lora = ", LoRA" if config.lora else ""
    run.say(
        f"{config.model} ({run.parameters:,} parameters{lora}), {counts['rows']} rows, dropped: {dropped or 'none'}"
    )
    run.say(
        f"launch '{asked.name}': world size {asked.ranks}, {kinds[asked.kind]}{backend}; "
        f"{device}, {torch.get_num_threads()} threads"
    )
    run.say(
        f"precision {config.precision}, weights {dtype}, attention {model.config._attn_implementation}, "
        f"activation checkpointing {'on' if config.activation_checkpointing else 'off'}"
    )
    run.say(
        f"global batch {config.global_batch} = {config.micro_batch} per rank × {args.gradient_accumulation_steps} "
        f"accumulated × {asked.ranks} ranks; {prepared.steps} steps ({counts['epochs']} epochs), {tokens:,} tokens, "
        f"{tokens // prepared.steps:,} a step"
    )
    if run.resume is not None:
        run.say(f"continuing from {run.resume}")


def count_parameters(parameters: Iterable[Any]) -> int:
    """How many numbers; ZeRO-3 leaves only a stub of a parameter on each rank, and its size in ds_numel."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters)
