"""SQLite files of unknown origin, opened so that reading is all that can happen.

Read-only and immutable; where a write-ahead log stands beside the file (a run that is going on, or was killed, has its
last programs there, and an immutable connection does not see them), a temporary copy of both is read instead. The
schema is not trusted: only plain tables, only SELECT, no cell of more than `RECORD` bytes, and a statement that does
not end is ended. Damaged pages cost the rows on them and no others.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from data_tools.readers.files import RECORD, Problems, Unreadable, opened

MAGIC = b"SQLite format 3\0"
STEPS = 400  # millions of SQLite's instructions that one statement may take: some ten seconds
ROWS = 2_000_000  # rows of one table that are looked at
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}
_PRAGMAS = {"table_info", "trusted_schema", "cell_size_check"}


def is_sqlite(path: Path) -> bool:
    """Does this file begin as SQLite files do? Names say nothing (one tool called its file `None`)."""
    try:
        with opened(path) as f:
            return f.read(len(MAGIC)) == MAGIC
    except (OSError, Unreadable):
        return False


class Reader:
    """One open database. All methods are safe on any file; what cannot be read is named in `problems`."""

    def __init__(self, db: sqlite3.Connection, path: Path, problems: Problems) -> None:
        self.path, self.problems, self._db, self._steps = path, problems, db, 0
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, RECORD)
        db.set_progress_handler(self._tick, 1_000_000)
        db.set_authorizer(_authorised)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON"):
            self._all(f"PRAGMA {pragma}")

    def _tick(self) -> bool:
        self._steps += 1
        return self._steps > STEPS

    def _all(self, sql: str, values: tuple = (), most: int = ROWS) -> list[tuple]:
        """Rows up to `most`, or up to where an error ends them; the error goes to `problems`."""
        self._steps, found = 0, []
        try:
            for row in self._db.execute(sql, values):
                found.append(row)
                if len(found) >= most:
                    break
        except (sqlite3.Error, OverflowError, MemoryError, ValueError) as e:
            self.problems.add(self.path, f"SQLite: {e}")
        return found

    def columns(self, table: str) -> list[str]:
        """The columns of a plain table, [] where there is none of that name."""
        made = self._all("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        if not made or not isinstance(made[0][0], str) or not re.match(r"\s*CREATE\s+TABLE\b", made[0][0], re.I):
            return []
        return [row[1] for row in self._all(f'PRAGMA table_info("{table}")') if isinstance(row[1], str)]

    def rowids(self, table: str) -> list[int]:
        """All rows' numbers; behind a damaged page too, as far as the other end leads there."""
        before = len(self.problems)
        found = [r[0] for r in self._all(f'SELECT rowid FROM "{table}" ORDER BY rowid')]
        if len(self.problems) > before:
            last = found[-1] if found else -(2**63)
            behind = self._all(f'SELECT rowid FROM "{table}" WHERE rowid > ? ORDER BY rowid DESC', (last,))
            found += [r[0] for r in reversed(behind)]
        return [r for r in found if isinstance(r, int)]

    def row(self, table: str, columns: list[str], rowid: int) -> dict[str, Any] | None:
        """One row by its number; None where it cannot be read."""
        names = ", ".join(f'"{c}"' for c in columns)
        found = self._all(f'SELECT {names} FROM "{table}" WHERE rowid = ?', (rowid,), most=1)
        return dict(zip(columns, found[0], strict=True)) if found else None


def _authorised(action: int, first: str | None, *_: object) -> int:
    allowed = action in _ALLOWED or (action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextlib.contextmanager
def reading(path: Path, problems: Problems, folder: Path | None = None) -> Iterator[Reader | None]:
    """A database for as long as the block lasts; None where it cannot be opened. `folder`: where a copy may be."""
    with contextlib.ExitStack() as stack:
        try:
            copy = _copied(path, stack, folder)
        except (OSError, Unreadable) as e:
            problems.add(path, f"its write-ahead log cannot be read along: {getattr(e, 'strerror', None) or e}")
            copy = None
        place, how = (copy, "mode=rw") if copy else (path.resolve(), "mode=ro&immutable=1")
        try:
            db = sqlite3.connect(f"file:{quote(str(place))}?{how}", uri=True)
            stack.callback(db.close)
            reader = Reader(db, path, problems)
        except (sqlite3.Error, OSError, ValueError) as e:
            problems.add(path, f"SQLite: {e}")
            reader = None
        yield reader


def _copied(path: Path, stack: contextlib.ExitStack, folder: Path | None) -> Path | None:
    """A temporary copy of the database with its write-ahead log, where it has one with something in it."""
    log = path.with_name(path.name + "-wal")
    if not log.is_file() or log.is_symlink() or log.stat().st_size == 0:
        return None
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=".sqlite."))) / "copy"
    for source, target in ((path, place), (log, place.with_name("copy-wal"))):
        with opened(source) as f, open(target, "wb") as t:
            shutil.copyfileobj(f, t, 1 << 20)
    return place
