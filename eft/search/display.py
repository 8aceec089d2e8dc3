"""What a run of many searches shows while it goes on: a live table on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from eft.search.spec import SearchSpec

ROWS = 12  # searches in flight that the table shows
LINE_S, TABLE_S = 15.0, 0.5  # seconds between two looks: without and with a terminal


class InFlight(Protocol):
    """A search in flight, as far as it is shown. `done()`: candidates so far; `seconds`: since it started."""

    spec: SearchSpec
    seconds: float

    def done(self) -> int: ...


def clock(seconds: float) -> str:
    """1:05 or 2:03:09."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


class Display:
    """Progress on standard error. `before`: the specs among `specs` that were done in an earlier run."""

    def __init__(self, title: str, specs: list[SearchSpec], before: list[SearchSpec], quiet: bool) -> None:
        self.title, self.quiet = title, quiet
        self.searches, self.ended_searches, self.failed = len(specs), len(before), 0
        self.total = sum(s.iterations for s in specs)
        self.before = sum(s.iterations for s in before)
        self.ended_candidates = self.before
        self.started = self.said = time.monotonic()
        self.live: Any = None

    def __enter__(self) -> Display:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self.live.start()
        if not self.quiet:
            self._say(f"{self.title}: {self.words(self.before)}")
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None
        if not self.quiet:
            self._say(f"{self.title}: {self.words(self.ended_candidates)}, {time.monotonic() - self.started:.0f} s")

    def _say(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr)

    def ended(self, spec: SearchSpec, error: str | None) -> None:
        """A search has ended; `error`: why it failed."""
        self.ended_searches += 1
        self.ended_candidates += spec.iterations
        if error is not None:
            self.failed += 1
            self._say(f"{self.title}: '{spec.name}' failed\n{error}")

    def show(self, running: Sequence[InFlight]) -> None:
        """Look at the running searches, where it is time to."""
        now = time.monotonic()
        if self.quiet or now - self.said < (LINE_S if self.live is None else TABLE_S):
            return
        self.said = now
        done = [min(r.done(), r.spec.iterations) for r in running]
        if self.live is None:
            self._say(f"{self.title}: {self.words(self.ended_candidates + sum(done))}{self.left(sum(done))}")
        else:
            self.live.update(self.table(running, done), refresh=True)

    def left(self, running: int) -> str:
        """How long the rest will take at the rate so far. `running`: candidates of unfinished searches."""
        done = self.ended_candidates + running
        rate = (done - self.before) / max(time.monotonic() - self.started, 1e-9)
        return f", about {(self.total - done) / rate:.0f} s left" if rate > 0 else ""

    def words(self, done: int) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.ended_searches} of {self.searches} searches, {done} of {self.total} candidates{failed}"

    def table(self, running: Sequence[InFlight], done: list[int]) -> Any:
        """The table: one row for each search in flight, slowest first, and the whole in its caption."""
        from rich.table import Table

        table = Table(caption=f"{self.title}: {self.words(self.ended_candidates + sum(done))}{self.left(sum(done))}",
                      box=None, pad_edge=False, caption_justify="left")  # fmt: skip
        for name, justify in (("search", "left"), ("candidates", "right"), ("time", "right"), ("left", "right")):
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        rows = sorted(zip(running, done, strict=True), key=lambda row: row[1] / row[0].spec.iterations)
        for search, n in rows[:ROWS]:
            left = clock(search.seconds / n * (search.spec.iterations - n)) if n else ""
            table.add_row(search.spec.name, f"{n} of {search.spec.iterations}", clock(search.seconds), left)
        if len(rows) > ROWS:
            table.add_row(f"and {len(rows) - ROWS} more", "", "", "")
        return table
