"""The outer side of the warm workers: start them, borrow one for a call, end them. See sandbox.py for the levels.

A worker (worker.py) belongs to one process and serves one call at a time; threads borrow different ones, a forked
process starts its own. A worker that breaks is ended with everything below it and replaced.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
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

from eft.errors import EftError
from eft.tasks import jail

_HERE = Path(__file__).parent
_FILES = ("worker.py", "apart.py", "candidate.py", "frames.py", "landlock.py", "reap.py", "seccomp.py")
_GRACE_S = 10.0  # what a worker gets beyond a candidate's wall limit before it counts as hung itself
_START_S = 60.0


class WorkerGone(Exception):
    """The worker ended or hung: not an outcome of the candidate (yet)."""


class Worker:
    """One warm worker process. Not thread-safe: borrow it from the pool. Raises EftError where it does not start."""

    def __init__(self, level: str) -> None:
        self.owner, self.level = os.getpid(), level
        self.folder: str | None = None  # outside bubblewrap: an empty working folder
        python = [jail.interpreter(), "-S", "-s", "-B"]
        if level == "bubblewrap":
            mounts = jail.read_only(os.path.realpath(sys.base_prefix))
            for name in _FILES:
                mounts += ["--ro-bind", str(_HERE / name), f"/eft/{name}"]
            command = [*jail.bubblewrap(*mounts, "--dir", "/tmp/work", "--chdir", "/tmp/work"), "--"]
            command += [*python, "/eft/worker.py"]
        else:
            command = [*python, str(_HERE / "worker.py")]
            self.folder = tempfile.mkdtemp(prefix="eft-sandbox-")
        log = os.memfd_create("log")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.folder or "/",
            env=jail.environment(), start_new_session=True, bufsize=0,
        )  # fmt: skip
        os.set_blocking(self.process.stdin.fileno(), False)  # a worker that hangs must not hang us
        try:
            greeting = json.loads(self._receive(time.monotonic() + _START_S))
            self.filtered, self.landlocked = bool(greeting["filter"]), bool(greeting["landlock"])
        except (WorkerGone, OSError, ValueError, KeyError) as e:
            why = os.pread(log, 500, max(0, os.fstat(log).st_size - 500)).decode("utf-8", "replace").strip() or str(e)
            self.close()
            raise EftError("the sandbox worker did not start", where=command[0], why=why) from None
        finally:
            os.close(log)

    def call(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """One round trip. Raises WorkerGone where the worker breaks; it is of no use afterwards."""
        deadline = time.monotonic() + head["wall_s"] + _GRACE_S
        first = json.dumps({**head, "level": self.level}).encode()
        try:
            self._send(struct.pack(">I", len(first)) + first + struct.pack(">I", len(body)) + body, deadline)
            return json.loads(self._receive(deadline)), self._receive(deadline, head["output_kb"] * 1024)
        except (OSError, ValueError, struct.error) as e:
            raise WorkerGone(str(e)) from None

    def _send(self, data: bytes, deadline: float) -> None:
        fd, view = self.process.stdin.fileno(), memoryview(data)
        while view:
            if not select.select([], [fd], [], max(0.0, deadline - time.monotonic()))[1]:
                raise WorkerGone("it took no call")
            view = view[os.write(fd, view[:65536]) :]

    def _receive(self, deadline: float, most: int = 1 << 20) -> bytes:
        (size,) = struct.unpack(">I", self._read(4, deadline))
        if size > most:
            raise WorkerGone("it sent more than it may")
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        fd, parts = self.process.stdout.fileno(), []
        while size:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise WorkerGone("it did not answer in time")
            part = os.read(fd, size)
            if not part:
                raise WorkerGone("it ended")
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
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_idle: list[Worker] = []


@contextlib.contextmanager
def borrow(level: str) -> Iterator[Worker]:
    """A worker of this level for one call; it goes back to the pool unless the block raised."""
    with _lock:
        fitting = [w for w in _idle if w.level == level]
        if fitting:
            _idle.remove(fitting[-1])
    worker = fitting[-1] if fitting else Worker(level)
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
