"""Tolerant reading of log files: torn, truncated, half-written and hostile ones never raise, they are named.

What a search leaves behind is written without fsync by processes that get killed, so every file here may end in the
middle of anything. Values come from programs that we do not run and do not trust: text is made storable, numbers are
bounded, objects that should be objects but are not become empty.

Limits, all of them named where they bite: one JSON document or line of at most `RECORD` bytes and `ELEMENTS` structural
characters (a line of brackets would otherwise take 25 times its size in memory); a compressed file of at most
`EXPANSION` times its size once unpacked; regular files only, and no link that leads out of the folder that was named.
Together with the spool (`data_tools/readers/spool.py`) they keep a harvest below `MEMORY` bytes, whatever it is given.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

INT64 = 2**63 - 1
RECORD = 32 << 20  # bytes of one JSON document or line
ELEMENTS = 4_000_000  # commas, brackets and braces in one document
EXPANSION, UNPACKED = 200, 256 << 20  # a gz file is a bomb beyond both: this ratio, and so many bytes
MEMORY = 1 << 30  # bytes, stated to users and held by the tests
TOO_DEEP = "its metrics or artifacts are nested too deeply"


class Problems:
    """Files (or lines) that could not be read: (where, why), in the order in which they were met.

    `found` keeps the first `KEPT`; `len` counts all of them: a damaged log of a million lines is one problem, mostly.
    """

    KEPT = 10_000

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.count = 0

    def add(self, where: object, why: object) -> None:
        self.count += 1
        if self.count <= self.KEPT:
            self.found.append((text(str(where)), text(str(why))[:500]))

    def __len__(self) -> int:
        return self.count


class Unreadable(Exception):
    """A file is not what it should be. The message says why."""


def opened(path: Path) -> BinaryIO:
    """A regular file, open for reading. Raises OSError, and Unreadable for pipes, devices and the like."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable("not a regular file")
    return file


def walk(
    root: Path, problems: Problems, skip: frozenset[str] = frozenset()
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """(folder, names of folders in it, names of files in it) for `root` and all below, sorted. Not entered: links,
    hidden folders, folders called as in `skip`. Left out and named: links to files outside of `root`, pipes, devices.
    """
    real, todo = root.resolve(), [root]
    while todo:
        folder = todo.pop()
        folders, files = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        files.append(entry.name)
                    elif not entry.is_symlink():
                        problems.add(entry.path, "not a regular file")
                    elif not Path(entry.path).resolve().is_relative_to(real):
                        problems.add(entry.path, "a link that leads out of the folder: not followed")
                    elif entry.is_file():
                        files.append(entry.name)
        except OSError as e:
            problems.add(folder, e.strerror or str(e))
            continue
        folders.sort()
        files.sort()
        yield folder, folders, files
        todo += [folder / n for n in reversed(folders) if n not in skip and not n.startswith(".")]


def parse(raw: bytes) -> Any:
    """The JSON value in `raw`; NaN and Infinity literals and broken UTF-8 are accepted. Raises Unreadable."""
    if len(raw) > ELEMENTS and sum(raw.count(c) for c in (b",", b"[", b"{")) > ELEMENTS:
        raise Unreadable(f"more than {ELEMENTS:,} values in one record: not read")
    try:
        return json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError, MemoryError) as e:
        raise Unreadable(str(e) or type(e).__name__) from None


def read_bytes(path: Path, limit: int = RECORD) -> bytes:
    """A whole small file. Raises Unreadable."""
    try:  # without a file object: there may be a hundred thousand small files
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("not a regular file")
            parts = [os.read(file, min(status.st_size, limit) + 1)]
            size = len(parts[0])
            while parts[-1] and size <= limit and size != status.st_size:  # read in part, or still being written
                parts.append(os.read(file, limit + 1 - size))
                size += len(parts[-1])
        finally:
            os.close(file)
    except OSError as e:
        raise Unreadable(e.strerror or str(e)) from None
    if size > limit:
        raise Unreadable(f"larger than {limit >> 20} MiB: not read")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises Unreadable."""
    raw = read_bytes(path)
    if not raw:
        raise Unreadable("the file is empty")
    try:
        return parse(raw)
    except Unreadable as e:
        raise Unreadable(f"not JSON, or cut off: {e}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises Unreadable, also for other JSON values."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise Unreadable(f"a JSON object was expected, this is a {type(value).__name__}")
    return value


def json_lines(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl or .jsonl.gz file, streaming. Bad lines, and a torn end, are noted in `problems`."""
    for _, value in numbered_json_lines(path, problems):
        yield value


def numbered_json_lines(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """The same with line numbers, from 1.

    OpenEvolve writes one gzip member per record; `gzip` reads on over members, and stops at a torn one.
    """
    for number, _, raw in raw_lines(path, problems):
        if not raw.strip():
            continue
        try:
            value = parse(raw)
        except Unreadable as e:
            torn = "" if raw.endswith(b"\n") else "cut off: "
            problems.add(f"{path}, line {number}", f"{torn}{e}")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            problems.add(f"{path}, line {number}", f"an object was expected, this is a {type(value).__name__}")


def raw_lines(path: Path, problems: Problems) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset in the unpacked text, line) of a .jsonl or .jsonl.gz file; overlong lines are left out and
    named."""
    number = offset = 0
    try:
        with opened(path) as packed:
            zipped = path.name.endswith(".gz")
            most = max(UNPACKED, EXPANSION * os.fstat(packed.fileno()).st_size) if zipped else INT64
            f = gzip.GzipFile(fileobj=packed) if zipped else packed
            while raw := f.readline(RECORD + 1):
                number += 1
                start, offset = offset, offset + len(raw)
                if len(raw) <= RECORD or raw.endswith(b"\n"):
                    yield number, start, raw
                else:
                    problems.add(f"{path}, line {number}", f"longer than {RECORD >> 20} MiB: not read")
                    while not raw.endswith(b"\n") and offset <= most and (raw := f.readline(1 << 20)):
                        offset += len(raw)
                if offset > most:
                    problems.add(f"{path}, after line {number}", f"unpacks to more than {EXPANSION} times its size: "
                                 "the rest is not read")  # fmt: skip
                    return
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        problems.add(f"{path}, after line {number}", f"the compressed file is cut off or damaged: {e}")
    except (OSError, Unreadable) as e:
        problems.add(path, getattr(e, "strerror", None) or e)


def first_object(path: Path, limit: int = 4 << 20, lines: int = 1) -> dict[str, Any]:
    """The first object in the first `lines` lines of a .jsonl(.gz) file; {} where there is none, or only one of more
    than `limit` bytes. For sniffing."""
    try:
        with opened(path) as packed:
            f = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
            for _ in range(lines):
                try:
                    value = parse(f.readline(limit))
                except Unreadable:
                    continue
                if isinstance(value, dict):
                    return value
    except (OSError, EOFError, zlib.error, Unreadable):
        pass
    return {}


# ------------------------------------------------------------------------------------------------- values of any type


def text(value: Any) -> str:
    """`value` if it is text, else "". Lone surrogates, which cannot be stored, become U+FFFD."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def mapping(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def integer(value: Any, default: int) -> int:
    """`value` as an int that fits 64 bits, else `default`. Booleans are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return int(value) if -INT64 < value < INT64 else default  # no NaN passes


def real(value: Any) -> float | None:
    """`value` as a finite float, else None. Booleans are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond any float
        return None
    return number if number - number == 0 else None
