"""Landlock: a process takes rights from itself, without privileges and without namespaces. Standard library only.

Where bubblewrap is missing it still keeps a one-off evaluation (launch.py) from writing anywhere but its working
folder, from TCP, and, on newer kernels, from signalling or reaching abstract sockets outside. Reading is not restricted.
Linux 5.13 or later with Landlock on (elsewhere `restrict` returns False). Numbers: Linux `uapi/linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on all machines
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_MAKING = sum(1 << bit for bit in range(4, 13))  # remove and make files, folders, links, devices, sockets, pipes
_PATH_BENEATH = 1
_BIND_CONNECT_TCP = 0b11
_SCOPES = 0b11  # abstract sockets, signals
_OPEN_NEEDS = os.O_PATH | os.O_CLOEXEC


def restrict(*writable: str) -> bool:
    """From now on this process and its children write only under these folders (and to /dev/null)."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, 1)
    if version < 1:
        return False
    files = _WRITE_FILE | _MAKING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("QQQ", files, _BIND_CONNECT_TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.syscall(_CREATE, attributes, size, 0)
    if ruleset < 0:
        return False
    try:
        for path, rights in ((p, files) for p in writable):
            _allow(libc, ruleset, path, rights)
        _allow(libc, ruleset, "/dev/null", _WRITE_FILE | (_TRUNCATE if version >= 3 else 0))
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        return libc.syscall(_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, _OPEN_NEEDS)
    try:
        libc.syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
