"""Many searches at once, each a process of its own, against one server: the more are in flight, the fuller its batches.

Resumable: finished searches are skipped, unfinished ones begin again and replay. A search that fails or is killed is
reported and takes no other along. The processes are forked from one that has OpenEvolve loaded already (nursery.py),
since loading it takes longer than a short search of a model-free mutator.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from eft.errors import EftError, UsageError
from eft.search import process
from eft.search.nursery import Nursery
from eft.search.spec import SearchResult, SearchSpec, finished

POLL_S = 0.05


@dataclass(frozen=True)
class Outcome:
    """How one search went. `status`: done, skipped (it was done already), failed (then `error` says why)."""

    spec: SearchSpec
    status: str
    result: SearchResult | None = None
    error: str | None = None
    seconds: float = 0.0


@dataclass
class _Running:
    """A search in flight."""

    spec: SearchSpec
    child: process.Process
    progress: process.Progress
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def run_all(
    specs: Iterable[SearchSpec], workers: int = 2, *, timeout_s: float | None = None, title: str = "search",
    quiet: bool = False,
) -> list[Outcome]:  # fmt: skip
    """Run the searches, `workers` at a time, and report in their order.

    `timeout_s`: seconds for one search, after which it counts as failed. Never raises for a search that fails; raises
    UsageError where two of them share a folder. Interrupted, it ends the running ones; the next call continues.
    """
    specs = list(specs)
    folders = [os.path.realpath(s.out) for s in specs]
    if len(set(folders)) < len(folders):
        twice = next(f for f in folders if folders.count(f) > 1)
        raise UsageError("two searches would write into one folder", where=twice)
    outcomes: dict[int, Outcome] = {}
    for i, spec in enumerate(specs):
        if (result := finished(spec)) is not None:
            outcomes[i] = Outcome(spec, "skipped", result)
    waiting = deque(i for i in range(len(specs)) if i not in outcomes)
    running: dict[int, _Running] = {}
    if not waiting:
        return [outcomes[i] for i in range(len(specs))]
    with Nursery() as nursery, Display(title, specs, outcomes, quiet) as display:
        try:
            while waiting or running:
                while waiting and len(running) < max(1, workers):
                    i = waiting.popleft()
                    running[i] = _Running(specs[i], nursery.start(specs[i]), process.Progress(specs[i].folder))
                for i, search in list(running.items()):
                    outcome = _look(search, timeout_s)
                    if outcome is not None:
                        outcomes[i] = outcome
                        del running[i]
                        display.ended(outcome)
                display.show(running.values())
                time.sleep(POLL_S)
        finally:
            for search in running.values():
                process.kill(search.child, grace_s=0.0)
    return [outcomes[i] for i in range(len(specs))]


def _look(search: _Running, timeout_s: float | None) -> Outcome | None:
    """The outcome of a search that has ended (or is out of time, which ends it), else None."""
    code = search.child.poll()
    if code is None and (timeout_s is None or search.seconds < timeout_s):
        return None
    process.kill(search.child)
    if code is None:
        return Outcome(search.spec, "failed", None, f"not finished after {timeout_s:.0f} s", search.seconds)
    try:
        return Outcome(search.spec, "done", process.collect(search.spec, code), None, search.seconds)
    except EftError as e:
        return Outcome(search.spec, "failed", None, str(e), search.seconds)


class Display:
    """Progress on standard error: a bar with the time left on a terminal, else a line now and then."""

    def __init__(self, title: str, specs: list[SearchSpec], outcomes: dict[int, Outcome], quiet: bool) -> None:
        self.title, self.quiet = title, quiet
        self.searches, self.ended_searches, self.failed = len(specs), len(outcomes), 0
        self.total = sum(s.iterations for s in specs)
        self.before = sum(o.spec.iterations for o in outcomes.values())  # done in an earlier run
        self.ended_candidates = self.before
        self.started = self.said = time.monotonic()
        self.bar = None

    def __enter__(self) -> Display:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            words = TextColumn("{task.fields[words]}")
            self.bar = Progress(TextColumn("{task.description}"), BarColumn(), words, TimeRemainingColumn(),
                                console=Console(stderr=True))  # fmt: skip
            self.bar.start()
            self.task = self.bar.add_task(self.title, total=self.total, completed=self.before, words="")
        elif not self.quiet:
            print(f"{self.title}: {self._words(self.before)}", file=sys.stderr)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        elif not self.quiet:
            print(f"{self.title}: {self._words(self.ended_candidates)}, {time.monotonic() - self.started:.0f} s",
                  file=sys.stderr)  # fmt: skip

    def ended(self, outcome: Outcome) -> None:
        self.ended_searches += 1
        self.ended_candidates += outcome.spec.iterations
        if outcome.status == "failed":
            self.failed += 1
            message = f"{self.title}: '{outcome.spec.name}' failed\n{outcome.error}"
            self.bar.console.print(message, markup=False) if self.bar else print(message, file=sys.stderr)

    def show(self, running: Iterable[_Running]) -> None:
        if self.quiet:
            return
        now = time.monotonic()
        if now - self.said < (0.5 if self.bar else 15.0):
            return
        self.said = now
        done = self.ended_candidates + sum(min(r.progress.done(), r.spec.iterations) for r in running)
        if self.bar is not None:
            self.bar.update(self.task, completed=done, words=self._words(done))
            return
        rate = (done - self.before) / (now - self.started)
        left = f", about {(self.total - done) / rate:.0f} s left" if rate > 0 else ""
        print(f"{self.title}: {self._words(done)}{left}", file=sys.stderr)

    def _words(self, done: int) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.ended_searches} of {self.searches} searches, {done} of {self.total} candidates{failed}"


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The ones that failed."""
    return [o for o in outcomes if o.status == "failed"]


def folder_name(*parts: object) -> str:
    """A name for a search and its folder from task, mutator, seed…: what paths and the gateway allow."""
    text = "-".join(str(p) for p in parts if str(p))
    return "".join(c if c.isalnum() and c.isascii() or c in "._-" else "-" for c in text).lstrip(".")[:120]


def absolute(path: Path) -> str:
    """Paths in specs are absolute: a search runs in its own folder."""
    return str(path.resolve())
