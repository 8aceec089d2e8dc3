"""A search as a process: started in a group of its own, watched, killed whole, and never left behind.

The process reads its spec from `spec.json`, writes everything under the spec's folder and `result.json` last. What it
prints goes to `search.log`; when it fails, its last "error: …" is the reason that the caller reports.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from eft import resources
from eft.errors import EftError
from eft.manifest import clear_disk_errors
from eft.search.spec import CACHE, LOG, RESULT, SCAFFOLDS, SPEC, SearchResult, SearchSpec

CORES = "EFT_SEARCH_CORES"  # how many candidates a search may evaluate at once, where its scaffold can
PARENT = "EFT_SEARCH_PARENT"  # set for processes that must not outlive the one that started them
TEMPORARY = ".tmp"
# One line each per candidate that is done; what a progress bar counts.
PROGRESS_FILES = ("evolution_trace.jsonl", "evolution_trace_failures.jsonl", "samples.jsonl")


class Process(Protocol):
    """A search's process: a Popen, or a fork of the nursery."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def environment() -> dict[str, str]:
    """What a search runs with: a fixed hash seed (OpenEvolve iterates over sets of strings), one thread per numeric
    library, no proxy between it and a gateway on loopback, and this very eft, installed or not."""
    env = dict(os.environ)
    env["PYTHONHASHSEED"] = "0"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(resources.PACKAGE.parent), env.get("PYTHONPATH"))))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        env.setdefault(name, "1")
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = ",".join(filter(None, (env.get(name), "127.0.0.1", "localhost")))
    env[PARENT] = str(os.getpid())
    return env


def lay_out(spec: SearchSpec) -> Path:
    """Make the search's folder. Returns the file of its spec, which becomes spec.json once its process has the lock."""
    incoming = spec.folder / f".{SPEC}"
    with clear_disk_errors(spec.folder):
        (spec.folder / TEMPORARY).mkdir(parents=True, exist_ok=True)
    spec.save(incoming)
    return incoming


def start(spec: SearchSpec) -> subprocess.Popen:
    """Start the search of `spec` in a session of its own."""
    incoming = lay_out(spec)
    env = {**environment(), "TMPDIR": str(spec.folder / TEMPORARY)}  # what is left there is cleared away with it
    with open(spec.folder / LOG, "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", SCAFFOLDS[spec.scaffold], str(incoming)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=spec.folder, env=env, start_new_session=True,
        )  # fmt: skip


def kill(process: Process, grace_s: float = 0.0) -> None:
    """End a search and everything that it started; SIGTERM first where it is given time."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if number == signal.SIGTERM and grace_s <= 0:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    # The leader may be gone while a worker of its group is not.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def collect(spec: SearchSpec, returncode: int, why: str = "") -> SearchResult:
    """The result of a search whose process has ended. Raises EftError with the reason (`why`, where that is known
    already) where it failed."""
    log = spec.folder / LOG
    if returncode == 0:
        return SearchResult.load(spec.folder / RESULT)
    if why:
        pass
    elif returncode < 0:
        why = f"its process was ended by signal {-returncode}"
    else:
        why = last_error(log)
    why = "; ".join(line.strip() for line in why.splitlines())
    raise EftError(f"the search '{spec.name}' failed", where=log, why=why,
                   way_out="run the same command again: what was answered and evaluated is kept")  # fmt: skip


def last_error(log: Path) -> str:
    """The reason in a search's log: its last "error: …", else its last line."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "it left no log"
    found = list(re.finditer(r"^error: ", text, re.MULTILINE))
    reason = text[found[-1].end() :] if found else text.rpartition("\n")[2]
    return reason[:2000] or "it ended without a word"


def wait(spec: SearchSpec, process: Process, timeout_s: float | None = None) -> SearchResult:
    """Wait for a started search. Raises EftError where it fails or takes longer than `timeout_s`; kills it then."""
    try:
        return collect(spec, process.wait(timeout_s))
    except subprocess.TimeoutExpired:
        raise EftError(f"the search '{spec.name}' took longer than {timeout_s:.0f} s", where=spec.folder) from None
    finally:
        kill(process)


class Progress:
    """How many candidates a running search has done: lines in its logs, read on from where the last look ended."""

    def __init__(self, folder: Path) -> None:
        self.seen = {folder / name: (0, 0) for name in PROGRESS_FILES}  # file -> (offset, lines)

    def done(self) -> int:
        for file, (offset, lines) in self.seen.items():
            with contextlib.suppress(OSError), open(file, "rb") as f:
                if f.seek(0, os.SEEK_END) < offset:
                    offset = lines = 0  # begun anew
                f.seek(offset)
                new = f.read()
                self.seen[file] = (offset + len(new), lines + new.count(b"\n"))
        return sum(lines for _, lines in self.seen.values())


# ------------------------------------------------------------------------------------------ inside the search's process


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux only): a killed run leaves no searches behind."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG


@contextlib.contextmanager
def holding(folder: Path, what: str = "another process", wait_s: float = 5.0) -> Iterator[None]:
    """Hold the folder of a search (or of an evaluation, `what`); EftError where somebody else does, still after
    `wait_s`: two in one folder would mix."""
    import fcntl

    with open(folder / ".lock", "a") as lock:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise EftError(f"{what} is running in this folder", where=folder,
                                   way_out="wait for it, or end it") from None  # fmt: skip
                time.sleep(0.1)  # a killed predecessor's worker may need a moment to go
        yield


def main(body, argv: list[str] | None = None) -> None:
    """Entry point of a scaffold's process: `body(spec)` does the search. Exits 0, 1 or 2 like the command line."""
    incoming = Path((argv or sys.argv[1:])[0]).resolve()
    if os.environ.get(PARENT):
        die_with_parent()
        if os.getppid() != int(os.environ[PARENT]):  # it died before the kernel knew what to do then
            sys.exit("error: the process that wanted this search is gone")
    try:
        spec = SearchSpec.load(incoming)
        with holding(spec.folder):
            prepare(spec, incoming)
            body(spec)
            shutil.rmtree(spec.folder / TEMPORARY, ignore_errors=True)  # OpenEvolve's worker leaves its sandbox there
    except EftError as e:
        print(f"error: {e}", file=sys.stderr, flush=True)
        sys.exit(e.exit_code)


def prepare(spec: SearchSpec, incoming: Path) -> None:
    """Make the folder ready for a new attempt: logs of an unfinished one go (the gateway's journal has every reply and
    the cache every evaluation, so they come again); the cache stays unless it is about another task."""
    folder = spec.folder
    with contextlib.suppress(EftError):
        if SearchSpec.load(folder / SPEC).task != spec.task:
            (folder / CACHE).unlink(missing_ok=True)
    for name in (RESULT, *PROGRESS_FILES):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "best", "logs", "artifacts"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if incoming != folder / SPEC:
        os.replace(incoming, folder / SPEC)
