"""Many searches at once, each a process of its own, against one server: the more are in flight, the fuller its batches.

Resumable: finished searches are skipped, unfinished ones begin again and replay. A search that fails or is killed is
reported and takes no other along. The processes are forked from one that has OpenEvolve loaded already (nursery.py),
since loading it takes longer than a short search of a model-free mutator; or started on a Ray cluster (cluster.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eft.errors import EftError, UsageError
from eft.search import process
from eft.search.display import Display
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
    child: Any  # nursery.Child or cluster.Remote
    progress: process.Progress
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def done(self) -> int:
        """Candidates so far."""
        return self.progress.done()


def run_all(
    specs: Iterable[SearchSpec], workers: int = 2, *, timeout_s: float | None = None, title: str = "search",
    quiet: bool = False, executor: str = "local", starter: Any = None,
) -> list[Outcome]:  # fmt: skip
    """Run the searches, `workers` at a time, and report in their order.

    `timeout_s`: seconds for one search, after which it counts as failed. `executor`: local (processes of this machine)
    or ray (a cluster's). `starter`: what starts them, where that is open already (see `opened`). Never raises for a
    search that fails; raises UsageError where two of them share a folder and EftError where no process or cluster can
    be had. Interrupted, it ends the running ones; the next call continues.
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
    display = Display(title, specs, [o.spec for o in outcomes.values()], quiet)
    at_once = max(1, min(workers, len(waiting)))
    keeper = opened(executor, at_once) if starter is None else contextlib.nullcontext(starter)
    with keeper as starter, display:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    i = waiting.popleft()
                    try:
                        child = starter.start(specs[i])
                    except UsageError as e:  # this one cannot be started (its folder is a file, say): others can
                        outcomes[i] = Outcome(specs[i], "failed", None, str(e))
                        display.ended(specs[i], outcomes[i].error)
                        continue
                    running[i] = _Running(specs[i], child, process.Progress(specs[i].folder))
                for i, search in list(running.items()):
                    outcome = _look(search, timeout_s)
                    if outcome is not None:
                        outcomes[i] = outcome
                        del running[i]
                        display.ended(search.spec, outcome.error)
                display.show(list(running.values()))
                time.sleep(POLL_S)
        finally:
            for search in running.values():
                search.child.end()
    return [outcomes[i] for i in range(len(specs))]


def opened(executor: str, at_once: int) -> Any:
    """What starts searches: a context manager with start(spec). It takes seconds to load what searches need, so open it
    early, and once for many calls of `run_all`. `at_once`: searches in flight; they share the cores."""
    if executor == "ray":
        from eft.search.cluster import Cluster

        return Cluster()
    if executor != "local":
        raise UsageError(f"there is no executor '{executor}'", way_out="valid: local, ray")
    return Nursery(cores=max(1, (os.cpu_count() or 1) // max(1, at_once)))


def _look(search: _Running, timeout_s: float | None) -> Outcome | None:
    """The outcome of a search that has ended (or is out of time, which ends it), else None."""
    code = search.child.poll()
    if code is None and (timeout_s is None or search.seconds < timeout_s):
        return None
    search.child.end()
    if code is None:
        return Outcome(search.spec, "failed", None, f"not finished after {timeout_s:.0f} s", search.seconds)
    try:
        return Outcome(search.spec, "done", process.collect(search.spec, code, search.child.why), None, search.seconds)
    except EftError as e:
        return Outcome(search.spec, "failed", None, str(e), search.seconds)


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
