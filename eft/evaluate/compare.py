"""Who searches better? Comparisons of mutators from the searches of one evaluation: pure functions on plain data.

The unit of everything is one search (task, seed). Mutators are compared *paired*: the same task and the same seed.
    gap closed     (best - start) / (best known - start), in the task's raw metric; needs no direction (signs cancel).
                   0: nothing found, 1: the best known value reached; above 1: better than it.
    relative gain  the EFT paper's formula: (m - r) / |r| for "max" tasks, (r - m) / |r| for "min" ones; undefined at 0.
    valid edit     the reply parses, applies, changes the program's syntax tree and evaluates as valid.
    improves       a proposal that is better than its own parent. Always shown beside the gain: it is gamed by tiny safe
                   tweaks, and by no-ops when those are left out of the denominator (so both denominators are given).
What is undefined is listed with its reason, never dropped in silence. Order of the input does not matter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eft.evaluate.results import IMPROVED, NO_OP, MutatorInfo, Results, Search, TaskInfo
from eft.evaluate.stats import DRAWS, Mean, Rate, mean_interval, rate


@dataclass(frozen=True)
class Spread:
    """Mean and range over the seeds of one task. `n`: how many seeds have the value."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Behaviour:
    """What the proposals of some searches were like. Rates are of all proposals; `improves_of_edits` leaves no-ops out.

    `gain`: mean gain per proposal in units of the gap, None where that is undefined. Tokens: None if not billed.
    """

    proposals: int
    valid: Rate | None
    no_op: Rate | None
    improves: Rate | None
    improves_of_edits: Rate | None
    gain: float | None
    distinct: int
    evaluations: int
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    outcomes: dict[str, int]


@dataclass(frozen=True)
class Cell:
    """One mutator on one task. `curve`: (low, median, high) of the best so far per proposal, in `curve_unit`."""

    task: str
    mutator: str
    done: int
    failed: int
    score: Spread | None
    raw: Spread | None
    gap: Spread | None
    gain_start: float | None
    gain_base: float | None
    behaviour: Behaviour
    curve: tuple[tuple[float, float, float], ...]
    curve_unit: str  # gap | raw


@dataclass(frozen=True)
class Row:
    """One mutator over the whole suite."""

    mutator: MutatorInfo
    gap: Mean | None
    by_task: dict[str, float]  # mean gap closed
    behaviour: Behaviour
    done: int
    failed: int


@dataclass(frozen=True)
class Pair:
    """`mutator` minus `reference` in gap closed, paired by task and seed. `tasks`: mean differences, worst first."""

    mutator: str
    reference: str
    difference: Mean | None
    wins: int
    ties: int
    losses: int
    tasks: tuple[tuple[str, float], ...]
    unpaired: int  # searches of `mutator` without a partner


@dataclass(frozen=True)
class Undefined:
    """A number that does not exist, and why."""

    what: str
    task: str
    mutator: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """Everything that the report says in numbers."""

    rows: tuple[Row, ...]
    cells: tuple[Cell, ...]
    pairs: tuple[Pair, ...]
    undefined: tuple[Undefined, ...]
    failed: tuple[Search, ...]


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


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and range of the values that exist; None where none does."""
    known = sorted(v for v in values if v is not None)
    if not known:
        return None
    return Spread(min(max(math.fsum(known) / len(known), known[0]), known[-1]), known[0], known[-1], len(known))


def _total(values: Iterable[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def behaviour(searches: Sequence[Search]) -> Behaviour:
    """The proposals of `searches`, taken together; intervals allow for the dependence within a search."""
    outcomes: dict[str, int] = {}
    for s in searches:
        for name, count in s.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    proposals = sum(s.proposals for s in searches)
    gains = [s.gain for s in searches if s.proposals]
    return Behaviour(
        proposals=proposals,
        valid=rate((s.valid, s.proposals) for s in searches),
        no_op=rate((s.outcomes.get(NO_OP, 0), s.proposals) for s in searches),
        improves=rate((s.outcomes.get(IMPROVED, 0), s.proposals) for s in searches),
        improves_of_edits=rate((s.outcomes.get(IMPROVED, 0), s.proposals - s.outcomes.get(NO_OP, 0)) for s in searches),
        gain=None if not proposals or None in gains else math.fsum(gains) / proposals,  # type: ignore[arg-type]
        distinct=sum(s.distinct for s in searches),
        evaluations=sum(s.evaluations for s in searches),
        prompt_tokens=_total(s.prompt_tokens for s in searches),
        completion_tokens=_total(s.completion_tokens for s in searches),
        seconds=math.fsum(s.seconds for s in searches),
        outcomes=dict(sorted(outcomes.items())),
    )


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


def _cell(task: TaskInfo, mutator: str, searches: Sequence[Search], base_raw: float | None) -> Cell:
    done = [s for s in searches if s.status == "done"]
    raw = spread(s.best_raw for s in done)
    unit = "raw" if gap_closed(task.best_known, task.start_raw, task.best_known) is None else "gap"
    curves = [s.curve for s in done]
    if unit == "gap":
        curves = [tuple(gap_closed(v, task.start_raw, task.best_known) for v in c) for c in curves]
    mean = raw.mean if raw else None
    return Cell(
        task=task.name, mutator=mutator, done=len(done), failed=len(searches) - len(done),
        score=spread(s.best_score for s in done), raw=raw,
        gap=spread(gap_closed(s.best_raw, task.start_raw, task.best_known) for s in done),
        gain_start=relative_gain(mean, task.start_raw, task.direction),
        gain_base=relative_gain(mean, base_raw, task.direction),
        behaviour=behaviour(done), curve=band(curves), curve_unit=unit,
    )  # fmt: skip


Values = dict[str, dict[int, float]]  # task -> seed -> value, higher is better


def values_of(results: Results, mutator: str) -> tuple[Values, Values]:
    """(the gap closed, where it is defined; the raw metric, its sign turned for "min") by every finished search."""
    tasks = {t.name: t for t in results.tasks}
    gaps: Values = {}
    raws: Values = {}
    for s in results.searches:
        task = tasks.get(s.task)
        if s.mutator != mutator or s.status != "done" or task is None or s.best_raw is None:
            continue
        raws.setdefault(s.task, {})[s.seed] = -s.best_raw if task.direction == "min" else s.best_raw
        gap = gap_closed(s.best_raw, task.start_raw, task.best_known)
        if gap is not None:
            gaps.setdefault(s.task, {})[s.seed] = gap
    return gaps, raws


def _differences(mine: Values, theirs: Values) -> Values:
    """Mine - theirs wherever both have the task and the seed."""
    return {
        task: {seed: value - theirs[task][seed] for seed, value in seeds.items() if seed in theirs.get(task, {})}
        for task, seeds in mine.items()
    }


def pair(
    name: str, mine: tuple[Values, Values], reference: str, theirs: tuple[Values, Values], draws: int = DRAWS
) -> Pair:
    """The paired comparison of two mutators' (gaps, raw values); searches without a partner are counted, not used.

    Wins, ties and losses go by the raw values, so they exist where no best known value makes a gap.
    """
    gaps, raws = _differences(mine[0], theirs[0]), _differences(mine[1], theirs[1])
    flat = [d for seeds in raws.values() for d in seeds.values()]
    tasks = [(task, math.fsum(seeds.values()) / len(seeds)) for task, seeds in gaps.items() if seeds]
    return Pair(
        mutator=name, reference=reference, difference=mean_interval(gaps, draws=draws),
        wins=sum(d > 0 for d in flat), ties=sum(d == 0 for d in flat), losses=sum(d < 0 for d in flat),
        tasks=tuple(sorted(tasks, key=lambda t: (t[1], t[0]))),
        unpaired=sum(len(s) for s in mine[1].values()) - len(flat),
    )  # fmt: skip


def subjects(mutators: Sequence[MutatorInfo]) -> list[MutatorInfo]:
    """The mutators that an evaluation is about, in order: the tuned ones, else the baseline."""
    return [m for m in mutators if m.role == "tuned"] or [m for m in mutators if m.role == "baseline"]


def pairings(mutators: Sequence[MutatorInfo]) -> list[tuple[str, str]]:
    """Which comparisons answer a question: each tuned mutator against the baseline, against the tuned one before it
    (KTO against SFT), against the controls without a model, and against best-of-N of its own replies. Where nothing is
    tuned, the baseline itself is compared with the controls."""
    found: list[tuple[str, str]] = []
    tuned = subjects(mutators)
    for position, m in enumerate(tuned):
        found += [(m.name, b.name) for b in mutators if b.role == "baseline" and b is not m]
        found += [(m.name, tuned[position - 1].name)] if position else []
        found += [(m.name, c.name) for c in mutators if c.role == "control" and c.of in ("", m.name)]
    return found


def _undefined(results: Results, cells: Sequence[Cell], baseline: str | None) -> list[Undefined]:
    """Every number of the tables that does not exist, with its reason."""
    found = []
    for t in results.tasks:
        if t.best_known is None:
            found.append(Undefined("gap closed", t.name, "", "no best known value is on record"))
        elif t.start_raw is None:
            found.append(Undefined("gap closed", t.name, "", "the start program has no valid value"))
        elif t.start_raw == t.best_known:
            found.append(Undefined("gap closed", t.name, "", "the start program is as good as the best known value"))
        if t.start_raw == 0:
            found.append(Undefined("relative gain over the start program", t.name, "", "the start value is 0"))
    for c in cells:
        if c.done and c.raw is None:
            found.append(Undefined("best value", c.task, c.mutator, "no search found a valid program"))
        if c.mutator == baseline and c.raw is not None and c.raw.mean == 0:
            found.append(Undefined(f"relative gain over {baseline}", c.task, "", f"the mean of {baseline} is 0"))
        if c.mutator == baseline and not c.done:
            found.append(Undefined(f"relative gain over {baseline}", c.task, "", f"{baseline} has no finished search"))
    return found


def compare(results: Results, draws: int = DRAWS) -> Comparison:
    """All comparisons of an evaluation; works on a partial one. `draws`: bootstrap resamples (fixed seed)."""
    baseline = next((m.name for m in results.mutators if m.role == "baseline"), None)
    by_cell: dict[tuple[str, str], list[Search]] = {}
    for s in sorted(results.searches, key=lambda s: (s.task, s.mutator, s.seed)):
        by_cell.setdefault((s.task, s.mutator), []).append(s)
    cells = []
    for t in results.tasks:
        base = spread(s.best_raw for s in by_cell.get((t.name, baseline or ""), ()) if s.status == "done")
        for m in results.mutators:
            searches = by_cell.get((t.name, m.name), [])
            if searches:
                cells.append(_cell(t, m.name, searches, base.mean if base and m.name != baseline else None))
    rows, values = [], {m.name: values_of(results, m.name) for m in results.mutators}
    for m in results.mutators:
        own = [s for t in results.tasks for s in by_cell.get((t.name, m.name), [])]
        done = [s for s in own if s.status == "done"]
        by_task = {c.task: c.gap.mean for c in cells if c.mutator == m.name and c.gap}
        rows.append(
            Row(
                m,
                mean_interval(values[m.name][0], draws=draws),
                by_task,
                behaviour(done),
                len(done),
                len(own) - len(done),
            )
        )
    return Comparison(
        rows=tuple(rows),
        cells=tuple(cells),
        pairs=tuple(pair(a, values[a], b, values[b], draws) for a, b in pairings(results.mutators)),
        undefined=tuple(_undefined(results, cells, baseline)),
        failed=tuple(s for key in sorted(by_cell) for s in by_cell[key] if s.status != "done"),
    )
