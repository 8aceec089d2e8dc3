"""Run candidate code out of process and get plain data back. What this does not cover comes first:

- The kernel is trusted: a hole in it, in bubblewrap or in the processor is a hole here. So are timing side channels.
- Level `rlimits` has no namespaces. Without Landlock in the kernel a candidate can read what this user can read, and
  a *contained* evaluation can do what this user can do. Level `none` stops nothing but the clock.
- Memory is limited per process. An isolated candidate is one process; a contained evaluation is bounded by count too.
- A candidate holds the instances that it works on, so a scorer must recompute, never believe; what it must not foresee
  belongs in a driver of its own process (`apart`).
- A `contained` evaluator shares its process with the candidate, which can say any score. Only its harm is bounded.

`call` sends a program to a warm worker (worker.py), which forks for each candidate: own session, limits on CPU, memory,
files, output and wall time, a kernel filter against new processes, signals, sockets and any writing (seccomp.py), an
empty environment, an empty working folder. At the level `bubblewrap` the worker sits in namespaces of its own, in which
only the interpreter exists (jail.py). `call_binary` does the same for a compiled program (cpp.py). Foreign evaluators
run with their candidate in one process tree: contained.py.

The level is decided once, by `choose` or on first use, and holds for child processes too ($EFT_SANDBOX).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import struct
import threading
from typing import Any

from eft.errors import EftError, UsageError, nearest
from eft.records import Validity
from eft.tasks import jail, pool

LEVEL_VARIABLE = "EFT_SANDBOX"  # what `choose` sets, for this process and its children
LEVELS = ("bubblewrap", "rlimits", "none")
_ALIASES = {"plain": "rlimits"}
WAY_OUT = (
    "install it (apt-get install bubblewrap, dnf install bubblewrap), or use the container recipe in docs/sandbox.md,"
    " or accept less with `--sandbox rlimits`: without namespaces (see there what that means)"
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one candidate. CPU time decides (whole seconds, the same on a busy machine); wall time is the
    backstop."""

    wall_s: float = 15.0
    cpu_s: int = 1
    memory_mb: int = 512
    output_kb: int = 256  # of the result; what is printed is drained, and its last 2 KB kept


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came back: `value` is JSON data (text, of a binary) when `validity` is VALID, else `error` says why not in
    one line."""

    value: Any
    validity: Validity
    error: str
    stderr: str  # the last 2 KB of what was printed
    seconds: float  # CPU seconds of the candidate (wall seconds of a contained evaluation)


# ---- levels ------------------------------------------------------------------------------------------------------

wall_cap_s: float | None = None  # caps every wall limit of this process; only attacks.py sets it
_choosing = threading.RLock()
_level: str | None = None


def choose(wanted: str = "auto") -> str:
    """Set the level for this process and its children, and return it. `auto`: what $EFT_SANDBOX says, else bubblewrap.

    bubblewrap  namespaces, limits, kernel filter; rlimits: limits, kernel filter, Landlock; none: wall time only.
    Raises UsageError for an unknown level, EftError where bubblewrap is asked for and does not work.
    """
    global _level
    if wanted == "auto":
        wanted = os.environ.get(LEVEL_VARIABLE, "") or "auto"
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in (*LEVELS, "auto"):
        raise UsageError(f"there is no sandbox level '{wanted}'", way_out=nearest(wanted, (*LEVELS, "auto")))
    chosen = "bubblewrap" if wanted == "auto" else wanted
    with _choosing:
        if chosen != _level:
            pool.close()
            _level = None
            if chosen == "bubblewrap" and (why := bubblewrap_fails()):
                raise EftError("candidates cannot be sandboxed here", why=why, way_out=WAY_OUT)
            _level = chosen
        os.environ[LEVEL_VARIABLE] = chosen
    return chosen


def level() -> str:
    """The level of this process: `bubblewrap`, `rlimits` or `none`. Decided once, by `choose` or on first use."""
    return _level or choose("auto")


def bubblewrap_fails() -> str:
    """Why no worker can start inside bwrap; "" where one can (present is not enough: containers often forbid it)."""
    if not jail.installed():
        return "bubblewrap (`bwrap`) is not installed"
    try:
        with pool.borrow("bubblewrap"):
            return ""
    except EftError as e:
        return f"bubblewrap does not work here, often because user namespaces are forbidden: {e.why}"


def describe() -> str:
    """The sandbox of this machine in words, for reports: level, and whether the kernel filter is on."""
    current = level()
    if current == "none":
        return "none: candidates were not sandboxed"
    with pool.borrow(current) as worker:
        filtered = f"{current}, {'with' if worker.filtered else 'without'} kernel filter"
        return filtered + (f", {'with' if worker.landlocked else 'without'} Landlock" if current == "rlimits" else "")


close = pool.close


# ---- isolated: code in, data out ---------------------------------------------------------------------------------


def call(
    code: str, entry: str, *args: Any, driver: str | None = None, apart: bool = False,
    limits: Limits = Limits(),  # noqa: B008
) -> Outcome:  # fmt: skip
    """Run `code` and return `entry(*args)`; with `driver` (trusted source), return its `drive(function, *args)`.

    `apart`: the driver has a process of its own, the candidate sees nothing but the arguments of each call (apart.py).
    `args` and the result are JSON data. Never raises for anything that the candidate does; raises EftError where the
    sandbox itself cannot run.
    """
    if apart and driver is None:
        raise ValueError("apart needs a driver")
    body = {"code": code, "entry": entry, "driver": driver, "args": list(args)}
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    empty = json.dumps({**body, "code": "", "args": []}).encode()
    answer = _round_trip("apart" if apart else "python", data, empty, limits)
    return _broken() if answer is None else _python_outcome(*answer, limits)


def call_binary(binary: bytes, text: str, limits: Limits = Limits()) -> Outcome:  # noqa: B008
    """Run a compiled program with `text` on its standard input; the value is what it wrote to its standard output."""
    data = struct.pack(">I", len(binary)) + binary + text.encode()
    answer = _round_trip("binary", data, struct.pack(">I", 0), limits)
    if answer is None:
        return _broken()
    head, payload = answer
    if (failure := _failure(head, limits)) is not None:
        return failure
    return Outcome(payload.decode("utf-8", "replace"), Validity.VALID, "", head["stderr"], head["cpu_s"])


def _broken() -> Outcome:
    return Outcome(None, Validity.ERROR, "the program broke the process that ran it", "", 0.0)


def _round_trip(kind: str, body: bytes, empty: bytes, limits: Limits) -> tuple[dict[str, Any], bytes] | None:
    """A worker's answer, or None for a candidate that breaks workers. Raises EftError where all workers break.

    A worker may be gone for reasons of its own (idle too long, killed by the system): a fresh one tells. A candidate
    that breaks two workers, where an empty program does not, is to blame.
    """
    head = {"kind": kind, **dataclasses.asdict(limits)}
    if wall_cap_s is not None:
        head["wall_s"] = min(head["wall_s"], wall_cap_s)
    current = level()
    for _ in range(2):
        with contextlib.suppress(pool.WorkerGone), pool.borrow(current) as worker:
            return worker.call(head, body)
    try:
        with pool.borrow(current) as worker:
            worker.call(head, empty)
    except pool.WorkerGone as e:
        raise EftError("the sandbox does not work any more", why=f"its worker failed on an empty program: {e}",
                       way_out="check free memory and the limit on processes") from None  # fmt: skip
    return None


def _failure(head: dict[str, Any], limits: Limits) -> Outcome | None:
    """Why the candidate's process gave no answer; None where it ended well."""
    status, number, seconds = head["status"], head["signal"], head["cpu_s"]

    def failed(validity: Validity, error: str) -> Outcome:
        return Outcome(None, validity, error, head["stderr"], seconds)

    if status == "wall":
        return failed(Validity.TIMEOUT, f"not finished after {limits.wall_s:g} s")
    if status == "output":
        return failed(Validity.ERROR, f"the result is larger than {limits.output_kb} KB")
    if number == signal.SIGXCPU or (number == signal.SIGKILL and seconds >= limits.cpu_s):
        return failed(Validity.TIMEOUT, f"used more than {limits.cpu_s} s of CPU time")
    if status == "died":
        how = signal.Signals(number).name if number in set(signal.Signals) else f"exit status {head['exit']}"
        return failed(Validity.ERROR, f"the program's process ended before it returned a value ({how})")
    return None


def _python_outcome(head: dict[str, Any], payload: bytes, limits: Limits) -> Outcome:
    if (failure := _failure(head, limits)) is not None:
        return failure
    stderr, seconds = head["stderr"], head["cpu_s"]
    if not payload:
        why = "the program ended its process before it returned a value"
        return Outcome(None, Validity.ERROR, why, stderr, seconds)
    try:
        data = json.loads(payload[1:])
        if payload[:1] == b"V":
            return Outcome(data, Validity.VALID, "", stderr, seconds)
        line = int(data["line"])
        error = str(data["error"])[:500]
    except (ValueError, KeyError, TypeError, RecursionError):  # the candidate wrote to the result pipe by itself
        return Outcome(None, Validity.ERROR, "the program returned something that is not JSON data", stderr, seconds)
    return Outcome(None, Validity.ERROR, f"{error} (line {line})" if line else error, stderr, seconds)
