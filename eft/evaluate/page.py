"""The report as one HTML page: the view that the template draws, and the rendering.

Every name, program, reply and error in it may be hostile (a model wrote them): autoescape is on, control characters and
direction marks are made visible, and the page has no script and asks nothing of any network.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft.evaluate import charts, text
from eft.evaluate.comparison import Cell, Comparison, Pair, Row
from eft.evaluate.contenders import engine, origin, separated
from eft.evaluate.provenance import Losses, Provenance
from eft.evaluate.results import VALID, MutatorInfo, Results, Search, TaskInfo
from eft.evaluate.stats import Mean
from eft.evaluate.verdict import TONES, Verdict, strength
from eft.gate.lineage import svg

TEMPLATES = Path(__file__).parent / "templates"
LONGEST = 4000  # characters of any one text; a page is for reading

# Outcomes in the order of the stacked bar: good first, then from "nearly an edit" to "nothing at all".
ORDER = ["improved", "repaired", "not_improved", "no_op", "invalid", "too_long", "malformed", "unmatched", "no_edit",
         "cut_off", "empty", "request_error", "lost"]  # fmt: skip

_UNSAFE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(value: Any) -> Any:
    """Text without characters that HTML forbids or that reorder what a reader sees; they become U+FFFD."""
    if isinstance(value, str) and not hasattr(value, "__html__"):  # what our own macros made has been through here
        return _UNSAFE.sub("\ufffd", value)
    return value


def styles(mutators: Sequence[MutatorInfo]) -> dict[str, str]:
    """CSS classes (colour and dash) by mutator: one colour under all scaffolds. best-of-N has its model's, dashed: same
    model, other search; so has a baseline's second form."""
    found: dict[str, str] = {}
    tuned = control = baseline = 0
    for m in mutators:
        name = origin(m.name)
        if name in found:
            continue
        if m.role == "baseline":
            found[name] = "c-base dashed" if baseline else "c-base"
            baseline += 1
        elif m.role == "tuned":
            found[name] = f"c-tuned{tuned % 4}"
            tuned += 1
        elif m.kind != "best_of_n":
            found[name] = f"c-control{control % 3}" + (" dashed" if control % 6 > 2 else "")
            control += 1
    for m in mutators:
        found.setdefault(origin(m.name), f"{found.get(m.of, 'c-base')} dashed")
    return {m.name: found[origin(m.name)] for m in mutators}


@dataclass(frozen=True)
class Dot:
    """A mark on a track with the text of its tooltip."""

    at: float
    title: str


@dataclass(frozen=True)
class Track:
    """One row of an interval chart: `thick` over the seeds alone, `thin` over tasks and seeds."""

    label: str
    style: str
    point: float | None
    thick: charts.Bar | None
    thin: charts.Bar | None
    dots: tuple[Dot, ...]
    value: str
    detail: str
    tone: str = ""


def _track(on: charts.Axis, label: str, style: str, mean: Mean | None, dots: Sequence[Dot], value: str, detail: str,
           tone: str = "") -> Track:  # fmt: skip
    if mean is None:
        return Track(label, style, None, None, None, tuple(dots), value, detail, tone)
    return Track(
        label,
        style,
        on.at(mean.point),
        charts.bar(on, mean.these),
        charts.bar(on, mean.such),
        tuple(dots),
        value,
        detail,
        tone,
    )


def gap_tracks(rows: Sequence[Row], style: dict[str, str]) -> tuple[charts.Axis, list[Track]]:
    """Mean gap closed of every mutator, its intervals, and a dot per task."""
    means = [r.gap for r in rows if r.gap]
    dots = [v for r in rows for v in r.by_task.values()]
    on = charts.interval_axis([m.point for m in means] + dots, [i for m in means for i in (m.these, m.such)])
    tracks = []
    for r in rows:
        marks = [Dot(on.at(v), f"{task}: {text.percent(v)}") for task, v in sorted(r.by_task.items())]
        if r.gap is None:
            why = r.mutator.error or ("no best known value" if r.done else "no finished search")
            tracks.append(_track(on, r.mutator.name, style[r.mutator.name], None, marks, text.DASH, why))
            continue
        inside = text.interval_percent(r.gap.such or r.gap.these)
        tracks.append(
            _track(on, r.mutator.name, style[r.mutator.name], r.gap, marks, text.percent(r.gap.point), inside)
        )
    return on, tracks


def versus(p: Pair) -> str:
    """A comparison's label: `kto − base`, and under which scaffold."""
    under = f" ({engine(p.mutator)})" if engine(p.mutator) else ""
    return f"{origin(p.mutator)} − {origin(p.reference)}{under}"


def pair_tracks(pairs: Sequence[Pair], style: dict[str, str]) -> tuple[charts.Axis, list[Track]]:
    """Paired differences, losses first, and a dot per task."""
    drawn = [p for p in pairs if p.difference]
    dots = [v for p in drawn for _, v in p.tasks]
    means = [p.difference for p in drawn if p.difference]
    on = charts.interval_axis([m.point for m in means] + dots, [i for m in means for i in (m.these, m.such)])
    tracks = []
    for p in sorted(drawn, key=lambda p: p.difference.point if p.difference else 0.0):
        marks = [Dot(on.at(v), f"{task}: {text.points(v)} points") for task, v in p.tasks]
        point = p.difference.point if p.difference else None
        label, tone = versus(p), TONES[strength(p)]
        score = f"{p.wins}–{p.ties}–{p.losses}"
        tracks.append(_track(on, label, style[p.mutator], p.difference, marks, text.points(point), score, tone))
    return on, tracks


def plots(
    tasks: Sequence[TaskInfo], cells: Sequence[Cell], style: dict[str, str], scaffold: str = ""
) -> list[charts.Plot]:
    """Best so far against proposals, one small chart per task, of the searches under one scaffold and of best-of-N."""
    found = []
    for t in tasks:
        own = [c for c in cells if c.task == t.name and c.curve and engine(c.mutator) in (scaffold, "")]
        gap = all(c.curve_unit == "gap" for c in own)
        title = (
            t.name
            if gap or not own
            else f"{t.name} ({t.raw_metric}, {'lower' if t.direction == 'min' else 'higher'} is better)"
        )
        # controls first, so that the tuned mutators are drawn on top of them
        own.sort(key=lambda c: ("tuned" in style[c.mutator] and "dashed" not in style[c.mutator], style[c.mutator]))
        found.append(charts.plot(title, [(style[c.mutator], c.curve) for c in own], include=(0.0,) if gap else (),
                                 label=text.percent if gap else text.number))  # fmt: skip
    return found


def loss_plots(losses: Sequence[Losses]) -> list[charts.Plot]:
    """Training loss by step, and validation loss where it was measured."""
    found = []
    for run in losses:
        series = [("c-tuned0", run.trained), ("c-control0 dashed", run.evaluated)]
        points = [p for _, s in series for p in s]
        steps = sorted(x for x, _ in points)
        drawn = [
            charts.plot(
                f"{run.stage}: loss by step", [(key, [(v, v, v) for _, v in s])], label=text.number,
                include=[v for _, v in points], xs=[x for x, _ in s], step=False, across=steps,
            )
            for key, s in series
            if s
        ]  # fmt: skip
        lines = tuple(line for p in drawn for line in p.lines)  # on the same axes: both were given all points
        found.append(charts.Plot(drawn[0].title, lines, drawn[0].x_ticks, drawn[0].y_ticks))
    return found


@dataclass(frozen=True)
class Slice:
    """One part of a stacked bar, in percent of its width."""

    name: str
    label: str
    kind: str  # CSS class
    count: int
    width: float


def _rank(name: str) -> tuple[int, str]:
    base = name.partition(":")[0]
    return (ORDER.index(base) if base in ORDER else len(ORDER), name)


def slices(outcomes: dict[str, int]) -> list[Slice]:
    """What became of all proposals, as parts of 100 %."""
    total = sum(outcomes.values()) or 1
    kinds = {n: "o-" + re.sub(r"[^a-z_]", "", n.partition(":")[0]) for n in outcomes}
    return [
        Slice(n, text.outcome(n), kinds[n], outcomes[n], round(100 * outcomes[n] / total, 3))
        for n in sorted(outcomes, key=_rank)
        if outcomes[n]
    ]


def _short(value: str) -> str:
    return value if len(value) <= LONGEST else value[:LONGEST] + f"\n[… {len(value) - LONGEST} more characters]"


def examples(searches: Sequence[Search]) -> list[tuple[str, str, str]]:
    """(mutator, label, reply): the first example of every kind of failure of every mutator."""
    found: dict[tuple[str, str], str] = {}
    for s in searches:
        for reason, reply in s.examples.items():
            found.setdefault((s.mutator, reason), reply)
    return [
        (m, text.outcome(r), _short(reply))
        for (m, r), reply in sorted(found.items(), key=lambda i: (i[0][0], _rank(i[0][1])))
    ]


def _merit(search: Search) -> float | None:
    return search.best_score if search.final_score is None else search.final_score


def winners(results: Results) -> list[tuple[TaskInfo, Search]]:
    """The best search of every task (by the scaffold's own score, ties by name and seed), where it found something."""
    found = []
    for t in results.tasks:
        own = [s for s in results.searches if s.task == t.name and s.best_diff and _merit(s) is not None]
        if own:
            found.append((t, min(own, key=lambda s: (-(_merit(s) or 0.0), s.mutator, s.seed))))
    return found


def leading(comparison: Comparison) -> list[tuple[Row, Pair | None]]:
    """Every mutator that was measured, with its comparison with the baseline where there is one."""
    bases = {r.mutator.name for r in comparison.rows if r.mutator.role == "baseline"}
    against = {p.mutator: p for p in comparison.pairs if p.reference in bases and p.mutator not in bases}
    return [(r, against.get(r.mutator.name)) for r in comparison.rows]


def contained(results: Results) -> list[tuple[str, str]]:
    """How candidates were kept away from the machine and from the score: (what, value) pairs."""
    tasks: dict[str, int] = {}
    for t in results.tasks:
        tasks[t.isolation or "not recorded"] = tasks.get(t.isolation or "not recorded", 0) + 1
    levels = sorted({s.sandbox for s in results.searches if s.sandbox}) or ["not recorded"]
    counted = ", ".join(f"{name} ({text.plural(n, 'task')})" for name, n in sorted(tasks.items()))
    return [("sandbox", "; ".join(levels)), ("isolation", counted or text.DASH)]


@dataclass(frozen=True)
class Matrix:
    """Differences by task (rows, worst first) and comparison (columns); None where there is no pair of searches."""

    pairs: tuple[Pair, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]


def matrix(pairs: Sequence[Pair]) -> Matrix:
    """Where the tuned mutators are behind, and where ahead."""
    drawn = sorted((p for p in pairs if p.difference), key=lambda p: p.difference.point if p.difference else 0.0)
    by_task: dict[str, list[float | None]] = {}
    for column, p in enumerate(drawn):
        for task, d in p.tasks:
            by_task.setdefault(task, [None] * len(drawn))[column] = d
    order = sorted(by_task.items(), key=lambda i: (min(v for v in i[1] if v is not None), i[0]))
    return Matrix(tuple(drawn), tuple((task, tuple(values)) for task, values in order))


def value(v: Any) -> str:
    """A count or setting of whatever type."""
    if isinstance(v, bool) or v is None:
        return {True: "yes", False: "no", None: text.DASH}[v]
    if isinstance(v, int):
        return text.count(v)
    if isinstance(v, list | tuple):
        return ", ".join(map(str, v)) or text.DASH
    return text.number(v) if isinstance(v, float) else str(v)


CONFIRMATION = ["mutator", "task", "against", "its value", "the other's", "difference (95%)", "fresh rows"]

# What decides a search's outcome, in a reader's words; everything else is in results.json.
SETTINGS = {
    "suite": "suite", "role": "role", "scaffold": "scaffold", "iterations": "proposals a search",
    "prompt_format": "prompt format", "edit": "form of an edit", "temperature": "temperature", "top_p": "top-p",
    "max_tokens": "most tokens a reply", "workers": "searches in flight",
}  # fmt: skip


def environment() -> Any:
    """The template environment: autoescape on, unknown names are errors, unsafe characters never reach the page."""
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=printable,
    )  # fmt: skip
    env.filters.update(
        number=text.number, percent=text.percent, signed=text.signed, points=text.points, count=text.count,
        duration=text.duration, interval_percent=text.interval_percent, short=_short, outcome=text.outcome,
        value=value, p_value=text.p_value, interval_points=text.interval_points, origin=origin, versus=versus,
    )  # fmt: skip
    return env


def render(
    results: Results, comparison: Comparison, verdict: Verdict, provenance: Provenance, loops: Sequence[Any] = ()
) -> str:
    """The whole page. Deterministic: the only time in it is the evaluation's own. `loops`: views of the other loops."""
    import markupsafe

    results = separated(results)
    style = styles(results.mutators)
    gap_axis, gaps = gap_tracks(comparison.rows, style)
    pair_axis, pairs = pair_tracks(comparison.pairs, style)
    cells = {(c.task, c.mutator): c for c in comparison.cells}
    finished = sum(s.status == "done" for s in results.searches)
    stacks = [(r, slices(r.behaviour.outcomes)) for r in comparison.rows]
    key = sorted({s.name: s for _, parts in stacks for s in parts}.values(), key=lambda s: _rank(s.name))
    failures = sorted({n for r in comparison.rows for n in r.behaviour.outcomes if n not in VALID}, key=_rank)
    several = comparison.scaffolds if len(comparison.scaffolds) > 1 else ()
    return environment().get_template("report.html.j2").render(
        results=results, comparison=comparison, verdict=verdict, provenance=provenance, style=style, cells=cells,
        gap_axis=gap_axis, gaps=gaps, pair_axis=pair_axis, pairs=pairs, matrix=matrix(comparison.pairs),
        plots=[(e, plots(results.tasks, comparison.cells, style, e)) for e in several or ("",)],
        legend=list({origin(m.name): style[m.name] for m in results.mutators}.items()), leading=leading(comparison),
        lineage=markupsafe.Markup(printable(svg(provenance.lineage["nodes"]))) if provenance.lineage else "",  # it escapes names
        archived=len(provenance.lineage.get("archive", [])) if provenance.lineage else 0,
        losses=loss_plots(provenance.losses), failures=failures, contained=contained(results),
        tone=lambda p: TONES[strength(p)], loops=loops, confirmation=CONFIRMATION,
        gap_label=text.percent, pair_label=text.points,
        settings=[(n, value(results.config[k])) for k, n in SETTINGS.items() if results.config.get(k) is not None],
        stacks=stacks, key=key, examples=examples(results.searches),
        winners=winners(results), finished=finished, partial=finished < max(results.planned, len(results.searches)),
        proposals=sum(s.proposals for s in results.searches), width=charts.WIDTH, height=charts.HEIGHT,
        left=charts.LEFT, right=charts.WIDTH - charts.RIGHT, top=charts.TOP, bottom=charts.HEIGHT - charts.BOTTOM,
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(results.started)) if results.started else "",
    )  # fmt: skip
