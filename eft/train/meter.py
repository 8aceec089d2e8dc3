"""How fast a training is, and what that makes of the machine: tokens per second, MFU, memory; and what watching costs.

The rows of every step are known before it is taken (data.py decides the order), so nothing is counted on tensors and
no rank is asked. Every logged step gains
- `tokens_per_second`: tokens that are no padding, over all ranks; prompts count, loss or not;
- `mfu`: see eft/train/flops.py; absent where the device's peak or the model's cost is not known;
- `step_seconds`: of a step with its data loading, without evaluations, checkpoints and sampled mutations;
- `memory_gb`: of the main process; on a GPU the most that was allocated so far;
- `desirable_share`, for KTO: the improved rows among those of the steps since the last line.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

# Events of transformers' callbacks that a training step has
EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_log")


class StepRows:
    """The rows of every step, as columns of the training set in its order. `per_step`: rows of it that a step takes."""

    def __init__(self, train: Any, per_step: int) -> None:
        self.train, self.per_step = train, per_step

    def column(self, name: str, first: int = 1, last: int | None = None) -> list[Any] | None:
        """A column's values over the steps `first` to `last` (from 1, None: all); None where there is no such column."""
        if name not in self.train.column_names:
            return None
        end = len(self.train) if last is None else min(last * self.per_step, len(self.train))
        return list(self.train[range((first - 1) * self.per_step, end)][name]) if end else []

    def ids(self, first: int, last: int) -> list[str]:
        """The ids of the rows of some steps, [] where the tokens were written without."""
        found = self.column("id", first, last) or []
        return [i for each in found for i in (each if isinstance(each, list) else [each])]


class Meter(TrainerCallback):
    """Adds the figures above to every line that has a loss. It must be the first callback, so that all others see them,
    and `Restart` the last, so that the clock leaves out what is no training."""

    def __init__(self, rows: StepRows | None, *, work: Work | None, peak: float | None, ranks: int) -> None:
        """`peak`: FLOP/s of one rank's device."""
        self.rows, self.work, self.peak, self.ranks = rows, work, peak, ranks
        self.mark = time.perf_counter()
        self.busy, self.logged, self.total_busy, self.total_tokens = 0.0, 0, 0.0, 0.0
        self.total_flops = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.logged = state.global_step
        if self.rows and state.is_world_process_zero:
            self.tokens, self.flops = per_step(self.rows, self.work)
            labels = self.rows.column("label")
            self.labels = None if labels is None else [bool(x) for x in labels]
        self.mark = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        self.busy += now - self.mark
        self.mark = now

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs or not state.is_world_process_zero or state.global_step <= self.logged:
            return
        steps = slice(self.logged, state.global_step)
        logs["step_seconds"] = round(self.busy / (state.global_step - self.logged), 4)
        if self.rows:
            tokens = self.tokens[steps].sum()
            logs["tokens_per_second"] = round(tokens / self.busy, 1)
            self.total_tokens += tokens
            if self.flops is not None:
                done = self.flops[steps].sum()
                self.total_flops += done
                if self.peak:
                    logs["mfu"] = round(done / (self.busy * self.ranks * self.peak), 4)
            if self.labels is not None:
                chosen = self.labels[self.logged * self.rows.per_step : state.global_step * self.rows.per_step]
                logs["desirable_share"] = round(sum(chosen) / max(len(chosen), 1), 4)
        logs["memory_gb"] = round(memory() / 2**30, 3)
        self.total_busy += self.busy
        self.busy, self.logged = 0.0, state.global_step

    def totals(self) -> dict[str, Any]:
        """Means over the steps of this process, for the manifest."""
        if not self.total_busy or not self.total_tokens:
            return {}
        found = {"tokens_per_second": round(self.total_tokens / self.total_busy, 1)}
        if self.total_flops and self.peak:
            found["mfu"] = round(self.total_flops / (self.total_busy * self.ranks * self.peak), 4)
        return found


class Restart(TrainerCallback):
    """Takes up the meter's clock again behind everything that is no training step."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def restart(self, *args: Any, **kwargs: Any) -> None:
        self.meter.mark = time.perf_counter()

    on_train_begin = on_evaluate = on_save = restart


@dataclass(frozen=True)
class Work:
    """What a training needs of a row. `cost`: a flops.Count; `passes`: forward passes that it is worth (3: forward and
    backward); `mismatched`: KTO's pass over one more completion behind the same prompt."""

    cost: Any
    passes: float = 3
    mismatched: bool = False

    def flops(self, length: Any, scored: Any) -> Any:
        """FLOPs of each row, arrays of its tokens and of those with loss -> array. The mismatched completion is taken to
        be as long as the row's own: within a micro batch they are the same ones."""
        once = self.cost.rows(length, scored)
        more = once - self.cost.rows(length - scored, 0 * scored) if self.mismatched else 0
        return self.passes * once + more


def per_step(rows: StepRows, work: Work | None) -> tuple[Any, Any]:
    """(tokens, FLOPs) of every step, arrays; the FLOPs are None without `work`."""
    import numpy as np

    length = np.asarray(rows.column("length"), dtype=np.float64)
    response = rows.column("response")
    scored = length if response is None else np.asarray(response, dtype=np.float64)
    edges = np.arange(0, len(length), rows.per_step)
    tokens = np.add.reduceat(length, edges)
    if work is None:
        return tokens, None
    packed = rows.column("lengths")
    if packed is None:
        return tokens, np.add.reduceat(work.flops(length, scored), edges)
    # attention does not cross the rows of a pack
    flat = np.asarray([n for row in packed for n in row], dtype=np.float64)
    starts = np.cumsum([0, *(len(row) for row in packed[:-1])])
    body = np.add.reduceat(work.cost.rows(flat, np.zeros(len(flat))), starts)
    return tokens, np.add.reduceat(work.passes * (body + 2 * work.cost.head * scored), edges)


def memory() -> float:
    """Bytes: on a GPU the most that this process had allocated, else its resident memory now."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import psutil

    return psutil.Process().memory_info().rss


def peak(args: Any, precision: str) -> float | None:
    """FLOP/s that one rank's device could do in the products of this training: from the table on a GPU, measured on a
    CPU."""
    import torch

    from eft.train import flops

    dtype = "float32" if precision == "fp32" else "bfloat16"
    return flops.cpu_peak(dtype) if args.use_cpu else flops.peak(torch.cuda.get_device_name(), dtype)


class Costs:
    """Seconds that each callback takes within training steps, by class name.

    `Costs(trainer)` wraps the callbacks that the trainer has by then. Evaluations and checkpoints hang on other events,
    and the watch, which looks at held-out rows and samples, is left out.
    """

    def __init__(self, trainer: Any) -> None:
        self.seconds: dict[str, float] = {}
        for callback in trainer.callback_handler.callbacks:
            if type(callback).__name__ == "Watch":
                continue
            for event in EVENTS:
                if getattr(type(callback), event) is not getattr(TrainerCallback, event):
                    setattr(callback, event, self._timed(getattr(callback, event), type(callback).__name__))

    def _timed(self, call: Any, name: str) -> Any:
        import torch
        import torch.distributed as dist

        # What several ranks agree on at the end of a step waits for the GPU to finish it: that is the step's time.
        waits = name == "Interrupt" and torch.cuda.is_available() and dist.is_initialized()

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if waits:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

        return timed
