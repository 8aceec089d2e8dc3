"""The gateway's journal: every reply, failure and evaluated proposal of a search, one JSON object a line.

`<folder>/<search>.jsonl` is append-only. A record counts once its line is on the disk (write, flush, fdatasync); a line
that a crash tore is cut off when the journal is opened again. Replies are found again by `key`, so that a search that
starts over is answered from the disk instead of asking, and paying, twice.

Honest limits: one process writes a folder at a time (a lock file sees to it); file systems that lie about fsync can
lose the last records in a power cut.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eft.errors import EftError
from eft.manifest import clear_disk_errors
from eft.records import to_json

Record = dict[str, Any]
_SPARE = 8 * 2**20  # bytes; with less free space than this on its disk, a journal counts as full


# An appended file's data and length are all that reading needs, and all that fdatasync writes; fsync writes its times
# too, which took twenty times as long where it was measured.
_to_disk = getattr(os, "fdatasync", os.fsync)  # not on macOS


def digest(mutator: str, identity: str, messages: list[Record], params: Record) -> str:
    """What makes two requests the same: SHA-256 hex over mutator, identity of its weights, messages and parameters."""
    text = json.dumps([mutator, identity, messages, params], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def key_of(request_digest: str, occurrence: int) -> str:
    """The replay key: the request, and how many equal ones were answered before it in the same search."""
    return f"{request_digest}:{occurrence}"


def line_of(record: Record) -> bytes:
    """One journal line. Non-finite numbers become strings; lone surrogates (broken model output) are escaped."""
    text = to_json(record)
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def parse_line(line: bytes) -> Record | None:
    """The record in one line, or None where the line is torn, blank or foreign."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "kind" in value else None


def read(path: Path) -> Iterator[Record]:
    """The records of a journal file, in order, without unreadable lines. Raises EftError where there is no file."""
    try:
        with open(path, "rb") as f:
            for line in f:
                record = parse_line(line)
                if record is not None:
                    yield record
    except FileNotFoundError:
        raise EftError("there is no such journal", where=path, way_out="name a <search>.jsonl of a gateway") from None
    except OSError as e:
        raise EftError("the journal cannot be read", where=path, why=e.strerror) from None


class SearchJournal:
    """One search's file: append, and find replies by key. Thread-safe; holds offsets in memory, not texts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._replies = 0  # reply records so far: the next record's `index`
        self._calls: dict[str, int] = {}  # mutator -> next call number
        self._groups: dict[str, list[tuple[int, int]]] = {}  # key -> (offset, length) of its n choices, in order
        self._last = ""  # key of the last record, where that is a reply
        self._size = 0
        self._load()

    def _load(self) -> None:
        unreadable = 0
        if self.path.exists():
            with open(self.path, "rb") as f:
                for line in f:
                    record = parse_line(line)
                    if not line.endswith(b"\n") and record is None:
                        break  # torn by a crash: cut off below
                    if record is None:
                        unreadable += 1
                    else:
                        self._note(record, self._size, len(line))
                    self._size += len(line)
            self._repair()
        self._forget_incomplete()
        if unreadable:
            print(f"journal: {unreadable} unreadable lines left as they are in {self.path}", file=sys.stderr)

    def _forget_incomplete(self) -> None:
        """A power cut may leave only some of the choices of the last request. It will be asked again as if it had not
        been, so its calls are the next ones once more."""
        group = self._groups.get(self._last)
        if group:
            with open(self.path, "rb") as f:
                f.seek(group[0][0])
                first = parse_line(f.read(group[0][1])) or {}
            if len(group) < first.get("n", 1) and isinstance(first.get("call"), int):
                self._calls[first.get("mutator", "")] = first["call"]

    def _repair(self) -> None:
        with clear_disk_errors(self.path), open(self.path, "r+b") as f:
            size = f.seek(0, os.SEEK_END)
            if size > self._size:
                print(f"journal: cut off a torn last line ({size - self._size} bytes) of {self.path}", file=sys.stderr)
                f.truncate(self._size)
            elif self._size:
                f.seek(self._size - 1)
                if f.read(1) == b"\n":
                    return
                f.write(b"\n")  # the record is whole, only its line end was lost
                self._size += 1
            f.flush()
            os.fsync(f.fileno())

    def _note(self, record: Record, offset: int, length: int) -> None:
        """Take a record that is on the disk into the index."""
        if record["kind"] != "reply":
            return
        self._replies += 1
        self._last = ""
        if isinstance(record.get("call"), int):
            mutator = record.get("mutator", "")
            self._calls[mutator] = max(self._calls.get(mutator, 0), record["call"] + 1)
        if record.get("status") != "ok" or not isinstance(record.get("key"), str):
            return
        # The choices of one request (n > 1) stand in order; choice 0 starts the group anew, so that a group which a
        # crash left incomplete is replaced by the one that was asked again.
        group = self._groups.setdefault(record["key"], [])
        if record.get("choice", 0) == 0:
            group.clear()
        group.append((offset, length))
        self._last = record["key"]

    def take_call(self, mutator: str) -> int:
        """The next call number of an in-process mutator; never given twice, over restarts too once it is journaled."""
        with self._lock:
            call = self._calls.get(mutator, 0)
            self._calls[mutator] = call + 1
            return call

    def lookup(self, key: str) -> list[Record] | None:
        """The journaled reply records (one per choice) under `key`, or None where there are none or not all of them."""
        spans = self._groups.get(key)
        if not spans:
            return None
        with open(self.path, "rb") as f:
            records = []
            for offset, length in spans:
                f.seek(offset)
                record = parse_line(f.read(length))
                if record is None:
                    return None
                records.append(record)
        return records if len(records) == records[0].get("n", 1) else None

    def add(self, entries: list[tuple[Record, list[Record]]]) -> None:
        """Append reply records, each with its proposals before it, in one write. Sets `index` on all of them.

        Raises EftError (full disk, folder gone); the file then ends where it ended before.
        """
        with self._lock:
            lines: list[tuple[Record, bytes]] = []
            for i, (reply, proposals) in enumerate(entries):
                for record in (*proposals, reply):
                    record["index"] = self._replies + i
                    lines.append((record, line_of(record)))
            with clear_disk_errors(self.path):
                self._write(b"".join(line for _, line in lines))
            for record, line in lines:
                self._note(record, self._size, len(line))
                self._size += len(line)

    def probe(self) -> None:
        """Raises EftError where nothing can be added: adds 64 kB of blank lines and takes them back."""
        with self._lock, clear_disk_errors(self.path), open(self.path, "ab", buffering=0) as f:
            try:
                f.write(b"\n" * 65536)
                os.fsync(f.fileno())
            finally:
                f.truncate(self._size)

    def _write(self, data: bytes) -> None:
        fresh = not self.path.exists()
        with open(self.path, "ab", buffering=0) as f:
            try:
                view = memoryview(data)
                while view:
                    view = view[f.write(view):]
                _to_disk(f.fileno())
            except OSError:
                f.truncate(self._size)
                raise
        if fresh:
            folder = os.open(self.path.parent, os.O_RDONLY)  # the new name must reach the disk too
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


class Journal:
    """A folder of search journals, held by one gateway at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock_file: Any = None
        self._searches: dict[str, SearchJournal] = {}
        self._opening = threading.Lock()

    def open(self) -> None:
        """Make the folder and lock it. Raises EftError where another gateway holds it or it cannot be written."""
        with clear_disk_errors(self.folder):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise EftError("the journal must be a folder", where=self.folder, why="a file is in the way") from None
            self._lock_file = open(self.folder / ".lock", "a")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise EftError("another gateway writes to this journal", where=self.folder,
                           way_out="stop it, or give this one another journal folder") from None  # fmt: skip
        self.check()

    def check(self) -> None:
        """Raises EftError where the disk is all but full: the next reply would be paid for and could not be kept."""
        with clear_disk_errors(self.folder):
            disk = os.statvfs(self.folder)
            if disk.f_bavail * disk.f_frsize < _SPARE:
                raise EftError("the disk is full", where=self.folder, why=f"less than {_SPARE >> 20} MB are free",
                               way_out="free space and run the same command again; replies are kept")  # fmt: skip

    def close(self) -> None:
        """Release the folder. Everything added is already on the disk."""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None
        self._searches.clear()

    def search(self, name: str) -> SearchJournal:
        """The journal of one search, read from the disk on first use."""
        with self._opening:
            if name not in self._searches:
                self._searches[name] = SearchJournal(self.folder / f"{name}.jsonl")
            return self._searches[name]
