"""What is written while a model trains: the journal of losses and the line with the time left; and the alarms.

`losses.jsonl` gets one JSON object per logged step, whatever else reports: step, loss, grad_norm, learning_rate, TRL's
metrics and the meter's; lines with eval_… come from held-out rows. A resumed run cuts off what an earlier one wrote
after its checkpoint. Alarms stop a training that does not train: a loss that is no number, gradients that explode or
are zero.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from eft import manifest
from eft.errors import EftError
from eft.manifest import write_text
from eft.train.meter import StepRows

JOURNAL = "losses.jsonl"
STOPPED = "stopped.json"
FIRST = 3  # logged steps on which the gradient must be positive: later it may vanish for good reasons
ROW = 3  # steps in a row that make an explosion: single spikes are clipped and pass
HISTORY = 50  # steps whose median the norms are held against
BAR = 20  # characters


def read_journal(out: Path) -> list[dict[str, Any]]:
    """The lines of losses.jsonl so far; a torn last line is left out."""
    return read_lines(out / JOURNAL)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file up to the first torn one; [] where there is no file."""
    lines = []
    if file.exists():
        for line in file.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                break
    return lines


def cut(file: Path, step: int) -> None:
    """Keep the lines of a JSON-lines file up to `step`, of those that have one; at step 0 none."""
    kept = [line for line in read_lines(file) if line["step"] <= step] if step else []
    write_text(file, "".join(json.dumps(line) + "\n" for line in kept))


class Journal(TrainerCallback):
    """Writes losses.jsonl, and one progress line to stderr."""

    def __init__(self, out: Path, verb: str, resumed: int) -> None:
        """`resumed`: the step of the checkpoint that training continues from, 0 for a fresh one."""
        self.out, self.verb, self.resumed = out, verb, resumed
        self.live = os.environ.get("EFT_TTY") == "1" or sys.stderr.isatty()
        self.printed = 0.0
        self.first: float | None = None  # when the first step began

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.time()
        if state.is_world_process_zero:
            cut(self.out / JOURNAL, self.resumed)
            (self.out / STOPPED).unlink(missing_ok=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.first is None:
            self.first = time.time()

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
        pace = (now - (self.first or self.started)) / max(done, 1)
        text = " ".join(
            [
                f"{self.verb}: {bar(state.global_step / state.max_steps)} {state.global_step}/{state.max_steps} ",
                f"loss {logs['loss']:.4f} ",
                f"grad {logs.get('grad_norm') or 0:.3g} ",
                *([f"{amount(logs['tokens_per_second'])} tok/s "] if "tokens_per_second" in logs else []),
                *([f"MFU {logs['mfu']:.0%} "] if "mfu" in logs else []),
                f"{pace:.1f} s/step ",
                f"{clock(pace * (state.max_steps - state.global_step))} left",
            ]
        )
        print(self.fitted(text), end="\n" if last or not self.live else "", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        print(self.fitted(text), file=sys.stderr, flush=True)

    def fitted(self, text: str) -> str:
        """On a terminal: over the live line, and no longer than a line is wide, or it could not be written over."""
        width = shutil.get_terminal_size((120, 24)).columns - 1
        return f"\r{text[:width]:<{width}}" if self.live else text


def bar(share: float) -> str:
    """`share` of a bar."""
    full = round(BAR * min(max(share, 0.0), 1.0))
    return "[" + "#" * full + "." * (BAR - full) + "]"


def amount(number: float) -> str:
    """A number in three digits: 987, 12.3k, 1.2M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """A stretch of time as people say it: 45 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


class Alarms(TrainerCallback):
    """Stops, on all ranks alike, what looks like training and is none, and leaves a report: OUT/stopped.json.

    The loss and the norm are the same numbers on every rank, so all stop at the same step. They are looked at before
    every checkpoint too, however rarely the recipe logs: weights that are no numbers are never saved.
    """

    def __init__(
        self, out: Path, rows: StepRows | None = None, *, explode: float | None = None, clip: float = 1.0
    ) -> None:
        """`explode`: how many times its median a norm over `clip` may be; None: as much as it likes."""
        self.out, self.rows, self.explode, self.clip = out, rows, explode, clip
        self.norms: deque[float] = deque(maxlen=HISTORY)
        self.seen = self.high = self.looked = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.looked = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_save:
            control.should_log = True  # logging comes before saving, and the alarms with it

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        loss, norm = logs["loss"], logs.get("grad_norm")
        if not math.isfinite(loss) or (norm is not None and not math.isfinite(norm)):
            self.stop(state, logs, "the training has diverged", "lower learning_rate, or look at the rows of this step")
        self.seen += 1
        if self.seen <= FIRST and not norm:
            self.stop(
                state,
                logs,
                "the gradient is zero: nothing is being trained",
                "check that the rows have responses, and `lora: targets`",
            )
        if self.explode and norm is not None:
            usual = statistics.median(self.norms) if len(self.norms) >= 10 else math.inf
            self.high = self.high + 1 if norm > max(self.clip, self.explode * usual) else 0
            if self.high >= ROW:
                self.stop(
                    state,
                    logs,
                    f"the gradient has exploded: its norm is {norm / usual:.0f} times the usual {usual:.3g}",
                    "lower learning_rate, or raise `explode` if that is expected",
                )
            if not self.high:
                self.norms.append(norm)
        self.looked = state.global_step

    def stop(self, state: Any, logs: dict[str, Any], what: str, way_out: str) -> None:
        """Write the report and raise EftError."""
        step, first = state.global_step, self.looked + 1
        tail = [
            f"step {x['step']}: loss {x['loss']}, norm {x.get('grad_norm')}, rate {x.get('learning_rate')}"
            for x in read_journal(self.out)[-40:]
            if "loss" in x
        ][-5:]
        rows = self.rows.ids(first, step) if self.rows else []
        if state.is_world_process_zero:
            report = {
                "what": what, "step": step, "loss": str(logs["loss"]), "grad_norm": str(logs.get("grad_norm")),
                "first_step_of_the_rows": first, "rows": rows, "journal": read_journal(self.out)[-20:],
            }  # fmt: skip
            manifest.write_json(self.out / STOPPED, report)
        shown = ", ".join(rows[:8]) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        why = [f"loss {logs['loss']}, gradient norm {logs.get('grad_norm')}", *([f"rows: {shown}"] if rows else []), *tail]
        raise EftError(
            what,
            where=f"step {step}",
            why="\n    ".join(why),
            way_out=f"{way_out}; the report is {self.out / STOPPED}, checkpoints before this step are kept",
        )
