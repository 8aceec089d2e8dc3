"""Run candidate code out of process and get plain data back: `call` for isolated tasks, `run_contained` for foreign
ones.

`call` sends a program to a warm worker (eft/tasks/worker.py), which forks one child per candidate: own session,
limits on CPU, memory, files, output and wall time, a kernel filter against new processes, signals, sockets and any
writing (on x86-64 and AArch64), an empty environment, an empty working folder. The worker itself sits in bubblewrap
where `bwrap` works: own process, network, IPC and mount namespaces in which only the interpreter exists. Where it
does not, the worker runs plain. `level()` says which of the two it is; $EFT_SANDBOX (plain, bubblewrap) decides it.

What this does not cover: in plain mode a candidate can *read* what this user can read (it cannot write, and has no
network to send it to); memory is limited per process; timing side channels and kernel bugs are out of scope. Task
instances are in the candidate's memory while it works on them, so a scorer must recompute, never believe.

`run_contained` runs a foreign evaluator with its candidate in one process of their own: bubblewrap without network and
with everything read-only but a private /tmp, or plain; killed as a whole at its timeout.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eft.errors import EftError, UsageError, nearest
from eft.records import Validity

LEVEL_VARIABLE = "EFT_SANDBOX"  # what `choose` sets, for this process and its children
LEVELS = ("bubblewrap", "rlimits", "none")
_ALIASES = {"plain": "rlimits"}
_HERE = Path(__file__).parent
_GRACE_S = 10.0  # what a worker gets beyond a candidate's wall limit before it counts as hung itself
_START_S = 60.0
WAY_OUT = (
    "install it (apt-get install bubblewrap, dnf install bubblewrap), or use the container recipe in docs/sandbox.md,"
    " or accept less with `--sandbox rlimits`: candidates can then read this user's files"
)
STDERR_BYTES = 2000  # of what was printed, the end is kept


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
    """What came back: `value` is JSON data when `validity` is VALID, else `error` says why not in one line."""

    value: Any
    validity: Validity
    error: str
    stderr: str  # the last 2 KB of what was printed
    seconds: float  # CPU seconds of the candidate


class _WorkerGone(Exception):
    """The worker ended or hung: not an outcome of the candidate (yet)."""


# ---- workers -----------------------------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    """The whole environment of a candidate: no key, no home; a fixed hash seed, for the order of sets."""
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def _interpreter() -> str:
    """The interpreter outside any virtual environment (a worker needs no site-packages)."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _bubblewrap(*options: str) -> list[str]:
    """bwrap with new namespaces and the system folders that any program needs, read-only."""
    command = ["bwrap", "--unshare-all", "--proc", "/proc", "--dev", "/dev", "--size", "67108864", "--tmpfs", "/tmp"]
    for folder in ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"):
        command += ["--ro-bind-try", folder, folder]
    return [*command, *options]


class _Worker:
    """One warm worker process. Not thread-safe: borrow it from the pool."""

    def __init__(self, level: str) -> None:
        self.owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix="eft-sandbox-"))
        python = [_interpreter(), "-S", "-s", "-B"]
        if level == "bubblewrap":
            prefix = os.path.realpath(sys.base_prefix)
            mounts = ["--ro-bind", prefix, prefix]
            for name in ("worker.py", "seccomp.py"):
                mounts += ["--ro-bind", str(_HERE / name), f"/eft/{name}"]
            command = [
                *_bubblewrap(*mounts, "--dir", "/tmp/work", "--chdir", "/tmp/work"),
                "--",
                *python,
                "/eft/worker.py",
            ]
        else:
            command = [*python, str(_HERE / "worker.py")]
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._work(),
                env=_environment(),
                start_new_session=True,
                bufsize=0,
            )
        try:
            self.filtered: bool = json.loads(self._receive(time.monotonic() + _START_S))["filter"]
        except (_WorkerGone, ValueError, KeyError) as e:
            why = (self.folder / "log").read_text(errors="replace").strip()[-500:] or str(e)
            self.close()
            raise EftError("the sandbox worker did not start", where=command[0], why=why) from None

    def _work(self) -> Path:
        work = self.folder / "work"
        work.mkdir()
        return work

    def call(self, request: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], bytes]:
        """One round trip. Raises _WorkerGone where the worker breaks; it is of no use afterwards."""
        data = json.dumps(request).encode("utf-8", "surrogatepass")
        deadline = time.monotonic() + limits.wall_s + _GRACE_S
        try:
            view = memoryview(struct.pack(">I", len(data)) + data)
            while view:
                view = view[os.write(self.process.stdin.fileno(), view) :]
            return json.loads(self._receive(deadline)), self._receive(deadline, limits.output_kb * 1024)
        except (OSError, ValueError, struct.error) as e:
            raise _WorkerGone(str(e)) from None

    def _receive(self, deadline: float, most: int = 1 << 20) -> bytes:
        (size,) = struct.unpack(">I", self._read(4, deadline))
        if size > most:
            raise _WorkerGone("it sent more than it may")
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        fd, parts = self.process.stdout.fileno(), []
        while size:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise _WorkerGone("it did not answer in time")
            part = os.read(fd, size)
            if not part:
                raise _WorkerGone("it ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """End the worker and everything below it. In a forked copy of this process: only let go of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        if os.getpid() != self.owner:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_idle: list[_Worker] = []
_level: str | None = None


def choose(wanted: str = "auto") -> str:
    """Set the level for this process and its children, and return it. `auto`: what $EFT_SANDBOX says, else bubblewrap.

    bubblewrap  namespaces, limits and kernel filter; rlimits: limits and kernel filter only; none: wall time only.
    Raises UsageError for an unknown level, EftError where bubblewrap is asked for and does not work.
    """
    global _level
    if wanted == "auto":
        wanted = os.environ.get(LEVEL_VARIABLE, "") or "auto"
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in (*LEVELS, "auto"):
        raise UsageError(f"there is no sandbox level '{wanted}'", way_out=nearest(wanted, (*LEVELS, "auto")))
    with _lock:
        chosen = "bubblewrap" if wanted == "auto" else wanted
        if chosen != _level:
            _close_idle()
            _level = None
            if chosen == "bubblewrap" and (why := _bubblewrap_fails()):
                raise EftError("candidates cannot be sandboxed here", why=why, way_out=WAY_OUT)
            _level = chosen
        os.environ[LEVEL_VARIABLE] = chosen
        return chosen


def level() -> str:
    """The level of this process: `bubblewrap`, `rlimits` or `none`. Decided once, by `choose` or on first use."""
    return _level or choose("auto")


def _bubblewrap_fails() -> str:
    """Why no worker can start inside bwrap; "" where one can (present is not enough: containers often forbid it)."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (`bwrap`) is not installed"
    try:
        worker = _Worker("bubblewrap")
    except EftError as e:
        return f"bubblewrap does not work here, often because user namespaces are forbidden: {e.why}"
    _idle.append(worker)
    return ""


def describe() -> str:
    """The sandbox of this machine in words, for reports: level, and whether the kernel filter is on."""
    current = level()
    with _borrow(current) as worker:
        return f"{current}, {'with' if worker.filtered else 'without'} kernel filter"


@contextlib.contextmanager
def _borrow(current: str) -> Iterator[_Worker]:
    """A worker for one call; it goes back to the pool unless the block raised."""
    with _lock:
        worker = _idle.pop() if _idle else None
    if worker is None:
        worker = _Worker(current)
    try:
        yield worker
    except BaseException:
        worker.close()
        raise
    with _lock:
        _idle.append(worker)


def close() -> None:
    """End all idle workers of this process (also done at exit). The next call starts a new one."""
    with _lock:
        _close_idle()


def _close_idle() -> None:
    workers = _idle[:]
    _idle.clear()
    for worker in workers:
        worker.close()


def _after_fork() -> None:
    """A forked process (multiprocessing, OpenEvolve's pool) must not talk to its parent's workers: start its own."""
    global _lock
    _lock = threading.Lock()
    workers = _idle[:]
    _idle.clear()
    for worker in workers:
        worker.close()


atexit.register(close)
os.register_at_fork(after_in_child=_after_fork)


# ---- isolated: code in, data out ---------------------------------------------------------------------------------


def call(code: str, entry: str, *args: Any, driver: str | None = None, limits: Limits = Limits()) -> Outcome:  # noqa: B008
    """Run `code` and return `entry(*args)`; with `driver` (trusted source), return its `drive(function, *args)`.

    `args` and the result are JSON data. Never raises for anything that the candidate does; raises EftError where the
    sandbox itself cannot run.
    """
    request = {"code": code, "entry": entry, "driver": driver, "args": list(args), **dataclasses.asdict(limits)}
    current = level()
    # A worker may be gone for reasons of its own (idle too long, killed by the system): a fresh one tells. A candidate
    # that breaks two workers, where an empty program does not, is to blame.
    for _ in range(2):
        with contextlib.suppress(_WorkerGone), _borrow(current) as worker:
            return _outcome(*worker.call(request, limits), limits)
    try:
        with _borrow(current) as worker:
            worker.call({**request, "code": "", "args": []}, limits)
    except _WorkerGone as e:
        raise EftError("the sandbox does not work any more", why=f"its worker failed on an empty program: {e}",
                       way_out="check free memory and the limit on processes") from None  # fmt: skip
    return Outcome(None, Validity.ERROR, "the program broke the process that ran it", "", 0.0)


def _outcome(head: dict[str, Any], payload: bytes, limits: Limits) -> Outcome:
    status, number = head["status"], head["signal"]
    stderr, seconds = head["stderr"], head["cpu_s"]

    def failed(validity: Validity, error: str) -> Outcome:
        return Outcome(None, validity, error, stderr, seconds)

    if status == "wall":
        return failed(Validity.TIMEOUT, f"not finished after {limits.wall_s:g} s")
    if status == "output":
        return failed(Validity.ERROR, f"the result is larger than {limits.output_kb} KB")
    if number == signal.SIGXCPU or (number == signal.SIGKILL and seconds >= limits.cpu_s):
        return failed(Validity.TIMEOUT, f"used more than {limits.cpu_s} s of CPU time")
    if status == "died":
        name = signal.Signals(number).name if number in set(signal.Signals) else "no signal"
        return failed(Validity.ERROR, f"the program's process ended before it returned a value ({name})")
    if not payload:
        return failed(Validity.ERROR, "the program ended its process before it returned a value")
    try:
        data = json.loads(payload[1:])
        if payload[:1] == b"V":
            return Outcome(data, Validity.VALID, "", stderr, seconds)
        line = int(data["line"])
        error = str(data["error"])[:500]
    except (ValueError, KeyError, TypeError, RecursionError):  # the candidate wrote to the result pipe by itself
        return failed(Validity.ERROR, "the program returned something that is not JSON data")
    return failed(Validity.ERROR, f"{error} (line {line})" if line else error)


# ---- contained: a foreign evaluator and its candidate together ---------------------------------------------------

_MARK = "EFT_CONTAINED"  # in the environment of everything that a contained run starts, so that all of it can be found


def run_contained(evaluator: Path, code: str, *, suffix: str, timeout_s: float, memory_mb: int = 16384,
                  hidden: bool = False) -> Outcome:  # fmt: skip
    """Run `evaluate(program_path)` of a foreign evaluator with `code`, both in one sandboxed process tree.

    The value is {metrics, artifacts}. Never raises for anything that evaluator or candidate do.
    """
    mark = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="eft-contained-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = folder / f"program{suffix}"
        program.write_bytes(code.encode("utf-8", "surrogatepass"))
        read, write = os.pipe()
        command = [
            sys.executable,
            "-s",
            "-B",
            str(_HERE / "contained.py"),
            str(evaluator),
            str(program),
            str(memory_mb),
            str(write),
            *(["hidden"] if hidden else []),
        ]
        if level() == "bubblewrap":
            command = _contained_bubblewrap(folder, evaluator.parent) + command
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        environment = {**_environment(), _MARK: mark, "HOME": name, "TMPDIR": name, "PATH": path}
        started = time.monotonic()
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=name,
                env=environment,
                start_new_session=True,
                pass_fds=(write,),
            )
        os.close(write)
        try:
            payload, why = _collect(read, started + timeout_s)
        finally:
            os.close(read)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _end_marked(mark)
        seconds = time.monotonic() - started
        with open(folder / "log", "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - STDERR_BYTES))
            stderr = log.read().decode("utf-8", "replace")
    if why == "timeout":
        return Outcome(None, Validity.TIMEOUT, f"not finished after {timeout_s:g} s", stderr, seconds)
    try:
        value = json.loads(payload)
        if not isinstance(value, dict):
            raise ValueError
    except (ValueError, RecursionError):
        why = why or "the evaluator's process ended without a result"
        return Outcome(None, Validity.ERROR, why, stderr, seconds)
    if "error" in value:
        return Outcome(None, Validity.ERROR, str(value["error"])[:500], stderr, seconds)
    return Outcome(value, Validity.VALID, "", stderr, seconds)


def _contained_bubblewrap(work: Path, task: Path) -> list[str]:
    """Foreign evaluators need their own packages and data: all of the machine, but read-only, and no network."""
    options = ["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for visible in (sys.prefix, str(_HERE), str(task)):  # these may lie under /tmp
        options += ["--ro-bind", visible, visible]
    return ["bwrap", *options, "--bind", str(work), str(work), "--chdir", str(work), "--"]


def _collect(fd: int, deadline: float, most: int = 4 << 20) -> tuple[bytes, str]:
    """All bytes until the end of the stream, and "" or why reading stopped early."""
    data = b""
    while True:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return b"", "timeout"
        part = os.read(fd, 65536)
        if not part:
            return data, ""
        data += part
        if len(data) > most:
            return b"", "the evaluator's result is larger than 4 MB"


def _end_marked(mark: str) -> None:
    """Kill what left its process group (plain mode; in bubblewrap the process namespace takes everything along)."""
    wanted = f"{_MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
