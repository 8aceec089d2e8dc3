"""What one search is worth: pure functions on its summary and its task.

    gap closed     (value - start) / (best known - start), in the task's raw metric; needs no direction (signs cancel).
                   0: nothing found, 1: the best known value reached; above 1: better than it. The value is the best
                   program's on the task's hidden instances, where it has such and they were evaluated.
    area           mean gap closed of the best so far over all proposals, on the instances that the search saw: the
                   normalised area under the best-so-far curve. A search that ended early keeps its last value.
    reach          proposals until the best so far is at least as good as a target.
    relative gain  the EFT paper's formula: (m - r) / |r| for "max" tasks, (r - m) / |r| for "min" ones; undefined at 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eft.evaluate.results import Search, TaskInfo


@dataclass(frozen=True)
class Spread:
    """Mean and range over the seeds of one task. `n`: how many seeds have the value."""

    mean: float
    low: float
    high: float
    n: int


def known(value: float | None) -> float | None:
    """`value` where it is a number; NaN and infinities count as missing."""
    return value if value is not None and math.isfinite(value) else None


def gap_closed(value: float | None, start: float | None, best: float | None) -> float | None:
    """How much of the way from `start` to `best` lies behind `value`; None where a number is missing, or no way."""
    if value is None or start is None or best is None or start == best:
        return None
    gap = (value - start) / (best - start)
    return gap if math.isfinite(gap) else None


def relative_gain(value: float | None, reference: float | None, direction: str) -> float | None:
    """The EFT paper's relative gain of `value` over `reference`, positive where better; None where undefined."""
    if value is None or not reference:
        return None
    gain = (value - reference) / abs(reference) * (-1 if direction == "min" else 1)
    return gain if math.isfinite(gain) else None


def measured_finally(searches: Iterable[Search]) -> bool | None:
    """Were the best programs evaluated after the search? True: all of them; False: none; None: only some."""
    found = {s.final_raw is not None or s.start_final_raw is not None for s in searches if s.status == "done"}
    return None if len(found) > 1 else found == {True}


def failed_hidden(search: Search) -> bool:
    """Did the best program fail on the hidden instances, where the start program did not?"""
    return search.final_raw is None and search.start_final_raw is not None


@dataclass(frozen=True)
class Ends:
    """The way of one search: from `start` to `value`, in the task's raw metric, and the `best` value on record."""

    value: float | None
    start: float | None
    best: float | None

    @property
    def gap(self) -> float | None:
        return gap_closed(self.value, self.start, self.best)


def ends(search: Search, task: TaskInfo, final: bool) -> Ends:
    """Where a search started and ended. `final`: after the search (on hidden instances where the task has them), else
    as the search itself measured it. A best program that fails on them is worth what the start program is."""
    if not final:
        return Ends(known(search.best_raw), known(task.start_raw), known(task.best_known))
    start = known(search.start_final_raw)
    if start is None:
        start = known(task.hidden_start_raw if task.has_hidden else task.start_raw)
    value = known(search.final_raw)
    best = task.hidden_best_known if task.has_hidden and task.hidden_best_known is not None else task.best_known
    return Ends(start if value is None else value, start, known(best))


def gaps(curve: Sequence[float | None], task: TaskInfo) -> list[float | None]:
    """A best-so-far curve in units of the gap, on the instances that the search saw."""
    return [gap_closed(known(v), known(task.start_raw), known(task.best_known)) for v in curve]


def area(search: Search, task: TaskInfo) -> float | None:
    """The normalised area under the best-so-far curve; None where the gap or a part of the curve is not known."""
    steps = gaps(search.curve[1:], task)
    if not steps or None in steps:
        return None
    missing = max(search.iterations, len(steps)) - len(steps)
    return math.fsum([*steps, *[steps[-1]] * missing]) / (len(steps) + missing)  # type: ignore[list-item]


def reached(curve: Sequence[float | None], target: float, direction: str) -> int | None:
    """The number of proposals after which the best so far is at least as good as `target`; None if it never is."""
    for step, value in enumerate(curve):
        if value is not None and (value <= target if direction == "min" else value >= target):
            return step
    return None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and range of the values that exist; None where none does."""
    found = sorted(v for v in values if v is not None)
    if not found:
        return None
    return Spread(min(max(math.fsum(found) / len(found), found[0]), found[-1]), found[0], found[-1], len(found))


def band(curves: Iterable[Sequence[float | None]]) -> tuple[tuple[float, float, float], ...]:
    """(low, median, high) per step over `curves`: the range of up to four, quartiles of more.

    A search that ended early keeps its last value. Curves with a hole are left out: a band over fewer and fewer
    searches would bend for no reason.
    """
    whole = [list(c) for c in curves if c and None not in c]
    if not whole:
        return ()
    length = max(len(c) for c in whole)
    steps = []
    for column in zip(*(c + [c[-1]] * (length - len(c)) for c in whole), strict=True):
        values = sorted(column)
        low, high = values[0], values[-1]
        if len(values) > 4:
            quarters = statistics.quantiles(values, n=4, method="inclusive")
            low, high = quarters[0], quarters[2]
        steps.append((low, statistics.median(values), high))
    return tuple(steps)
