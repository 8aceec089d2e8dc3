"""What a sandboxed process is started with: the bubblewrap command around it, its environment, its interpreter.

`bubblewrap` gives new namespaces for users, processes, network, IPC, host name and mounts, no capabilities, and a file
system of the system folders only, read-only, with a private /tmp and /dev/shm of bounded size. Nested user
namespaces are forbidden where this release of bwrap can. What else a program needs is bound into it by the caller.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
PROC = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi")
TMP_MB = 64


def environment() -> dict[str, str]:
    """The whole environment of a candidate: no key, no home; a fixed hash seed, for the order of sets."""
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def interpreter() -> str:
    """The interpreter outside any virtual environment (a worker needs no site-packages)."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def _options() -> frozenset[str]:
    """The options that this release of bwrap knows."""
    done = subprocess.run(["bwrap", "--help"], capture_output=True, text=True)
    return frozenset(word for word in done.stdout.split() if word.startswith("--"))


def installed() -> bool:
    return shutil.which("bwrap") is not None


def bubblewrap(*options: str, tmp_mb: int = TMP_MB, die_with_parent: bool = False) -> list[str]:
    """The bwrap command up to what it runs. `die_with_parent`: with the *thread* that starts it, so not for what is
    to outlive a call."""
    command = ["bwrap", "--unshare-all", "--unshare-user", "--cap-drop", "ALL", "--hostname", "sandbox"]
    if "--disable-userns" in _options():
        command.append("--disable-userns")
    if die_with_parent:
        command.append("--die-with-parent")
    command += ["--proc", "/proc", "--dev", "/dev"]
    for folder in PROC:  # root keeps its own user id inside, and with it the right to write these
        command += ["--ro-bind-try", folder, folder]
    size = ["--size", str(tmp_mb << 20)] if "--size" in _options() else []
    command += [*size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev", *size, "--tmpfs", "/tmp"]
    for folder in SYSTEM:
        command += ["--ro-bind-try", folder, folder]
    return [*command, *options, "--remount-ro", "/"]  # the root is a folder in memory too, of no bounded size


def read_only(*paths: Path | str) -> list[str]:
    """Options that show these paths, where they are and nothing more of what lies beside them."""
    options = []
    for path in dict.fromkeys(map(str, paths)):
        options += ["--ro-bind", path, path]
    return options
