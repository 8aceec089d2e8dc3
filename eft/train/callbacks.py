"""What is watched while a model trains: the journal of losses, the line with the time left, and the alarms.

`losses.jsonl` gets one JSON object per logged step, whatever else reports: step, loss, grad_norm, learning_rate and
TRL's metrics; lines with eval_loss come from the validation rows. A resumed run cuts off what an earlier one wrote
after its checkpoint. Alarms stop a training that does not train: a loss that is no number, a gradient of zero.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from eft.errors import EftError
from eft.manifest import write_text

JOURNAL = "losses.jsonl"
FIRST = 3  # logged steps on which the gradient must be positive: later it may vanish for good reasons


def read_journal(out: Path) -> list[dict[str, Any]]:
    """The lines of losses.jsonl so far; a torn last line is left out."""
    lines = []
    if (out / JOURNAL).exists():
        for line in (out / JOURNAL).read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                break
    return lines


class Journal(TrainerCallback):
    """Writes losses.jsonl, and one progress line to stderr."""

    def __init__(self, out: Path, verb: str, resumed: int) -> None:
        """`resumed`: the step of the checkpoint that training continues from, 0 for a fresh one."""
        self.out, self.verb, self.resumed = out, verb, resumed
        self.live = os.environ.get("EFT_TTY") == "1" or sys.stderr.isatty()
        self.printed = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.time()
        if state.is_world_process_zero:
            kept = [line for line in read_journal(self.out) if line["step"] <= self.resumed] if self.resumed else []
            write_text(self.out / JOURNAL, "".join(json.dumps(line) + "\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        line = {"step": state.global_step, "seconds": round(time.time() - self.started, 2), **logs}
        line = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in line.items()}
        with open(self.out / JOURNAL, "a") as journal:
            journal.write(json.dumps(line) + "\n")
        if "loss" in logs:
            self.progress(state, logs)
        elif "eval_loss" in logs:
            self.say(f"{self.verb}: step {state.global_step}: loss {logs['eval_loss']:.4f} on the validation rows")

    def progress(self, state: Any, logs: dict[str, Any]) -> None:
        """Print where training is, a live line on a terminal, else a line every 15 seconds."""
        now, last = time.time(), state.global_step >= state.max_steps
        if now - self.printed < (0.2 if self.live else 15) and not last:
            return
        self.printed = now
        done = state.global_step - self.resumed
        pace = (now - self.started) / max(done, 1)
        left = pace * (state.max_steps - state.global_step)
        text = (
            f"{self.verb}: step {state.global_step}/{state.max_steps}  loss {logs['loss']:.4f}  "
            f"grad {logs.get('grad_norm') or 0:.3g}  {pace:.1f} s/step  {left / 60:.1f} min left"
        )
        print(
            f"\r{text:<100}" if self.live else text,
            end="\n" if last or not self.live else "",
            file=sys.stderr,
            flush=True,
        )

    def say(self, text: str) -> None:
        print(f"\r{text:<100}" if self.live else text, file=sys.stderr, flush=True)


class Alarms(TrainerCallback):
    """Stops, on all ranks alike, what looks like training and is none."""

    def __init__(self) -> None:
        self.seen = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        loss, norm = logs["loss"], logs.get("grad_norm")
        where = f"step {state.global_step}"
        if not math.isfinite(loss) or (norm is not None and not math.isfinite(norm)):
            raise EftError(
                "the training has diverged",
                where=where,
                why=f"loss {loss}, gradient norm {norm}",
                way_out="lower learning_rate; checkpoints before this step are kept",
            )
        self.seen += 1
        if self.seen <= FIRST and not norm:
            raise EftError(
                "the gradient is zero: nothing is being trained",
                where=where,
                why=f"loss {loss}, gradient norm {norm}",
                way_out="check that the rows have responses, and `lora: targets`",
            )
