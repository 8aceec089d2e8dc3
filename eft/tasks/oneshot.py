"""Run one command in a sandbox of its own and take it away as a whole: foreign evaluators, and the C++ compiler.

At the level `bubblewrap` the command has namespaces of its own, sees the system folders and what is named in
`readable`, and writes only to a private /tmp in memory. At `rlimits` it has a temporary folder, limits, and a guard
that ends what it leaves behind. In both a watch counts its processes and their memory: limits of the kernel hold for
one process, or not at all for root. It ends at its time limit, and where this process dies (within its guard's reach).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from eft.tasks import jail

HERE = Path(__file__).parent
INSIDE = "/eft"  # where the inner scripts lie in bubblewrap
WORK = "/tmp/work"
WATCH_S = 0.05
TAIL = 2000
SPARE_MB = 256  # below this much free memory of the machine an evaluation is ended
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Of the whole tree: wall seconds, memory, processes, bytes of result. Of one process: CPU seconds, file size."""

    wall_s: float
    memory_mb: int = 16384
    processes: int = 256
    disk_mb: int = 256
    result_kb: int = 4096


@dataclasses.dataclass(frozen=True)
class Ended:
    """`result`: what was written to the result descriptor; `why`: why it was stopped, or ""; `printed`: the tail."""

    result: bytes
    why: str
    printed: str
    seconds: float
    exit_code: int


def run(
    script: str, arguments: Callable[[str, str], list[str]], bounds: Bounds, *, level: str, files: dict[str, bytes],
    readable: tuple[Path, ...] = (), python: str | None = None, tail: int = TAIL,
) -> Ended:  # fmt: skip
    """Run an inner script (contained.py, launch.py) with `files` in its working folder.

    `arguments`: of that folder and of the descriptor for the result; they come after the five limits of launch.py.
    `python`: its interpreter (default: a bare one); `tail`: bytes kept of what is printed.
    """
    bare = python is None
    python = python or jail.interpreter()
    with contextlib.ExitStack() as stack:
        read, write = os.pipe()
        stack.callback(os.close, read)
        descriptors = [write]
        boxed = level == "bubblewrap"
        home = WORK if boxed else stack.enter_context(_folder())
        options = ["-S", "-s", "-B"] if bare else ["-s", "-B"]
        inner = [python, *options, f"{INSIDE if boxed else HERE}/{script}", *_limits(bounds, level)]
        inner += arguments(home, str(write))
        if boxed:
            mounts = _visible(readable, bare)
            for name in ("launch.py", "landlock.py", "reap.py", "contained.py"):
                mounts += ["--ro-bind", str(HERE / name), f"{INSIDE}/{name}"]
            mounts += ["--dir", WORK, "--chdir", WORK]
            for name, data in files.items():
                fd = os.memfd_create(name)
                descriptors.append(fd)
                os.write(fd, data)
                os.lseek(fd, 0, os.SEEK_SET)
                mounts += ["--file", str(fd), f"{WORK}/{name}"]
            inner = [*jail.bubblewrap(*mounts, tmp_mb=bounds.disk_mb, die_with_parent=True), "--", *inner]
        else:
            for name, data in files.items():
                Path(home, name).write_bytes(data)
        environment = {**jail.environment(), "HOME": home, "USER": "eft", "TMPDIR": "/tmp" if boxed else home,
                       "PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin"}  # fmt: skip
        started = time.monotonic()
        process = subprocess.Popen(
            inner, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
            cwd="/" if boxed else home, env=environment, start_new_session=True, pass_fds=tuple(descriptors),
        )  # fmt: skip
        for fd in descriptors:
            os.close(fd)
        try:
            result, printed, why = _watch(process, read, bounds, started, tail)
            if not why:  # it is on its way out: its exit status counts
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        finally:
            code = _end(process, gently=not boxed)
        with contextlib.suppress(OSError):  # what was still in the pipe
            os.set_blocking(process.stdout.fileno(), False)
            while part := os.read(process.stdout.fileno(), 65536):
                printed = (printed + part)[-tail:]
        process.stdout.close()
        return Ended(result, why, printed.decode("utf-8", "replace"), time.monotonic() - started, code)


def _limits(bounds: Bounds, level: str) -> list[str]:
    """The arguments of launch.py. A limit on processes where the kernel counts those of this namespace only."""
    release = tuple(int(p) for p in platform.release().split("-")[0].split(".")[:2])
    processes = bounds.processes if level == "bubblewrap" and release >= (5, 14) else 0
    numbers = (bounds.memory_mb, int(bounds.wall_s) + 1, bounds.disk_mb, processes,
               {"bubblewrap": 0, "rlimits": 1, "none": 2}[level])  # fmt: skip
    return [str(n) for n in numbers]


def _visible(readable: tuple[Path, ...], bare: bool) -> list[str]:
    """What is shown read-only: the interpreter with its packages, and `readable`; never this package's own tasks."""
    base = (sys.base_prefix, os.path.realpath(sys.base_prefix))
    paths = base if bare else (*base, sys.prefix, *os.environ.get("EFT_SANDBOX_READ", "").split(":"))
    options = jail.read_only(*[p for p in paths if p and os.path.exists(p)])
    if any(HERE.is_relative_to(p) for p in paths if p):  # installed, not a checkout: evaluators lie among the packages
        options += ["--tmpfs", str(HERE)]
    return options + jail.read_only(*readable)


@contextlib.contextmanager
def _folder():
    with tempfile.TemporaryDirectory(prefix="eft-contained-", ignore_cleanup_errors=True) as name:
        yield name


def _watch(process: subprocess.Popen, read: int, bounds: Bounds, started: float, tail: int) -> tuple[bytes, bytes, str]:
    """(result, tail of what is printed, why it was stopped or "") when the result is complete or a bound is passed."""
    result, printed, looked = bytearray(), b"", 0.0
    deadline = started + bounds.wall_s
    out = process.stdout.fileno()
    open_fds = {read, out}
    while read in open_fds:
        now = time.monotonic()
        ended = process.poll() is not None  # what is still open then belongs to something that it left behind
        if now >= deadline:
            return b"", printed, "timeout"
        if now - looked >= WATCH_S:
            looked = now
            count, memory_mb = _size(process.pid)
            if count > bounds.processes:
                return b"", printed, f"it started more than {bounds.processes} processes"
            if _memory_left_mb() < SPARE_MB:  # held where no process maps it: files in memory, shared memory
                return b"", printed, "this machine ran short of memory"
            if memory_mb > bounds.memory_mb:
                return b"", printed, f"it used more than {bounds.memory_mb} MB of memory"
        ready = select.select(list(open_fds), [], [], 0.0 if ended else min(WATCH_S, deadline - now))[0]
        if ended and not ready:
            break
        for fd in ready:
            part = os.read(fd, 65536)
            if not part:
                open_fds.discard(fd)
            elif fd == out:
                printed = (printed + part)[-tail:]
            else:
                result += part
                if len(result) > bounds.result_kb << 10:
                    return b"", printed, f"its result is larger than {bounds.result_kb} KB"
    return bytes(result), printed, ""


def _memory_left_mb() -> float:
    """What this machine can still give (inf where it does not say)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) / 1024
    return float("inf")


def _size(pid: int) -> tuple[int, float]:
    """(processes, resident MB) of the tree below `pid`, as far as its links can be followed."""
    count, pages, waiting = 0, 0, [pid]
    while waiting and count < 10_000:
        current = waiting.pop()
        count += 1
        with contextlib.suppress(OSError, ValueError):
            pages += int(Path(f"/proc/{current}/statm").read_bytes().split()[1])
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{current}/task"):
                with contextlib.suppress(OSError):
                    waiting += map(int, Path(f"/proc/{current}/task/{thread}/children").read_bytes().split())
    return count, pages * _PAGE / 2**20


def _end(process: subprocess.Popen, gently: bool) -> int:
    """Take the whole tree away. `gently`: its guard does that (launch.py); bubblewrap's namespace needs no help."""
    if gently and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
