"""What SFT and KTO do alike, around TRL's trainer: join the launch, resume, train, save, account.

run = join(...)        the launch is proven, the folder held, the point to resume from known
fit(run, trainer)      train with checkpoints, journal, alarms and the watch
finish(run, trainer)   OUT/final (a model folder), OUT/manifest.json; the checkpoints go
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError, UsageError
from eft.models.load import locate, write_base
from eft.models.save import check_weights, save_model
from eft.train import arguments, checkpoints, flops, interrupt, launch, trackers
from eft.train import meter as meters
from eft.train.callbacks import JOURNAL, Alarms, Journal, read_journal
from eft.train.config import TrainConfig
from eft.train.launch import Asked
from eft.train.plan import count_parameters
from eft.train.watch import Watch, isolated


@dataclass
class Run:
    """One training on this rank. `resume`: the checkpoint to continue from, or None. `model`: the name to load."""

    verb: str
    config: TrainConfig
    asked: Asked
    args: Any
    started: float
    resume: Path | None
    identity: dict[str, Any]
    lock: Any
    prepared: Any = None  # data.Prepared
    interrupt: Any = None
    parameters: int = 0
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.config.out()

    @property
    def model(self) -> str:
        return locate(self.config.model, self.config.root)

    @property
    def main(self) -> bool:
        return self.args.distributed_state.is_main_process

    def wait(self) -> None:
        """A barrier of all ranks."""
        self.args.distributed_state.wait_for_everyone()

    def say(self, text: str) -> None:
        """Print on stderr, once."""
        if self.main:
            print(f"{self.verb}: {text}", file=sys.stderr, flush=True)


def join(verb: str, config: TrainConfig, asked: Asked, args: Any) -> Run | None:
    """This rank's part in the training; None where it is finished and up to date. Raises EftError where the launch is
    not what it says, another training holds the folder, or the checkpoints there belong to another training."""
    import torch

    started = time.time()
    if args.use_cpu:
        torch.set_num_threads(launch.env_number("OMP_NUM_THREADS"))
    launch.prove(asked, args)
    if config.precision == "bf16_weights" and asked.kind in ("deepspeed", "fsdp"):
        raise UsageError(
            "precision bf16_weights is for one process or DDP",
            why="DeepSpeed and FSDP keep their own float32 master weights",
            way_out="set `precision: bf16`",
        )
    out = config.out()
    with manifest.clear_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    run = Run(verb, config, asked, args, started, None, checkpoints.identity(config, asked), None)
    done = (
        manifest.up_to_date(out, verb, config.model_dump(mode="json"), config.sources())
        and manifest.location(out).stat().st_mtime > float(os.environ.get(launch.AGAIN) or 0)
    )
    run.wait()  # all have looked before anything changes
    if done:
        run.say(f"up to date, {out}")
        return None
    run.interrupt = interrupt.Interrupt(out)
    if run.main:
        run.lock = launch.hold(out)
        if (out / manifest.NAME).exists() and (out / manifest.NAME).stat().st_mtime > started:
            raise EftError("another training has just finished in this folder", where=out,
                           way_out="run the same command again: it is up to date, unless the recipes differ")  # fmt: skip
        (out / interrupt.MARK).unlink(missing_ok=True)
        if (out / manifest.NAME).exists():  # a finished training, to be done again: what it left is not this one's
            (out / manifest.NAME).unlink()
            checkpoints.remove(checkpoints.checkpoints(out))
    run.wait()
    run.resume = checkpoints.resume_point(out, run.identity)
    run.wait()
    if run.main:
        checkpoints.remove([f for f in checkpoints.checkpoints(out) if checkpoints.complete(f) is None])
    trackers.begin(run)
    return run


def fit(run: Run, trainer: Any) -> None:
    """Train to the end. Raises EftError where training diverges or does nothing, and Interrupted after SIGTERM."""
    from transformers import PrinterCallback

    launch.prove(run.asked, run.args, trainer.accelerator)
    if run.config.precision == "bf16_weights":
        from eft.train.optimizer import MasterAdamW

        betas = (run.args.adam_beta1, run.args.adam_beta2)
        trainer.optimizer_cls_and_kwargs = (
            MasterAdamW,
            {"lr": run.args.learning_rate, "betas": betas, "eps": run.args.adam_epsilon},
        )
    trainer.remove_callback(PrinterCallback)
    resumed = checkpoints.step_of(run.resume) if run.resume else 0
    meter, costs = observe(run, trainer, resumed)
    before, done = time.time(), False
    try:
        with manifest.clear_disk_errors(run.out), full_disk(run.out):
            trainer.train(resume_from_checkpoint=str(run.resume) if run.resume else None)
        run.interrupt.end(trainer.state.global_step, run.main)
        done = True
    finally:
        trackers.end(failed=not done)
        unobserve(trainer)
        if not done:
            run.interrupt.close()
            if run.lock is not None:
                run.lock.close()  # nothing is written any more; whoever keeps the error must not keep the folder
    run.counts |= {"resumed_from_step": resumed, "training_seconds": round(time.time() - before, 1), **meter.totals()}
    if meter.total_busy:
        run.counts["callbacks_share"] = round(sum(costs.seconds.values()) / meter.total_busy, 5)


def observe(run: Run, trainer: Any, resumed: int) -> tuple[meters.Meter, meters.Costs]:
    """Give the trainer its callbacks. Their order matters: the meter's figures must be there for all that report, the
    journal must have the line that an alarm quotes, what decides about saving must come before what looks for room."""
    config, prepared = run.config, run.prepared
    rows = cost = None
    if prepared is not None:
        rows = meters.StepRows(prepared.train, getattr(prepared, "packs", None) or config.global_batch)
    try:
        cost = flops.count(trainer.accelerator.unwrap_model(trainer.model).config)
    except (ValueError, KeyError, AttributeError) as e:
        run.say(f"MFU is not told: {e}")
    work = meters.Work(cost, passes=2 if config.lora else 3, mismatched=run.verb == "kto") if cost else None
    peak = meters.peak(run.args, config.precision) if run.main and work else None
    meter = meters.Meter(rows, work=work, peak=peak, ranks=run.asked.ranks)
    tokenizer = trainer.processing_class
    watch = Watch(run, trainer, tokenizer, meter)
    watch.prepare()
    trained = count_parameters(p for p in trainer.model.parameters() if p.requires_grad)
    each = 4 if config.precision == "fp32" else 2
    size = checkpoints.needed(run.parameters, trained, each, deepspeed=run.asked.kind == "deepspeed")
    trainer.callback_handler.callbacks.insert(0, meter)
    for callback in (
        Journal(run.out, run.verb, resumed),
        Alarms(run.out, rows, explode=config.explode, clip=config.max_grad_norm),
        watch,
        run.interrupt,
        checkpoints.Space(run.out, size),
        checkpoints.Checkpoints(run.out, run.identity, config.keep, run.wait),
        meters.Restart(meter),
    ):
        trainer.add_callback(callback)
    evaluate = trainer.evaluate

    def apart(*args: Any, **kwargs: Any) -> Any:
        with isolated():
            return evaluate(*args, **kwargs)

    trainer.evaluate = apart  # it draws a seed for its data loader: a training without evaluations would be another one
    return meter, meters.Costs(trainer)


def unobserve(trainer: Any) -> None:
    """Undo what ties the trainer to itself: the folder's lock goes with the last one who knows the run."""
    trainer.__dict__.pop("evaluate", None)
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, Watch):
            callback.trainer = None
        for event in meters.EVENTS:
            callback.__dict__.pop(event, None)


@contextlib.contextmanager
def full_disk(out: Path) -> Iterator[None]:
    """torch and safetensors have errors of their own for a disk that fills while they write."""
    try:
        yield
    except (EftError, OSError):
        raise
    except Exception as e:
        if checkpoints.free(out) < 1 << 20:
            raise EftError("the disk is full", where=out, way_out="free space and run the same command again; "
                           "it continues from the last complete checkpoint") from e  # fmt: skip
        raise


def finish(run: Run, trainer: Any, tokenizer: Any) -> None:
    """Write OUT/final, check that no weight was lost, write the manifest, remove the checkpoints."""
    aside = run.out / ".final"
    if run.main:
        shutil.rmtree(aside, ignore_errors=True)
    run.wait()
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)  # on every rank: ZeRO-3 and FSDP gather here
    if run.main:
        with manifest.clear_disk_errors(run.out):
            save_model(trainer.accelerator.unwrap_model(trainer.model_wrapped), tokenizer, aside, state)
        settle(run, aside, count_parameters(p for p in trainer.model.parameters() if p.requires_grad))
        account(run)
    run.wait()
    run.interrupt.close()


def settle(run: Run, aside: Path, trained: int) -> None:
    """Check the model folder `aside` and put it in place. `trained`: how many parameters were."""
    final = run.out / "final"
    for card in (aside / "README.md", run.out / "README.md"):
        card.unlink(missing_ok=True)  # TRL's and PEFT's; `eft export` writes ours
    check_weights(aside, trained if run.config.lora else run.parameters)
    if run.config.lora:
        write_base(aside, run.model)
    if final.exists():
        shutil.rmtree(final)
    aside.rename(final)


def account(run: Run) -> None:
    """Write the manifest, the last act, and remove the checkpoints of a training that is over."""
    import torch

    out, config, lines = run.out, run.config, read_journal(run.out)
    losses = [line["loss"] for line in lines if "loss" in line]
    tail = losses[-max(1, len(losses) // 10) :]
    evals = [line["eval_loss"] for line in lines if "eval_loss" in line]
    if torch.cuda.is_available():
        memory = torch.cuda.max_memory_allocated()
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    run.counts |= {
        "first_loss": losses[0],
        "final_loss": round(sum(tail) / len(tail), 6),
        "eval_loss_before": evals[0] if evals else None,
        "eval_loss": evals[-1] if evals else None,
        "seconds": round(time.time() - run.started, 1),
        "peak_memory_gb": round(memory / 2**30, 2),
    }
    outputs = [out / JOURNAL, *sorted(f for f in (out / "final").rglob("*") if f.is_file())]
    manifest.write(out, run.verb, config.model_dump(mode="json"), config.sources(), outputs, run.counts, run.started)
    if not config.keep_finished:
        checkpoints.remove(checkpoints.checkpoints(out))
    run.say(
        f"{out / 'final'}: loss {run.counts['first_loss']:.4f} → {run.counts['final_loss']:.4f}, "
        f"{run.counts['seconds']:.0f} s, {run.counts['peak_memory_gb']} GB"
    )


def trainer_options(run: Run) -> dict[str, Any]:
    """Arguments of `load_model`, beside the name. Raises UsageError where weights cannot be kept in `lora: bits`."""
    arguments.check_bits(run.config, run.asked.kind)
    return {
        "bits": run.config.lora.bits if run.config.lora else None,
        "dtype": arguments.load_dtype(run.config, run.asked),
        "attention": arguments.attention(run.config, run.args.use_cpu),
    }
