"""The programs of one search by id, within a fixed amount of memory.

A search may have left more text than fits into memory: programs of five islands over thousands of iterations, each with
a prompt of 100 KB. What is needed to order and join the programs stays in memory; their texts go into an unlinked
temporary file once they are more than `BUDGET` bytes, and come back one program at a time.
"""

from __future__ import annotations

import copy
import marshal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

BUDGET = 256 << 20  # bytes of text in memory, of one search
_HEAVY = ("code", "metrics", "parent_code", "parent_metrics", "system", "user", "responses", "artifacts", "usage",
          "changes")  # fmt: skip
_FIXED = ("id", "source", "sources", "whole", "kept", "asked", "replied")


@dataclass
class Piece:
    """What one file says about one program; None where it says nothing."""

    id: str
    source: str
    parent_id: str | None = None
    code: str | None = None
    metrics: dict | None = None
    parent_code: str | None = None
    parent_metrics: dict | None = None
    language: str | None = None
    iteration: int | None = None
    generation: int | None = None
    island: int | None = None
    system: str | None = None
    user: str | None = None
    key: str | None = None  # name of the prompt in the log: diff_user, full_rewrite_user, …
    responses: list[str] | None = None
    artifacts: dict | None = None
    artifact_dir: str | None = None  # where its large artifacts were put, as the log has it
    mode: str | None = None  # evolution_mode: what form of edit was asked for (0.4.1)
    usage: dict | None = None
    model: str | None = None
    changes: str | None = None  # the scaffold's summary of the edit
    migrant: bool | None = None
    made: float | None = None  # when the program was made, seconds since the epoch (program files)
    logged: float | None = None  # when the trace recorded it
    seconds: float | None = None  # from asking for it to having it
    sources: list[str] = field(default_factory=list)
    whole: bool = False  # nothing that an older file could add
    asked: bool = False  # the prompt is known
    replied: bool = False  # a reply is known
    kept: tuple[int, int] | None = None  # (offset, length) in the spool, while the texts are there

    def absorb(self, other: Piece) -> None:
        """Take over what `other`, a less trusted place, knows and this one does not."""
        for name in _ABSORBED:
            if getattr(self, name) is None:
                setattr(self, name, getattr(other, name))
        self.sources.append(other.source)

    @property
    def complete(self) -> bool:
        """Has all that makes a transition."""
        return None not in (self.code, self.metrics, self.parent_metrics, self.responses, self.user)


_ABSORBED = tuple(f.name for f in fields(Piece) if f.name not in _FIXED)


class Pieces:
    """All programs of a search. `folder`: where the spool may be (None: the system's temporary folder)."""

    def __init__(self, folder: Path | None = None, budget: int = BUDGET) -> None:
        self.folder, self.budget = folder, budget
        self.spilled = 0  # how often the texts were moved out
        self._known: dict[str, Piece] = {}
        self._weight = 0  # bytes in memory
        self._in_memory: set[str] = set()
        self._file: Any = None

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def light(self) -> Iterator[Piece]:
        """All programs; their texts may be missing."""
        return iter(self._known.values())

    def peek(self, name: str | None) -> Piece | None:
        """The program; its texts may be missing."""
        return self._known.get(name or "")

    def get(self, name: str | None) -> Piece | None:
        """The program, whole."""
        known = self._known.get(name or "")
        if known is None or known.kept is None:
            return known
        offset, length = known.kept
        self._file.seek(offset)
        values = marshal.loads(self._file.read(length))
        whole = copy.copy(known)
        whole.__dict__.update(zip(_HEAVY, values, strict=True), kept=None)
        return whole

    def take(self, piece: Piece, *, record: bool) -> bool:
        """Join what one file says with what is known. `record`: it is a program file, which has all there is. True
        where nothing is left that an older file could add."""
        known = self.get(piece.id)
        if known is None:
            known = piece
        else:
            self._weight -= _weight(known) if piece.id in self._in_memory else 0
            known.absorb(piece)
        known.whole = known.whole or (record and known.complete)
        known.asked, known.replied = bool(known.user), bool(known.responses)
        self._known[piece.id] = known
        self._in_memory.add(piece.id)
        self._weight += _weight(known)
        if self._weight > self.budget:
            self._spill()
        return known.whole

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder, prefix=".spool.")  # noqa: SIM115  closed by close()
        self._file.seek(0, 2)
        for name in self._in_memory:
            piece = self._known[name]
            data = marshal.dumps([getattr(piece, heavy) for heavy in _HEAVY])
            piece.kept = (self._file.tell(), len(data))
            self._file.write(data)
            for heavy in _HEAVY:
                setattr(piece, heavy, None)
        self._in_memory.clear()
        self._weight = 0
        self.spilled += 1

    def close(self) -> None:
        """Let the texts go."""
        if self._file is not None:
            self._file.close()
        self._known.clear()


def _weight(piece: Piece) -> int:
    """About how many bytes a program's texts take."""
    weight = 2000  # the record itself
    for value in (piece.code, piece.parent_code, piece.system, piece.user, piece.changes, *(piece.responses or ())):
        if value:
            weight += value.__sizeof__()
    for value in (piece.metrics, piece.parent_metrics, piece.artifacts, piece.usage):
        if value:
            weight += _size(value)
    return weight


def _size(value: Any) -> int:
    """About how much a JSON value takes, in bytes. Goes down one level; deeper ones are estimated by their text."""
    if isinstance(value, str):
        return 50 + len(value)
    try:
        if isinstance(value, dict):
            return 100 + sum(len(k) + (50 + len(v) if isinstance(v, str) else 30 if not v or isinstance(v, int | float)
                                       else len(repr(v))) for k, v in value.items())  # fmt: skip
        return len(repr(value))
    except (RecursionError, ValueError):  # nested as deep as the JSON parser goes; an integer of thousands of digits
        return 10_000
