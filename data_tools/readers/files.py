"""Tolerant reading of log files: torn, truncated, half-written and foreign ones never raise, they are named.

What a search leaves behind is written without fsync by processes that get killed, so every file here may end in the
middle of anything. Values come from programs that we do not run and do not trust: text is made storable, numbers are
bounded, objects that should be objects but are not become empty.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INT64 = 2**63 - 1


class Problems:
    """Files (or lines) that could not be read: (where, why), in the order in which they were met."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def add(self, where: object, why: object) -> None:
        self.found.append((str(where), str(why)))

    def __len__(self) -> int:
        return len(self.found)


class Unreadable(Exception):
    """A file is not what it should be. The message says why."""


def read_json(path: Path) -> Any:
    """The JSON value in a file; NaN and Infinity literals are accepted. Raises Unreadable."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return json.load(f)
    except OSError as e:
        raise Unreadable(e.strerror or str(e)) from None
    except (ValueError, RecursionError, MemoryError) as e:
        empty = path.stat().st_size == 0
        raise Unreadable("the file is empty" if empty else f"not JSON, or cut off: {e}") from None


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
    number = 0
    try:
        opened = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115
        with opened as f:
            for raw in f:
                number += 1
                if not raw.strip():
                    continue
                try:
                    value = json.loads(raw.decode("utf-8", "replace"))
                except (ValueError, RecursionError, MemoryError) as e:
                    torn = "" if raw.endswith(b"\n") else "cut off: "
                    problems.add(f"{path}, line {number}", f"{torn}{e}")
                    continue
                if isinstance(value, dict):
                    yield number, value
                else:
                    problems.add(f"{path}, line {number}", f"an object was expected, this is a {type(value).__name__}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        problems.add(f"{path}, after line {number}", f"the compressed file is cut off or damaged: {e}")
    except OSError as e:
        problems.add(path, e.strerror or str(e))


def first_object(path: Path, limit: int = 4 << 20, lines: int = 1) -> dict[str, Any]:
    """The first object in the first `lines` lines of a .jsonl(.gz) file; {} where there is none, or only one of more
    than `limit` bytes. For sniffing."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as f:
            for _ in range(lines):
                try:
                    value = json.loads(f.readline(limit).decode("utf-8", "replace"))
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    return value
    except (OSError, EOFError, zlib.error):
        pass
    return {}


def traces_json(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The trace records of a .json trace: an object with `traces`, or a plain list."""
    try:
        value = read_json(path)
    except Unreadable as e:
        problems.add(path, e)
        return
    records = value.get("traces") if isinstance(value, dict) else value
    if not isinstance(records, list):
        problems.add(path, "no list of traces in it")
        return
    for i, record in enumerate(records):
        if isinstance(record, dict):
            yield record
        else:
            problems.add(f"{path}, trace {i}", "an object was expected")


def traces_hdf5(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The trace records of an HDF5 trace (attributes of /traces/trace_NNNNNN; objects as JSON text). Needs h5py."""
    try:
        import h5py
    except ImportError:
        problems.add(path, "an HDF5 trace needs h5py to be read: pip install h5py")
        return
    try:
        with h5py.File(path, "r") as f:
            for name in sorted(f.get("traces", ())):
                yield {key: _plain(key, value) for key, value in f["traces"][name].attrs.items()}
    except (OSError, KeyError, AttributeError, TypeError, RuntimeError) as e:
        problems.add(path, f"not a readable HDF5 trace: {e}")


# Stored as JSON text. Other fields are text or numbers: a program or a prompt may look like JSON and not be meant so.
_OBJECTS = {"parent_metrics", "child_metrics", "prompt", "improvement_delta", "artifacts", "metadata"}


def _plain(key: str, value: Any) -> Any:
    """An HDF5 attribute as plain Python."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if hasattr(value, "tolist"):  # a numpy scalar or array
        value = value.tolist()
    if key in _OBJECTS and isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value


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
