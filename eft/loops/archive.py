"""All experience of a loop, also that of models that were rejected: which folder, by whom, how old. Append-only.

An entry is a folder of recorded searches (the output of `eft collect`) that is finished. What a model learned from is a
choice of entries; why the entry is there never changes, what has become of its author does, so status is not stored but
looked up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft.errors import EftError
from eft.gate.evidence import append, canonical, whole_lines

INDEX = "archive.jsonl"
TEACHER = "teacher"  # status of experience that no model of the loop made


@dataclass(frozen=True)
class Entry:
    """Recorded searches. `by`: the author's fingerprint, or the name of a teacher without a model."""

    id: str
    round: int
    by: str
    name: str
    path: str  # relative to the loop's folder
    replies: int
    time: float
    valid: int = -1  # valid edits among the replies; -1: not told


class Archive:
    """The index of a loop's experience, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entries(self) -> list[Entry]:
        """All entries, oldest first. Raises EftError for a damaged index."""
        found = []
        for number, line in enumerate(whole_lines(self.folder / INDEX), 1):
            try:
                found.append(Entry(**json.loads(line)))
            except (ValueError, TypeError) as e:
                raise EftError(
                    "the archive cannot be read", where=f"{self.folder / INDEX}, line {number}", why=str(e)
                ) from None
        return found

    def has(self, entry_id: str) -> bool:
        return any(e.id == entry_id for e in self.entries())

    def add(self, entry: Entry) -> None:
        """Add a finished folder, once: the same id again changes nothing."""
        if not self.has(entry.id):
            append(self.folder / INDEX, [canonical(entry.__dict__)])

    def choose(self, policy: str, round_number: int, status: dict[str, str], max_age: int | None) -> list[Entry]:
        """The entries to learn from in a round. `status`: fingerprint -> committed, rejected, undecided.

        current: this round's; committed: also older ones by models that were inherited; all: also those of rejected
        models. Teachers count as committed. `max_age`: rounds.
        """
        chosen = []
        for e in self.entries():
            age = round_number - e.round
            told = status.get(e.by, TEACHER)
            fits = age == 0 or policy == "all" or (policy == "committed" and told in ("committed", TEACHER))
            if age >= 0 and fits and (max_age is None or age <= max_age):
                chosen.append(e)
        return chosen

    def to_json(self, round_number: int, status: dict[str, str]) -> list[dict[str, Any]]:
        """The entries with the status of their authors and their age in rounds."""
        return [
            {
                **e.__dict__,
                "by": e.name,
                "author": e.by,
                "status": status.get(e.by, TEACHER),
                "age": round_number - e.round,
            }
            for e in self.entries()
        ]
