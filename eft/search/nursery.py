"""A process that has loaded what searches need and forks one for each spec: a search then starts in a moment.

Loading OpenEvolve (with its HTTP client) takes more than a second of one core; a fork takes milliseconds. The nursery
has one thread and runs no search itself, so its forks start from a clean state; each becomes a session of its own, with
its own working folder, log and temporary folder, just like a process started by `process.start`.

Protocol, one JSON line each. To it: {"incoming", "folder", "module"}. From it: {"pid"} for every start, in order, and
{"pid", "code"} whenever a search ends. It ends, its searches with it, when its standard input does or its parent dies.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import deque
from pathlib import Path

from eft.errors import EftError
from eft.search import process
from eft.search.spec import LOG, SCAFFOLDS, SearchSpec
from eft.tasks import sandbox

LOADED = ("yaml", "numpy", "openai", "openevolve", "openevolve.process_parallel", "eft.tasks.evaluate",
          "eft.search.tally")  # fmt: skip
REAP_S = 0.02


class Child:
    """A search forked by the nursery; the part of Popen's interface that its keeper needs."""

    why = ""  # its log tells

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid

    def end(self) -> None:
        """Kill it and everything that it started."""
        process.kill(self)

    def poll(self) -> int | None:
        """The exit code (negative: a signal), None while it runs."""
        while self.nursery.read(0.0):
            pass
        return self.nursery.code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired like Popen.wait; `timeout` counts from the last sign of life."""
        while (code := self.nursery.code(self.pid)) is None:
            if not self.nursery.read(timeout):
                raise subprocess.TimeoutExpired(f"search {self.pid}", timeout)
        return code


class Nursery:
    """The keeper's end. A context manager; for one thread. `cores`: candidates that one search may evaluate at once;
    0: as many as there are cores."""

    def __init__(self, cores: int = 0) -> None:
        self._environment = process.environment() | ({process.CORES: str(cores)} if cores else {})
        self._codes: dict[int, int] = {}
        self._pids: deque[int] = deque()
        self._buffer, self._gone = b"", False

    def __enter__(self) -> Nursery:
        self._launch()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _launch(self) -> None:
        self._buffer, self._gone = b"", False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "eft.search.nursery"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=self._environment, start_new_session=True, bufsize=0,
        )  # fmt: skip

    def start(self, spec: SearchSpec) -> Child:
        """Start the search of `spec`. Raises EftError where no nursery can be had (OpenEvolve does not import, say)."""
        incoming = process.lay_out(spec)
        line = {"incoming": str(incoming), "folder": str(spec.folder), "module": SCAFFOLDS[spec.scaffold]}
        for _ in range(2):  # one that was killed is replaced once
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
            while not self._pids and not self._gone:
                self.read(None)
            if self._pids:
                return Child(self, self._pids.popleft())
            self.__exit__()
            self._launch()
        raise EftError("searches cannot be started", why="the process that loads OpenEvolve ended; its reason is above",
                       way_out="see that openevolve is installed and can be imported")  # fmt: skip

    def code(self, pid: int) -> int | None:
        """The exit code of a search; those of a nursery that is gone were killed along with it."""
        return self._codes.get(pid, -signal.SIGKILL if self._gone else None)

    def read(self, timeout: float | None) -> bool:
        """Take in what the nursery says, waiting for at most `timeout` seconds (None: for ever). False: nothing."""
        if self._gone or not select.select([self._process.stdout], [], [], timeout)[0]:
            return False
        data = os.read(self._process.stdout.fileno(), 65536)
        self._gone = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for message in map(json.loads, lines):
            if "code" in message:
                self._codes[message["pid"]] = message["code"]
            else:
                self._pids.append(message["pid"])
        return True


# -------------------------------------------------------------------------------------------------- inside the nursery


def serve() -> dict[str, str] | None:
    """Fork searches until standard input ends. Returns None then, and in each fork the order that it is to follow."""
    running: set[int] = set()
    buffer = b""
    while True:
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.discard(pid)
                _say({"pid": pid, "code": os.waitstatus_to_exitcode(status)})
        if not select.select([0], [], [], REAP_S if running else None)[0]:
            continue
        data = os.read(0, 65536)
        if not data:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            return None
        *lines, buffer = (buffer + data).split(b"\n")
        for order in map(json.loads, lines):
            pid = os.fork()
            if pid == 0:
                return order
            running.add(pid)
            _say({"pid": pid})


def _say(message: dict[str, int]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def become(order: dict[str, str]) -> None:
    """Turn this fork into the search's own process."""
    folder = Path(order["folder"])
    os.setsid()
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    os.chdir(folder)
    os.environ[process.PARENT] = str(os.getppid())
    os.environ["TMPDIR"] = str(folder / process.TEMPORARY)
    tempfile.tempdir = None  # asked for again


def main() -> None:
    if os.environ.get(process.PARENT):
        process.die_with_parent()
    for name in LOADED:
        importlib.import_module(name)
    order = serve()
    status = 0
    if order is not None:
        become(order)
        status = _run(order)
    # Not sys.exit: taking apart what was loaded takes as long as a short search. Everything is on the disk by now.
    sys.stdout.flush()
    sys.stderr.flush()
    sandbox.close()
    os._exit(status)


def _run(order: dict[str, str]) -> int:
    """Do the search. Its exit status, as a process of its own would have it."""
    try:
        process.main(importlib.import_module(order["module"]).body, [order["incoming"]])
    except SystemExit as e:
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
