"""End processes and all that they left. Standard library only, used inside the sandbox (see worker.py)."""

from __future__ import annotations

import ctypes
import os
import signal
import time

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36


def prctl(*values: int) -> None:
    ctypes.CDLL(None).prctl(*values, *[0] * (5 - len(values)))


def subreaper() -> None:
    """Orphans below this process come to it instead of init: only so can it end them."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill(pid: int) -> tuple[int, float]:
    """Kill a child and its group, and reap it: (wait status, CPU seconds)."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)  # it died, or was killed, before its setsid: the process itself is still ours
    _, code, usage = os.wait4(pid, 0)
    return code, usage.ru_utime + usage.ru_stime


def end_children() -> None:
    """Kill and reap whatever has this process as its parent, and what comes to it when that is gone."""
    for _ in range(1000):
        try:
            orphan, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if orphan == 0:
            for other in children():
                try:
                    os.kill(other, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.001)


def children() -> list[int]:
    """Pids whose parent is this process."""
    found, me = [], os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == me and fields[0] != b"Z":
                found.append(int(name))
    return found
