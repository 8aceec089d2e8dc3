"""SIGTERM: finish the step, save a checkpoint on all ranks, and say that the same command continues.

Clusters announce the end of a job with a signal, to one process or to all, and not at the same instant. So a rank that
gets one only notes it; at the end of every step the ranks agree whether anybody has, and all save the same step. Then
`Interrupted` is raised: `eft sft` ends with exit code 75 (EX_TEMPFAIL: try again), and OUT/interrupted.json stands
until the next start, for those who see the exit code of Accelerate's launcher only, which is 1 for everything. Before
the first step there is nothing to save, and the end comes at once.

The time that a cluster must leave: two steps and a checkpoint.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from eft import manifest
from eft.train.launch import Interrupted

MARK = "interrupted.json"


class Interrupt(TrainerCallback):
    """Listens from its making on. It must come after the callbacks that decide about evaluations."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.asked = False  # this rank got the signal
        self.stopped = False  # all ranks have agreed to stop
        self.training = False
        self.before: Any = None
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, self._noted)

    def _noted(self, number: int, frame: Any) -> None:
        self.asked = True
        if not self.training:
            raise Interrupted("the training was interrupted before its first step", way_out="run the same command again")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.training = True

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.asked and not self.training:
            self._noted(signal.SIGTERM, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if anybody(self.asked, args.device) and state.global_step < state.max_steps:
            self.stopped = True
            control.should_evaluate = False  # it may take longer than there is time; nothing depends on it
            control.should_save = control.should_training_stop = True

    def end(self, step: int, main: bool) -> None:
        """After training: raise Interrupted where it was stopped; else SIGTERM is ignored until `close`, since what
        follows is the model's last save, which is quicker than to come back for it."""
        if self.stopped:
            where = self.out / f"checkpoint-{step}"
            if main:
                manifest.write_json(self.out / MARK, {"step": step, "checkpoint": where.name})
            raise Interrupted(
                f"the training was interrupted and has saved step {step}",
                where=where,
                why="it got SIGTERM",
                way_out="run the same command again: it continues from there",
            )
        if self.before is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def close(self) -> None:
        """Let SIGTERM be what it was."""
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)


def anybody(asked: bool, device: Any) -> bool:
    """Has any rank been asked to stop? The same answer on all of them; every rank must call it."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return asked
    flag = torch.tensor([int(asked)], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
