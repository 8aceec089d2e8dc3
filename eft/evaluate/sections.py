"""A section of the report for every loop beside the one that the headline is about: what the page and Markdown draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eft.evaluate import charts, page, text
from eft.evaluate.compare import compare
from eft.evaluate.comparison import Comparison, Row
from eft.evaluate.contenders import METHOD, separated
from eft.evaluate.parts import headliner, loops, part, searched
from eft.evaluate.results import Confirmed, Results, Search, TaskInfo
from eft.evaluate.verdict import BAD, GOOD, OPEN, Verdict, strength, verdict

MOST_PLOTS = 12  # tasks whose curves are drawn; the tables have all of them
FEW_TASKS = 6  # up to so many, tasks are the columns of the table of final values and contenders its rows

# What a loop's genomes are, in a reader's words.
ABOUT = {
    "programs": "Programs of held-out tasks.",
    "merge": "The genome is a recipe by which models or adapters are merged; a proposal is an edit of the recipe.",
    "routing": "The genome is a policy that says which model answers; a proposal is an edit of the policy.",
}


@dataclass(frozen=True)
class Section:
    """One loop: its results with its own controls as contenders, the comparison and the verdict."""

    name: str
    results: Results
    comparison: Comparison
    verdict: Verdict

    @property
    def about(self) -> str:
        return ABOUT.get(self.name, "")

    @property
    def trouble(self) -> str:
        return self.results.troubles.get(self.name, "")

    @property
    def mutators(self) -> list[Row]:
        """The rows of contenders that made proposals at all."""
        return [r for r in self.comparison.rows if r.mutator.kind != METHOD]


def section(results: Results, loop: str) -> Section:
    """The section of one loop of `results`."""
    own = part(results, loop)
    comparison = compare(own)
    return Section(loop, own, comparison, verdict(own, comparison))


def split(results: Results) -> tuple[Section, list[Section]]:
    """(the loop that the headline is about, all others in order)."""
    main = headliner(results)
    return section(results, main), [section(results, name) for name in loops(results) if name != main]


def tone(c: Confirmed) -> str:
    """Does the interval on fresh rows leave out zero?"""
    if c.low is not None and c.low > 0:
        return GOOD
    return BAD if c.high is not None and c.high < 0 else OPEN


def confirmation(c: Confirmed) -> list[tuple[str, str]]:
    """A confirmation as the cells of a table, each with its small print: who, where, against whom, values, difference
    and interval, rows."""
    inside = f"{text.number(c.low)} to {text.number(c.high)}" if c.low is not None and c.high is not None else ""
    sign = "+" if (c.difference or 0) > 0 else ""
    return [(c.mutator, ""), (c.task, ""), (c.reference, ""), (text.number(c.value), ""),
            (text.number(c.reference_value), ""), (sign + text.number(c.difference), inside),
            (text.count(c.items), c.what)]  # fmt: skip


def curves(own: Section) -> Results:
    """The part without controls that searched nothing: a line for one value would say no more than the table."""
    flat = {s.mutator for s in own.results.searches if len(set(s.curve)) <= 2 and s.proposals == 0}
    searching = {s.mutator for s in own.results.searches if s.mutator not in flat}
    return dataclasses.replace(
        own.results, mutators=tuple(m for m in own.results.mutators if m.name in searching or m.kind != METHOD)
    )


@dataclass(frozen=True)
class View:
    """What the template draws of a section."""

    name: str
    about: str
    trouble: str
    verdict: Verdict
    comparison: Comparison
    style: dict[str, str]
    gap_axis: charts.Axis
    gaps: list[page.Track]
    pair_axis: charts.Axis
    pairs: list[page.Track]
    matrix: page.Matrix
    plots: list[tuple[str, list[charts.Plot]]]
    left_out: int  # tasks without a plot
    legend: list[tuple[str, str]]
    tasks: tuple[TaskInfo, ...]
    contenders: tuple[str, ...]
    values: dict[tuple[str, str], Any]
    confirmed: tuple[tuple[str, list[tuple[str, str]]], ...]
    notes: tuple[str, ...]
    mutators: list[Row]
    winners: list[tuple[TaskInfo, Search]]
    partial: str
    upright: bool


def view(own: Section) -> View:
    """The section as the template needs it."""
    results, comparison = separated(own.results), own.comparison
    style = page.styles(results.mutators)
    gap_axis, gaps = page.gap_tracks(comparison.rows, style)
    pair_axis, pairs = page.pair_tracks(comparison.pairs, style)
    drawn = {m.name for m in separated(curves(own)).mutators}
    cells = [c for c in comparison.cells if c.mutator in drawn]
    shown = results.tasks[:MOST_PLOTS]
    several = comparison.scaffolds if len(comparison.scaffolds) > 1 else ("",)
    done = sum(s.status == "done" for s in results.searches)
    return View(
        own.name, own.about, own.trouble, own.verdict, comparison, style, gap_axis, gaps, pair_axis, pairs,
        page.matrix(comparison.pairs), [(e, page.plots(shown, cells, style, e)) for e in several],
        len(results.tasks) - len(shown),
        list({page.origin(m.name): style[m.name] for m in results.mutators if m.name in drawn}.items()),
        results.tasks, tuple(r.mutator.name for r in comparison.rows if r.done),
        {(c.task, c.mutator): c for c in comparison.cells},
        tuple((tone(c), confirmation(c)) for c in own.results.confirmed),
        tuple(dict.fromkeys(c.note for c in own.results.confirmed if c.note)),
        own.mutators, page.winners(searched(results)),
        f"{done} of {results.planned} searches" if done < results.planned else "", len(results.tasks) <= FEW_TASKS,
    )  # fmt: skip


def to_json(own: Section) -> dict[str, Any]:
    """Every number and sentence of a section as a JSON object."""
    pairs = [{**dataclasses.asdict(p), "strength": strength(p)} for p in own.comparison.pairs]
    return {"verdict": dataclasses.asdict(own.verdict), **dataclasses.asdict(own.comparison), "pairs": pairs,
            "tasks": [dataclasses.asdict(t) for t in own.results.tasks], "trouble": own.trouble,
            "confirmed": [dataclasses.asdict(c) for c in own.results.confirmed]}  # fmt: skip


def markdown(sections: Sequence[Section]) -> list[str]:
    """The lines of all sections."""
    from eft.evaluate.markdown import mean_cell, rate_cell, safe, table

    lines: list[str] = []
    for own in sections:
        lines += [f"## Loop: {safe(own.name)}", "", safe(own.verdict.headline), ""]
        lines += [f"**Not complete:** {safe(own.trouble)}", ""] if own.trouble else []
        lines += [line for note in own.comparison.notes for line in (safe(note), "")]
        rows = []
        for r in own.comparison.rows:
            b = r.behaviour
            role = "bound" if r.mutator.role == "bound" else "control" if r.mutator.role == "control" else "mutator"
            rows.append([r.mutator.name, role, mean_cell(r.gap), mean_cell(r.area), rate_cell(b.valid),
                         rate_cell(b.improves), text.count(b.evaluations)])  # fmt: skip
        lines += table(["contender", "what", "gap closed (95%)", "area", "valid edits", "improves",
                        "programs evaluated"], rows)  # fmt: skip
        told = [s for s in own.verdict.shows if s.tone != OPEN]
        lines += [f"- {safe(s.text)}{' ' + safe(s.detail) if s.detail else ''}" for s in told]
        undecided = len(own.verdict.shows) - len(told)
        lines += [f"- {text.plural(undecided, 'comparison')} within the noise."] if undecided else []
        lines += [""]
        cells = {(c.task, c.mutator): c for c in own.comparison.cells}
        names = [r.mutator.name for r in own.comparison.rows if r.done]
        lines += table(["final value", *map(safe, names)], (
            [t.name, *(text.number(c.raw.mean if (c := cells.get((t.name, n))) and c.raw else None) for n in names)]
            for t in own.results.tasks))  # fmt: skip
        if own.results.confirmed:
            lines += ["### Confirmed on fresh rows", ""]
            cells_of = ([f"{v} ({small})" if small else v for v, small in confirmation(c)] for c in own.results.confirmed)
            lines += table(page.CONFIRMATION, cells_of)
        if own.comparison.failed:
            lines += table(["mutator", "task", "seed", "reason"],
                           ([s.mutator, s.task, s.seed, s.reason[:200]] for s in own.comparison.failed[:40]))  # fmt: skip
    return lines

