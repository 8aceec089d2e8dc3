"""Keep a server from outliving whoever started it.

    python -m eft.mutators.watch PARENT_PID SCRATCH_DIR COMMAND...

Runs COMMAND in a process group of its own until it ends, until SIGTERM/SIGINT arrives, or until the parent is gone
(killed with SIGKILL too); then ends whatever is left of it, politely first, and removes SCRATCH_DIR. vLLM needs this:
when its front process dies, its engine processes stay, with all their memory. Exit status: the command's, 128 + signal
where it was killed. Standard library only: it starts in a few hundredths of a second and stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

GRACE = 15.0  # seconds between SIGTERM and SIGKILL; vLLM takes 2-5 to hand back its shared memory
_PDEATHSIG, _SUBREAPER = 1, 36  # prctl(2), Linux


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # elsewhere than on Linux we do without
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reap(child: int) -> int | None:
    """Collect everything that has ended; the exit status of `child` where it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = os.waitstatus_to_exitcode(status)
    return found


def _signal(group: int, number: int) -> bool:
    """Signal the whole group; False where nothing is left of it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(argv: list[str]) -> int:
    """See the module. `argv`: PARENT_PID SCRATCH_DIR COMMAND..."""
    parent, scratch, command = int(argv[0]), argv[1], argv[2:]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    _prctl(_SUBREAPER, 1)  # orphans of the command become ours, so that they can be collected
    # If the watcher itself is killed, at least the front process gets a SIGTERM and takes its engine down.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True,
                             preexec_fn=lambda: _prctl(_PDEATHSIG, signal.SIGTERM)).pid  # fmt: skip
    status = None
    while status is None and not stop.is_set() and os.getppid() == parent:
        stop.wait(0.2)
        status = _reap(child)
    _signal(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while _signal(child, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
        status = _reap(child) if status is None else (_reap(child), status)[1]
    while _signal(child, signal.SIGKILL):
        time.sleep(0.05)
        status = _reap(child) if status is None else (_reap(child), status)[1]
    shutil.rmtree(scratch, ignore_errors=True)
    return 128 - status if status is not None and status < 0 else status or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
