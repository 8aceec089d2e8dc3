"""What is about to be trained: found out from data and config before the model is loaded, checked, printed.

`foresee` does it at the start of a run, `dry_run` for `eft sft|kto --dry-run`; both print the same lines from the same
numbers. `plan` sets what depends on the data in the trainer's arguments, once the model is there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eft.train import arguments, checks, data, estimate, pack
from eft.train.asked import Asked, choose, gpus
from eft.train.config import TrainConfig

if TYPE_CHECKING:
    from eft.train.loop import Run

KINDS = {"none": "one process", "ddp": "DDP", "fsdp": "FSDP2"}


@dataclass(frozen=True)
class Plan:
    """`lines`: what is printed; `numbers`: the same for `--json`."""

    lines: list[str]
    numbers: dict[str, Any]
    estimate: estimate.Estimate


def foresee(run: Run, prepared: data.Prepared, tokenizer: Any) -> None:
    """Print the plan and check it, on the main process, before the model is loaded. Raises EftError for what would fail
    later: fewer rows than ranks, a tokenizer of another model, an adapter of another base, no room on the disk."""
    if not run.main:
        return
    import torch

    backend = f", {run.args.distributed_state.backend}" if run.asked.ranks > 1 else ""
    made = make(run.verb, run.config, run.asked, run.model, prepared, tokenizer, cpu=run.args.use_cpu, backend=backend)
    room = {"threads": torch.get_num_threads()}
    for line in made.lines:
        run.say(line.format_map(room) if "{threads}" in line else line)
    if run.resume is not None:
        run.say(f"continuing from {run.resume}")
    checks.room(run.out, made.estimate.disk, run.resume is not None)
    run.counts["estimate"] = made.estimate.numbers()


def plan(run: Run, prepared: data.Prepared, model: Any) -> None:
    """Set what depends on data and model in the trainer's arguments."""
    args, config = run.args, run.config
    run.prepared = prepared
    args.max_steps = prepared.steps
    # Rounded down: TRL's first warmup step has a learning rate of zero, which a training of four steps cannot afford.
    args.warmup_steps = int(config.warmup * prepared.steps)
    if prepared.validation is None:
        args.eval_strategy = type(args.eval_strategy)("no")
    args.eval_steps = prepared.steps
    args.eval_on_start = prepared.validation is not None and run.resume is None
    run.parameters = count_parameters(model.parameters())
    run.counts = {**run.counts, **prepared.counts, "parameters": run.parameters}


def make(
    verb: str,
    config: TrainConfig,
    asked: Asked,
    model: str,
    prepared: data.Prepared,
    tokenizer: Any,
    *,
    cpu: bool,
    backend: str = "",
) -> Plan:
    """The plan of a training. `model`: its located name; `cpu`: whether it runs on CPUs. Raises EftError, see foresee."""
    from eft.models import load
    from eft.train import flops, shape

    counts = prepared.counts
    checks.rows(counts["rows"], asked, config)
    skeleton = load.skeleton(model)
    checks.vocabulary(tokenizer, skeleton.config, model)
    checks.adapter(Path(model), skeleton)
    checks.sequence(asked, skeleton.config, verb, config)
    attention = arguments.attention(config, cpu)
    dtype = arguments.load_dtype(config, asked)
    work = workload(prepared, config, asked)
    autocast = config.precision == "bf16" and asked.kind in ("none", "ddp")
    setting = setting_of(config, asked, cpu, dtype, autocast)
    fused = not cpu and (importlib.util.find_spec("fla") is not None or not gpus())
    measured = shape.measure(
        skeleton,
        dtype=dtype,
        autocast=autocast,
        attention=attention if attention == "eager" else "sdpa",
        padded=verb == "kto" and not attention.startswith("flash"),
        lora=arguments.lora(config, skeleton),
        fused=fused,
    )
    if asked.kind == "fsdp":
        setting = replace(setting, weights=4, gradients=4, optimizer=8)
    count = flops.count(skeleton.config)
    needed, done = estimate.passes(verb, setting)
    forward = count.forward(work.lengths, sum(work.responses))
    once = 2 * forward / max(1.0, counts["epochs"]) if verb == "kto" else 0.0  # the reference, and its KL pass
    device, room, peak, assumed = _device(config, cpu, dtype if config.precision == "fp32" else "bfloat16")
    time = estimate.seconds(forward * done + once, setting, peak) if peak else None
    notes = []
    if not fused and measured.delta:
        notes.append("flash-linear-attention is not installed: linear attention runs slower and holds more")
    told = estimate.Estimate(
        device=device,
        room=room,
        assumed=assumed,
        memory=estimate.memory(measured, setting, work),
        seconds=time,
        peak=peak,
        utilisation=estimate.UTILISATION,
        mfu=estimate.UTILISATION * needed / done,
        disk=estimate.disk(measured, setting, config.keep),
        notes=notes,
    )
    numbers = _numbers(config, asked, counts, work, measured, told)
    return Plan(_lines(config, asked, counts, work, measured, attention, dtype, told, backend, cpu), numbers, told)


def workload(prepared: data.Prepared, config: TrainConfig, asked: Asked) -> estimate.Work:
    """Rows, and the heaviest forward pass: micro_batch neighbours in training order, padded to the longest."""
    train = prepared.train
    lengths, responses = list(train["length"][:]), list(train["response"][:])
    size = 1 if prepared.packs else config.micro_batch
    blocks = [(lengths[i : i + size], responses[i : i + size]) for i in range(0, len(lengths), size)]
    longest = max(blocks, key=lambda b: len(b[0]) * max(b[0]), default=([1], [1]))
    micro = (len(longest[0]), max(longest[0]), max(sum(b[1]) for b in blocks))
    if prepared.packs:
        lengths = [n for row in train["lengths"][:] for n in row]
    return estimate.Work(prepared.steps, lengths, responses, micro, prepared.packs)


def setting_of(config: TrainConfig, asked: Asked, cpu: bool, dtype: str, autocast: bool) -> estimate.Setting:
    """The words that memory depends on."""
    weights = {"float32": 4, "bfloat16": 2}[dtype]
    masters = config.precision == "bf16_weights" or asked.kind == "deepspeed"
    lora = config.lora is not None
    plain = 4 if lora and asked.kind != "deepspeed" else weights
    return estimate.Setting(
        kind=asked.kind,
        stage=asked.stage,
        ranks=asked.ranks,
        sequence=asked.sequence,
        weights=weights,
        gradients=plain,
        optimizer=12 if masters and not (lora and asked.kind != "deepspeed") else 8,
        bits=getattr(config.lora, "bits", None) if lora else None,
        lora=lora,
        checkpointing=config.activation_checkpointing,
        accumulation=config.accumulation(asked.replicas),
        gpu=not cpu,
        autocast=autocast,
    )


def _device(config: TrainConfig, cpu: bool, dtype: str) -> tuple[str, float, float | None, bool]:
    """Name, memory in bytes, peak in FLOP/s, and whether it is only assumed."""
    from eft.train import flops

    if cpu:
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return "this CPU", float(room), flops.cpu_peak(dtype), False
    if config.device == "auto" and gpus():
        import torch

        found = torch.cuda.get_device_properties(0)
        return found.name, float(found.total_memory), flops.peak(found.name, dtype), False
    name = "H200" if config.device == "auto" else checks.device(config.device)
    return name, estimate.DEVICES[name] * float(estimate.GIB), flops.peak(f"NVIDIA {name}", dtype), True


def _lines(
    config: TrainConfig,
    asked: Asked,
    counts: dict[str, Any],
    work: estimate.Work,
    shape: Any,
    attention: str,
    dtype: str,
    told: estimate.Estimate,
    backend: str,
    cpu: bool,
) -> list[str]:
    dropped = {k.removeprefix("dropped_"): v for k, v in counts.items() if k.startswith("dropped_") and v}
    kind = KINDS.get(asked.kind) or f"DeepSpeed ZeRO-{asked.stage}"
    if asked.sequence > 1:
        kind += f", Ulysses: {asked.sequence} ranks share a row"
    trained = ""
    if config.lora:
        bits = getattr(config.lora, "bits", None)
        trained = f", {f'{bits}-bit ' if bits else ''}LoRA of {shape.trained:,}"
    lost = sum(dropped.values())
    share = f" ({lost / (counts['rows'] + lost):.1%} of the rows)" if lost else ""
    device = "CPU" if cpu else told.device
    threads = ", {threads} threads" if backend or cpu else ""
    accumulated = work.packs // asked.replicas if work.packs else config.accumulation(asked.replicas)
    ranks = f"{asked.ranks} ranks" if asked.sequence == 1 else f"{asked.replicas} groups of {asked.sequence} ranks"
    each = f"{config.micro_batch} per rank" if not work.packs else "(in packs) 1 per rank"
    return [
        f"{config.model} ({shape.parameters:,} parameters{trained}), {counts['rows']} rows, "
        f"dropped: {dropped or 'none'}{share}; longest {max(work.lengths):,} tokens",
        f"launch '{asked.name}': world size {asked.ranks}, {kind}{backend}; {device}{threads}",
        f"precision {config.precision}, weights {dtype}, attention {attention}, "
        f"activation checkpointing {'on' if config.activation_checkpointing else 'off'}",
        f"global batch {config.global_batch} = {each} × {accumulated} "
        f"accumulated × {ranks}; {work.steps} steps ({counts['epochs']} epochs), {work.tokens:,} tokens, "
        f"{work.tokens // work.steps:,} a step",
        *told.lines(),
    ]


def _numbers(
    config: TrainConfig, asked: Asked, counts: dict[str, Any], work: estimate.Work, shape: Any, told: estimate.Estimate
) -> dict[str, Any]:
    dropped = {k: v for k, v in counts.items() if k.startswith("dropped_")}
    return {
        "world_size": asked.ranks,
        "kind": asked.kind,
        "zero_stage": asked.stage,
        "sequence_parallel": asked.sequence,
        "parameters": shape.parameters,
        "trained": shape.trained,
        "rows": counts["rows"],
        **dropped,
        "global_batch": config.global_batch,
        "accumulation": work.packs // asked.replicas if work.packs else config.accumulation(asked.replicas),
        "steps": work.steps,
        "tokens": work.tokens,
        **told.numbers(),
    }


def dry_run(verb: str, config: TrainConfig, group: bool, arrange: Any) -> Plan | None:
    """The plan for `--dry-run`: from the data and the model's config alone. None where the data are not there yet.

    The tokens are counted, and stay in the cache that the run reads too. Raises EftError as the run would.
    """
    if not config.file("train").is_file():
        return None
    config.check()
    _, asked = choose(config, anywhere=True)
    from eft import tokenizers
    from eft.models import load

    model = load.locate(config.model, config.root)
    if config.trainer:
        import trl

        arguments.check_keys({"sft": trl.SFTConfig, "kto": trl.KTOConfig}[verb], config)
    if getattr(config, "packing", False):
        pack.check(load.config_of(model), cpu=asked.cpu)
    arguments.check_targets(config, model)
    tokenizer = tokenizers.load(model)
    prepared = data.prepare(
        config,
        tokenizer,
        labelled=config.labelled,
        group=group,
        main=True,
        wait=lambda: None,
        ranks=asked.replicas,
        capacity=getattr(config, "capacity", None),
    )
    prepared = arrange(prepared) if arrange else prepared
    return make(verb, config, asked, model, prepared, tokenizer, cpu=asked.cpu)


def count_parameters(parameters: Iterable[Any]) -> int:
    """How many numbers; ZeRO-3 leaves only a stub of a parameter on each rank, and its size in ds_numel."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters)


def shown(
    verb: str, config: TrainConfig, *, group: bool, arrange: Callable[[data.Prepared], data.Prepared] | None = None
) -> tuple[str, dict[str, Any]]:
    """What `--dry-run` adds to the config: text, every line a YAML comment, and numbers for `--json`.

    `arrange`: what the stage does to the order of the prepared rows.
    """
    found = dry_run(verb, config, group, arrange)
    if found is None:
        return f"# no estimate: {config.file('train')} is not there yet (run 'eft build')\n", {}
    lines = [line.replace(", {threads} threads", "") for line in found.lines]
    return "".join(f"# {line}\n" for line in lines), found.numbers


