"""Who searches better? Comparisons of mutators from the searches of one evaluation: pure functions on plain data.

The unit of everything is one search (task, seed). Mutators are compared *paired*: the same task and the same seed,
under the same scaffold (`contenders.py`). What a search is worth stands in `metrics.py`: the gap closed by its best
program on hidden instances is the headline, beside it the area under the best-so-far curve and the proposals to reach
the reference's best. What is undefined is listed with its reason, never dropped in silence. Order of the input does
not matter.

    valid edit     the reply parses, applies, changes the program's syntax tree and evaluates as valid.
    improves       a proposal that is better than its own parent. Always shown beside the gain: it is gamed by tiny safe
                   tweaks, and by no-ops when those are left out of the denominator (so both denominators are given).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eft.evaluate import metrics, significance
from eft.evaluate.comparison import (
    Behaviour,
    Cell,
    Comparison,
    Needs,
    Pair,
    Reach,
    Row,
    Transfer,
    Undefined,
)
from eft.evaluate.contenders import pairings, references, scaffolds, separated, subjects
from eft.evaluate.metrics import band, gap_closed, relative_gain, spread
from eft.evaluate.results import BROKEN, IMPROVED, NO_OP, PROGRAMS, Results, Search, TaskInfo
from eft.evaluate.significance import ALPHA, Test
from eft.evaluate.stats import DRAWS, Mean, Rate, error_of_seeds, mean_interval, rate

__all__ = ["band", "compare", "gap_closed", "pairings", "relative_gain", "spread", "subjects"]

Values = dict[str, dict[int, float]]  # task -> seed -> value


def _total(values: Iterable[int | None]) -> int | None:
    found = [v for v in values if v is not None]
    return sum(found) if found else None


def behaviour(searches: Sequence[Search]) -> Behaviour:
    """The proposals of `searches`, taken together; intervals allow for the dependence within a search."""
    outcomes: dict[str, int] = {}
    for s in searches:
        for name, count in s.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    proposals = sum(s.proposals for s in searches)
    gains = [s.gain for s in searches if s.proposals]

    def share(*names: str) -> Rate | None:
        return rate((sum(s.outcomes.get(n, 0) for n in names), s.proposals) for s in searches)

    return Behaviour(
        proposals=proposals,
        valid=rate((s.valid, s.proposals) for s in searches),
        no_op=share(NO_OP),
        improves=share(IMPROVED),
        improves_of_edits=rate((s.outcomes.get(IMPROVED, 0), s.proposals - s.outcomes.get(NO_OP, 0)) for s in searches),
        broken=share(BROKEN),
        errors=share("invalid:evaluator_error"),
        timeouts=share("invalid:timeout"),
        gain=None if not proposals or None in gains else math.fsum(gains) / proposals,  # type: ignore[arg-type]
        distinct=sum(s.distinct for s in searches),
        evaluations=sum(s.evaluations for s in searches),
        prompt_tokens=_total(s.prompt_tokens for s in searches),
        completion_tokens=_total(s.completion_tokens for s in searches),
        seconds=math.fsum(s.seconds for s in searches),
        outcomes=dict(sorted(outcomes.items())),
    )


@dataclasses.dataclass(frozen=True)
class Found:
    """What one mutator's finished searches found. `raws`: the final raw value, its sign turned for "min", so that
    higher is better; `gaps` and `areas`: where they are defined; `searches`: all of them, by task and seed."""

    gaps: Values
    raws: Values
    areas: Values
    searches: dict[str, dict[int, Search]]


def found_by(searches: Iterable[Search], tasks: Mapping[str, TaskInfo], final: Mapping[str, bool]) -> Found:
    """`final`: by task, whether the value after the search counts (else the search's own best)."""
    found = Found({}, {}, {}, {})
    for s in searches:
        task = tasks.get(s.task)
        if s.status != "done" or task is None:
            continue
        found.searches.setdefault(s.task, {})[s.seed] = s
        at = metrics.ends(s, task, final[s.task])
        for table, value in (
            (found.raws, -at.value if at.value is not None and task.direction == "min" else at.value),
            (found.gaps, at.gap), (found.areas, metrics.area(s, task)),
        ):  # fmt: skip
            if value is not None:
                table.setdefault(s.task, {})[s.seed] = value
    return found


def differences(mine: Values, theirs: Values) -> Values:
    """Mine - theirs wherever both have the task and the seed."""
    return {
        task: {seed: value - theirs[task][seed] for seed, value in seeds.items() if seed in theirs.get(task, {})}
        for task, seeds in mine.items()
    }


def pair(
    name: str, mine: Found, reference: str, theirs: Found, tasks: Mapping[str, TaskInfo] | None = None,
    draws: int = DRAWS,
) -> Pair:  # fmt: skip
    """The paired comparison of two mutators; searches without a partner are counted, not used. Not yet adjusted for
    other comparisons (`adjust`). `tasks`: for relative gains and proposals to reach the reference's best."""
    gaps, raws = differences(mine.gaps, theirs.gaps), differences(mine.raws, theirs.raws)
    flat = [d for seeds in raws.values() for d in seeds.values()] + _one_sided(mine, theirs)
    wins, losses = sum(d > 0 for d in flat), sum(d < 0 for d in flat)
    means = [(task, math.fsum(seeds.values()) / len(seeds)) for task, seeds in gaps.items() if seeds]
    relative = _relative(mine.raws, theirs.raws, tasks or {})
    return Pair(
        mutator=name, reference=reference, difference=mean_interval(gaps, draws=draws),
        wins=wins, ties=len(flat) - wins - losses, losses=losses,
        tasks=tuple(sorted(means, key=lambda t: (t[1], t[0]))),
        unpaired=sum(len(seeds.keys() - theirs.searches.get(t, {}).keys()) for t, seeds in mine.searches.items()),
        area=mean_interval(differences(mine.areas, theirs.areas), draws=draws),
        relative=math.fsum(relative) / len(relative) if relative else None, relative_tasks=len(relative),
        over_searches=significance.wilcoxon([d for seeds in gaps.values() for d in seeds.values()]),
        over_tasks=significance.wilcoxon([d for _, d in means]) if len(means) > 1 else None,
        by_sign=significance.sign(wins, losses), reach=_reach(mine, theirs, tasks or {}),
    )  # fmt: skip


def _one_sided(mine: Found, theirs: Found) -> list[float]:
    """1 for every paired search where only mine found a valid program at all, -1 where only theirs did."""
    found = []
    for task, seeds in mine.searches.items():
        for seed in seeds.keys() & theirs.searches.get(task, {}).keys():
            sides = [seed in side.raws.get(task, {}) for side in (mine, theirs)]
            found += [float(sides[0] - sides[1])] if sides[0] != sides[1] else []
    return found


def _relative(mine: Values, theirs: Values, tasks: Mapping[str, TaskInfo]) -> list[float]:
    """The paper's relative gain by task, where it is defined: of the mean over the paired seeds."""
    found = []
    for name, seeds in mine.items():
        shared = sorted(set(seeds) & set(theirs.get(name, {})))
        if shared and name in tasks:
            ours, reference = (math.fsum(v[name][s] for s in shared) / len(shared) for v in (mine, theirs))
            gain = relative_gain(ours, reference, "max")  # the sign of "min" is turned already
            found += [] if gain is None else [gain]
    return found


def _reach(mine: Found, theirs: Found, tasks: Mapping[str, TaskInfo]) -> Reach | None:
    """How soon the reference's best was reached, on the instances that the searches saw."""
    ours: list[float] = []
    others: list[float] = []
    idle = 0
    for name, seeds in mine.searches.items():
        for seed, search in seeds.items():
            other = theirs.searches.get(name, {}).get(seed)
            if other is None or name not in tasks or not search.curve or not other.curve:
                continue
            target, direction = metrics.known(other.curve[-1]), tasks[name].direction
            if target is None or metrics.reached(other.curve, target, direction) == 0:
                idle += 1
                continue
            steps = (metrics.reached(c, target, direction) for c in (search.curve, other.curve))
            a, b = (math.inf if step is None else step for step in steps)
            ours, others = [*ours, a], [*others, b]
    if not ours:
        return Reach(0, 0, None, None, idle) if idle else None

    def middle(values: list[float]) -> float | None:  # the upper of two middles: a search that never got there counts
        value = statistics.median_high(values)
        return None if math.isinf(value) else value

    return Reach(len(ours), sum(math.isfinite(v) for v in ours), middle(ours), middle(others), idle)


def adjust(pairs: Sequence[Pair]) -> list[Pair]:
    """The same comparisons with Holm's correction for their number, and with what their differences would need."""
    changed = list(pairs)
    for field in ("over_searches", "over_tasks", "by_sign"):
        known = [(i, getattr(p, field)) for i, p in enumerate(changed) if getattr(p, field) is not None]
        for (i, test), p in zip(known, significance.holm([t.p for _, t in known]), strict=True):
            changed[i] = dataclasses.replace(changed[i], **{field: Test(test.p, test.n, p)})
    return changed


def needs(gaps: Values, comparisons: int) -> Needs | None:
    """What a difference as large as the mean of `gaps` needs, among so many `comparisons` (Holm at its strictest)."""
    import numpy as np

    groups = [np.array(list(seeds.values())) for seeds in gaps.values() if seeds]
    if not groups:
        return None
    alpha = ALPHA / max(1, comparisons)
    means = np.array([g.mean() for g in groups])
    size, error, freedom = float(means.mean()), *error_of_seeds(groups)
    spreads = [float(g.var(ddof=1)) for g in groups if len(g) > 1]
    between = float(means.var(ddof=1)) if len(groups) > 1 else None
    return Needs(
        seeds=significance.seeds_needed(size, spreads, alpha) if len(spreads) == len(groups) else None,
        tasks=significance.tasks_needed(size, between, alpha) if between is not None else None,
        seen_here=significance.detectable(error, freedom, alpha) if freedom else None,
        seen_such=None if between is None else significance.detectable(
            max(math.sqrt(between / len(groups)), error), len(groups) - 1, alpha),
    )  # fmt: skip


def _cell(task: TaskInfo, mutator: str, searches: Sequence[Search], base_raw: float | None, final: bool) -> Cell:
    done = [s for s in searches if s.status == "done"]
    at = [metrics.ends(s, task, final) for s in done]
    raw = spread(e.value for e in at)
    unit = "raw" if gap_closed(task.best_known, task.start_raw, task.best_known) is None else "gap"
    curves = [tuple(metrics.gaps(s.curve, task)) if unit == "gap" else s.curve for s in done]
    mean = raw.mean if raw else None
    start = next((e.start for e in at if e.start is not None), task.start_raw)
    return Cell(
        task=task.name, mutator=mutator, done=len(done), failed=len(searches) - len(done),
        score=spread(metrics.known(s.final_score if final else s.best_score) for s in done), raw=raw,
        gap=spread(e.gap for e in at), area=spread(metrics.area(s, task) for s in done),
        gain_start=relative_gain(mean, start, task.direction),
        gain_base=relative_gain(mean, base_raw, task.direction),
        behaviour=behaviour(done), curve=band(curves), curve_unit=unit,
    )  # fmt: skip


def _undefined(results: Results, cells: Sequence[Cell], bases: Sequence[str], final: Mapping[str, bool]):
    """Every number of the tables that does not exist, with its reason."""
    found = []
    searches: dict[str, list[Search]] = {}
    for s in results.searches:
        if s.status == "done":
            searches.setdefault(s.task, []).append(s)
    for t in results.tasks:
        own = searches.get(t.name, [])
        at = metrics.ends(own[0], t, final[t.name]) if own else metrics.Ends(None, t.start_raw, t.best_known)
        where = " on the hidden instances" if final[t.name] and t.has_hidden else ""
        if at.best is None:
            found.append(Undefined("gap closed", t.name, "", "no best known value is on record"))
        elif at.start is None:
            found.append(Undefined("gap closed", t.name, "", f"the start program has no valid value{where}"))
        elif at.start == at.best:
            why = f"the start program is as good as the best known value{where}"
            found.append(Undefined("gap closed", t.name, "", why))
        if at.start == 0:
            found.append(Undefined("relative gain over the start program", t.name, "", "the start value is 0"))
        if metrics.measured_finally(own) is None:
            why = "only some searches were evaluated on the hidden instances: compared by what the searches saw"
            found.append(Undefined("final value", t.name, "", why))
        elif t.has_hidden and own and not final[t.name]:
            why = "these results do not have it: compared by what the searches saw"
            found.append(Undefined("final value on the hidden instances", t.name, "", why))
        for name in sorted({s.mutator for s in own if final[t.name] and metrics.failed_hidden(s)}):
            count = sum(metrics.failed_hidden(s) for s in own if s.mutator == name)
            why = f"{count} of its best programs failed there: counted as the start program"
            found.append(Undefined("final value", t.name, name, why))
    for c in cells:
        if c.done and c.raw is None:
            found.append(Undefined("best value", c.task, c.mutator, "no search found a valid program"))
        if c.mutator in bases:
            what = f"relative gain over {c.mutator}"
            if c.raw is not None and c.raw.mean == 0:
                found.append(Undefined(what, c.task, "", f"the mean of {c.mutator} is 0"))
            if not c.done:
                found.append(Undefined(what, c.task, "", f"{c.mutator} has no finished search"))
    return found


def _transfer(pairs: Sequence[Pair], rows: Sequence[Row], tasks: Mapping[str, TaskInfo], gaps: Mapping, bases, draws):
    """Gain over the baseline by domain of the held-out tasks, for every tuned mutator."""
    info = {r.mutator.name: r.mutator for r in rows}
    domains = sorted({t.domain or "no domain" for t in tasks.values()})
    found = []
    for p in pairs:
        if info[p.mutator].role != "tuned" or p.reference not in bases:
            continue
        own = gaps[p.mutator, p.reference]
        gains = []
        for d in domains:
            part = {t: seeds for t, seeds in own.items() if (tasks[t].domain or "no domain") == d}
            gains.append((d, mean_interval(part, draws=draws)))
        found.append(Transfer(p.mutator, p.reference, tuple(info[p.mutator].trained_on), tuple(gains)))
    return tuple(found)


def compare(results: Results, draws: int = DRAWS) -> Comparison:
    """All comparisons of one loop's results (`parts.part`); works on partial ones. `draws`: bootstrap resamples (fixed
    seed). Raises ValueError for results of several loops: their tasks make no mean."""
    if len({t.loop for t in results.tasks}) > 1:
        raise ValueError("results of several loops have no comparison in common: take them apart first")
    engines, results = scaffolds(results), separated(results)
    tasks = {t.name: t for t in results.tasks}
    by_cell: dict[tuple[str, str], list[Search]] = {}
    for s in sorted(results.searches, key=lambda s: (s.task, s.mutator, s.seed)):
        by_cell.setdefault((s.task, s.mutator), []).append(s)
    final = {t: bool(metrics.measured_finally(s for s in results.searches if s.task == t)) for t in tasks}
    own = {m.name: [s for t in results.tasks for s in by_cell.get((t.name, m.name), [])] for m in results.mutators}
    found = {name: found_by(searches, tasks, final) for name, searches in own.items()}
    gaps = {name: mean_interval(f.gaps, draws=draws) for name, f in found.items()}
    merit = {name: mean.point for name, mean in gaps.items() if mean}
    bases = references(results.mutators, merit)
    compared = pairings(results.mutators, merit)
    reference = _reference_of(results, compared, {b.name for b in bases})
    cells = []
    for t in results.tasks:
        for m in results.mutators:
            if searches := by_cell.get((t.name, m.name)):
                base = by_cell.get((t.name, reference.get(m.name, "")), [])
                raw = spread(metrics.ends(s, t, final[t.name]).value for s in base if s.status == "done")
                cells.append(_cell(t, m.name, searches, raw.mean if raw else None, final[t.name]))
    rows = []
    for m in results.mutators:
        done = [s for s in own[m.name] if s.status == "done"]
        by_task = {c.task: c.gap.mean for c in cells if c.mutator == m.name and c.gap}
        rows.append(Row(m, gaps[m.name], mean_interval(found[m.name].areas, draws=draws), by_task, behaviour(done),
                        len(done), len(own[m.name]) - len(done)))  # fmt: skip
    pairs = adjust([pair(a, found[a], b, found[b], tasks, draws) for a, b in compared])
    apart = {(a, b): differences(found[a].gaps, found[b].gaps) for a, b in compared}
    pairs = [dataclasses.replace(p, needs=needs(apart[p.mutator, p.reference], len(pairs))) for p in pairs]
    names = [b.name for b in bases]
    notes = _notes(results, names, merit)
    if alike := _alike(results):
        rows, pairs = [_of_these(r) for r in rows], [_of_these(p) for p in pairs]
        notes.append(f"The tasks are of one kind ({alike}): nothing here speaks of others, however many they are.")
    return Comparison(
        rows=tuple(rows),
        cells=tuple(cells),
        pairs=tuple(pairs),
        undefined=tuple(_undefined(results, cells, names, final)),
        failed=tuple(s for key in sorted(by_cell) for s in by_cell[key] if s.status != "done"),
        transfer=_transfer(pairs, rows, tasks, apart, names, draws),
        scaffolds=engines,
        hidden=tuple(t for t in tasks if final[t] and tasks[t].has_hidden),
        notes=tuple(notes),
    )


def _alike(results: Results) -> str:
    """The families of a loop's tasks where several are of one (splits of one table, say): they share what they are made
    of, so an interval or a test over them would take one thing for many. "" for independent tasks, and for programs,
    whose families only keep roles apart."""
    families = [t.family or t.name for t in results.tasks if t.loop != PROGRAMS]
    return ", ".join(sorted(set(families))) if len(set(families)) < len(families) else ""


def _of_these(found: Any) -> Any:
    """A row or a pair without what it would say of other tasks."""
    changes = {
        f.name: dataclasses.replace(value, such=None)
        for f in dataclasses.fields(found) if isinstance(value := getattr(found, f.name), Mean)
    }  # fmt: skip
    if isinstance(found, Pair):
        needed = found.needs and dataclasses.replace(found.needs, tasks=None, seen_such=None)
        changes |= {"over_tasks": None, "needs": needed}
    return dataclasses.replace(found, **changes)


def _reference_of(results: Results, compared: Sequence[tuple[str, str]], bases: set[str]) -> dict[str, str]:
    """The baseline that a mutator's relative gain is taken over; a control has that of those compared with it."""
    found = {a: b for a, b in compared if b in bases}
    for a, b in compared:
        if b not in bases and a in found:
            found.setdefault(b, found[a])
    only = next(iter(sorted(bases)), None) if len(bases) == 1 else None
    return {m.name: found.get(m.name, only) for m in results.mutators
            if m.name not in bases and found.get(m.name, only)}  # fmt: skip


def _notes(results: Results, bases: Sequence[str], merit: Mapping[str, float]) -> list[str]:
    """Which form of the baseline is the reference, where there are several."""
    baselines = [m.name for m in results.mutators if m.role == "baseline"]
    dropped = [b for b in baselines if b not in bases]
    if not dropped:
        return []
    shown = ", ".join(f"{b} closes {100 * merit[b]:.1f}%" for b in baselines if b in merit)
    return [f"Of the untouched model's forms the better one is the reference: {', '.join(bases)} ({shown} of the gap)."]
