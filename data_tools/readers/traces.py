"""The evolution trace of OpenEvolve in its four formats, as records one after another.

`.jsonl` and `.jsonl.gz` are lines (files.py). A `.json` trace is one object with a list of records, written when the
run ends; it is read record by record all the same, so that a long run need not fit into memory, and what stands before
a tear is kept. A `.hdf5` trace is read in a process of its own: the HDF5 library is C, and a damaged file may take the
process down that reads it.
"""

from __future__ import annotations

import codecs
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_tools.readers.files import ELEMENTS, MEMORY, RECORD, Problems, Unreadable, json_lines, opened

_CHUNK = 1 << 20  # bytes read at once
_DECODER = json.JSONDecoder()
_LONGEST_READ_S = 600.0  # seconds of CPU for one HDF5 file
# Stored as JSON text. Other fields are text or numbers: a program or a prompt may look like JSON and not be meant so.
_OBJECTS = {"parent_metrics", "child_metrics", "prompt", "improvement_delta", "artifacts", "metadata"}


def records(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The records of a trace, whatever its format. What cannot be read is noted in `problems`."""
    read = {".json": traces_json, ".hdf5": traces_hdf5, ".h5": traces_hdf5}.get(path.suffix, json_lines)
    return read(path, problems)


# ------------------------------------------------------------------------------------------------------------- json


def traces_json(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The trace records of a .json trace: an object with `traces`, or a plain list."""
    number = 0
    try:
        with opened(path) as f:
            for number, record in enumerate(_elements(_Text(f))):
                if isinstance(record, dict):
                    yield record
                else:
                    problems.add(f"{path}, trace {number}", "an object was expected")
    except OSError as e:
        problems.add(path, e.strerror or str(e))
    except (ValueError, RecursionError, MemoryError, Unreadable) as e:
        problems.add(f"{path}, after {number} traces" if number else path, f"not a trace, or cut off: {e}")


class _Text:
    """Text of a file from a position on, read when it is needed. `at`: the position in `buffer`."""

    def __init__(self, file: Any) -> None:
        self.file, self.buffer, self.at, self.ended = file, "", 0, False
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def fill(self, wanted: int) -> None:
        """Have at least `wanted` characters from `at` on, or all that there are."""
        parts, have = [self.buffer[self.at :]], len(self.buffer) - self.at
        while have < wanted and not self.ended:
            raw = self.file.read(_CHUNK)
            self.ended = not raw
            parts.append(self.decoder.decode(raw, final=self.ended))
            have += len(parts[-1])
        self.buffer, self.at = "".join(parts), 0

    def peek(self) -> str:
        """The next character that is no white space, "" at the end."""
        while True:
            while self.at < len(self.buffer):
                if not self.buffer[self.at].isspace():
                    return self.buffer[self.at]
                self.at += 1
            if self.ended:
                return ""
            self.fill(1)

    def skip(self, character: str) -> None:
        if self.peek() != character:
            raise Unreadable(f"'{character}' was expected, found {self.peek()!r}")
        self.at += 1

    def value(self) -> Any:
        """The JSON value that begins here. Raises Unreadable where it is torn or too large."""
        self.peek()
        while True:
            rest = len(self.buffer) - self.at
            if rest > ELEMENTS and sum(self.buffer.count(c, self.at) for c in ",[{") > ELEMENTS:
                raise Unreadable(f"more than {ELEMENTS:,} values in one record: the rest is not read")
            try:
                found, end = _DECODER.raw_decode(self.buffer, self.at)
                if end < len(self.buffer) or self.ended:  # else a number may go on in what is not read yet
                    self.at = end
                    return found
            except ValueError as e:
                if self.ended:
                    raise Unreadable(str(e)) from None
            if rest >= RECORD:
                raise Unreadable(f"a record longer than {RECORD >> 20} MiB: the rest is not read")
            self.fill(min(RECORD, max(2 * rest, _CHUNK)))  # twice as much each time: linear in the value's size


def _elements(source: _Text) -> Iterator[Any]:
    """The elements of the list `traces` of an object, or of a list."""
    if source.peek() == "{":
        source.at += 1
        while source.peek() == '"':
            name = source.value()
            source.skip(":")
            if name == "traces":
                break
            source.value()
            if source.peek() == ",":
                source.at += 1
        else:
            raise Unreadable("no list of traces in it")
    if source.peek() != "[":
        raise Unreadable("no list of traces in it")
    source.at += 1
    while source.peek() != "]":
        yield source.value()
        if source.peek() != "]":
            source.skip(",")


# ------------------------------------------------------------------------------------------------------------- hdf5


def traces_hdf5(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The trace records of an HDF5 trace (attributes of /traces/trace_NNNNNN; objects as JSON text). Needs h5py."""
    import importlib.util

    if importlib.util.find_spec("h5py") is None:
        problems.add(path, "an HDF5 trace needs h5py to be read: pip install h5py")
        return
    try:
        opened(path).close()
    except (OSError, Unreadable) as e:
        problems.add(path, getattr(e, "strerror", None) or e)
        return
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-m", "data_tools.readers.traces", str(path.resolve())]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as reader,
    ):
        try:
            while raw := reader.stdout.readline(RECORD + 1):
                try:
                    record = json.loads(raw)
                except ValueError:
                    break  # the reader died, or the record is too long: the exit code or the rest tells
                if isinstance(record, dict):
                    yield record
        finally:
            reader.kill()
            reader.wait()
        errors.seek(0)
        said = errors.read(4096).decode("utf-8", "replace").strip().splitlines()
        if reader.returncode != 0 or said:
            problems.add(path, f"not a readable HDF5 trace: {said[-1] if said else 'its reader died'}")


def _read_hdf5(path: str) -> None:
    """Write the records of a file to standard output, one JSON object a line; on standard error, why it cannot be
    read. Links in it are not followed: they may lead to other files."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY, 4 * MEMORY))  # address space; the libraries alone map 1 GB
    resource.setrlimit(resource.RLIMIT_CPU, (int(_LONGEST_READ_S), int(_LONGEST_READ_S)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import h5py

    try:
        with h5py.File(path, "r") as f:
            if not isinstance(f.get("traces", getlink=True), h5py.HardLink) or not isinstance(f["traces"], h5py.Group):
                raise KeyError("there is no group /traces in it")
            traces = f["traces"]
            for name in sorted(traces):
                if isinstance(traces.get(name, getlink=True), h5py.HardLink):
                    record = {key: _plain(key, value) for key, value in traces[name].attrs.items()}
                    print(json.dumps(record, default=str), flush=False)
    except Exception as e:  # h5py raises half the built-in exceptions on damaged files
        print(f"{type(e).__name__}: {e}".splitlines()[0], file=sys.stderr)
        sys.exit(1)


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


if __name__ == "__main__":
    _read_hdf5(sys.argv[1])
