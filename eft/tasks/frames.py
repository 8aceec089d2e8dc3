"""Messages over pipes: 4 bytes length (big endian), then that many bytes. Standard library only (see worker.py)."""

from __future__ import annotations

import os
import select
import struct

PIECE = 1 << 20


def read_frame(fd: int, idle: float | None = None) -> bytes | None:
    """One frame, or None at the end of the stream (or after `idle` seconds without one)."""
    if idle is not None and not select.select([fd], [], [], idle)[0]:
        return None
    head = read_exactly(fd, 4)
    return None if head is None else read_exactly(fd, struct.unpack(">I", head)[0])


def read_exactly(fd: int, size: int) -> bytes | None:
    """`size` bytes, or None where the stream ends before."""
    parts = []
    while size:
        part = os.read(fd, min(size, PIECE))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_frame(fd: int, data: bytes) -> None:
    write_all(fd, struct.pack(">I", len(data)) + data)
