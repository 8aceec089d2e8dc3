"""The first thing inside a one-off sandbox: set limits, watch over what is started, start it. Run as a script, or used
by contained.py. Standard library only.

    launch.py MEMORY_MB CPU_S FILE_MB PROCESSES OPEN COMMAND…

OPEN 1 (no bubblewrap around it): a parent stays behind that adopts whatever leaves its group, and ends it; and where
the kernel has Landlock, writing is confined to the working folder. OPEN 2 (level `none`): the parent only.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import landlock  # noqa: E402  (these lie beside this file, also where nothing else is visible)
import reap  # noqa: E402

del sys.path[0]


def limit(memory_mb: int, cpu_s: int, file_mb: int, processes: int) -> None:
    """Kernel limits of this process and its children; `processes` 0: none (older kernels count all of a user's)."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_mb << 20, file_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))


def guard() -> None:
    """Fork; return in the child. The parent waits for it, ends everything below itself and leaves as the child did."""
    reap.subreaper()
    reap.prctl(reap.PR_SET_PDEATHSIG, signal.SIGTERM)  # the client is gone: nobody waits for this any more
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        reap.prctl(reap.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(70)
        return
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: (stopped.append(number), os.kill(child, signal.SIGKILL)))
    _, code = os.waitpid(child, 0)
    reap.end_children()
    os._exit(os.waitstatus_to_exitcode(code) & 0xFF if not stopped else 70)


def confine(arguments: list[str]) -> None:
    """Everything that the first five arguments say."""
    memory_mb, cpu_s, file_mb, processes, open_ = map(int, arguments)
    if open_:
        guard()
    if open_ == 1:
        landlock.apply(landlock.prepare(writable=[os.getcwd()]))
    if open_ != 2:
        limit(memory_mb, cpu_s, file_mb, processes)


def main() -> None:
    confine(sys.argv[1:6])
    os.execvp(sys.argv[6], sys.argv[6:])


if __name__ == "__main__":
    main()
