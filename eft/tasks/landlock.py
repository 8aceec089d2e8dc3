"""Landlock: a process takes rights from itself, without privileges and without namespaces. Standard library only.

Where bubblewrap is missing it does part of its work: a candidate reads nothing but the interpreter and the system's
libraries, a one-off evaluation (launch.py) writes nowhere but into its working folder, and neither looks into processes
outside; on newer kernels TCP, signals and abstract sockets are confined too. Linux 5.13 or later with Landlock on;
elsewhere `prepare` returns None. Numbers: Linux `uapi/linux/landlock.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on all machines
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REFER, _TRUNCATE = (1 << bit for bit in (0, 1, 2, 3, 13, 14))
_MAKING = sum(1 << bit for bit in range(4, 13))  # remove and make files, folders, links, devices, sockets, pipes
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE  # what a rule for a file, not a folder, may name
_BIND_CONNECT_TCP = 0b11
_SCOPES = 0b11  # abstract sockets, signals


def prepare(writable: Iterable[str] = (), readable: Iterable[str] | None = None) -> int | None:
    """A ruleset (a descriptor): writing only under `writable`, reading only there and under `readable` (None:
    everywhere). None where the kernel has no Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, 1)
    if version < 1:
        return None
    write = _WRITE_FILE | _MAKING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    read = 0 if readable is None else _EXECUTE | _READ_FILE | _READ_DIR
    network, scopes = _BIND_CONNECT_TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0
    attributes = struct.pack("QQQ", write | read, network, scopes)
    ruleset = libc.syscall(_CREATE, attributes, 24 if version >= 6 else 16 if version >= 4 else 8, 0)
    if ruleset < 0:
        return None
    for path in readable or ():
        _allow(libc, ruleset, path, read)
    for path in writable:
        _allow(libc, ruleset, path, write | read)
    _allow(libc, ruleset, "/dev/null", (write | read) & _ON_FILES)
    return ruleset


def apply(ruleset: int | None) -> bool:
    """Hold this process and its future children to the ruleset, for good. False where that does not work."""
    if ruleset is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    return libc.syscall(_RESTRICT, ruleset, 0) == 0


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(OSError):  # what is not there needs no rule
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= _ON_FILES
        libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", rights, fd), 0)  # 1: LANDLOCK_RULE_PATH_BENEATH
        os.close(fd)
