"""The report as Markdown, for a pull request or a log: the same verdict and the same tables, without pictures.

Names and reasons may be hostile: what Markdown or HTML would interpret is escaped, and every value stays on its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from eft.evaluate import page, text
from eft.evaluate.comparison import Comparison, Pair
from eft.evaluate.contenders import separated
from eft.evaluate.provenance import Provenance
from eft.evaluate.results import Results
from eft.evaluate.stats import Mean, Rate
from eft.evaluate.verdict import Verdict

# What Markdown interprets anywhere (an underscore only at the edge of a word), and at the beginning of a line.
_ACTIVE = re.compile(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])")
_FIRST = re.compile(r"^([#>]|[+-](?=\s)|\d+(?=[.)]\s))")


def safe(value: Any) -> str:
    """`value` as text that Markdown shows as it is, on one line."""
    flat = " ".join(str(page.printable(str(value))).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;")
    return _FIRST.sub(lambda m: f"&#{ord(m[0][0])};{m[0][1:]}", _ACTIVE.sub(r"\\\g<0>", flat))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table; the first column left, the others right. [] where there is no row."""
    body = [f"| {' | '.join(safe(v) for v in row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] + ['--:'] * (len(head) - 1))}|", *body, ""] if body else []


def mean_cell(mean: Mean | None, show=text.percent, interval=text.interval_percent) -> str:
    if mean is None:
        return text.DASH
    inside = mean.such or mean.these
    return show(mean.point) + (f" ({interval(inside)})" if inside else "")


def rate_cell(rate: Rate | None) -> str:
    return text.percent(rate.point if rate else None)


def _pair(p: Pair) -> list[str]:
    tests = [text.p_value(t.adjusted if t else None).removeprefix("= ") for t in (p.over_searches, p.over_tasks)]
    reach = f"{p.reach.reached} of {p.reach.pairs}" if p.reach and p.reach.pairs else text.DASH
    needed = [text.count(n) for n in ((p.needs.seeds, p.needs.tasks) if p.needs else (None, None))]
    return [
        page.versus(p), mean_cell(p.difference, text.points, text.interval_points),
        mean_cell(p.area, text.points, text.interval_points), text.signed(p.relative),
        f"{p.wins}–{p.ties}–{p.losses}", *tests, reach, *needed,
    ]  # fmt: skip


def render(
    results: Results, comparison: Comparison, verdict: Verdict, provenance: Provenance, loops: Sequence[str] = ()
) -> str:
    """The whole report. Deterministic. `loops`: the lines of the other loops' sections."""
    results = separated(results)
    lines = [f"# {safe(verdict.headline)}", ""]
    rows = []
    for r, p in page.leading(comparison):
        b = r.behaviour
        rates = (b.improves, b.improves_of_edits, b.valid, b.no_op, b.broken, b.errors, b.timeouts)
        rows.append([r.mutator.name, mean_cell(r.gap), mean_cell(r.area), text.points(p.difference.point) if p and p.difference
                     else text.DASH, f"{p.wins}–{p.ties}–{p.losses}" if p else text.DASH, *map(rate_cell, rates),
                     text.count(b.completion_tokens), text.count(b.evaluations)])  # fmt: skip
    lines += table(["mutator", "gap closed (95%)", "area", "against base, points", "won–tied–lost", "improves",
                    "… without no-ops", "valid edits", "no-ops", "do not compile", "fail at run time", "time out",
                    "reply tokens", "programs evaluated"], rows)  # fmt: skip
    lines += ["## What the numbers show", ""]
    lines += [f"- {safe(s.text)}{' ' + safe(s.detail) if s.detail else ''}" for s in verdict.shows] or ["- Nothing."]
    lines += ["", "## What they do not show", "", *(f"- {safe(line)}" for line in verdict.limits), ""]
    ordered = sorted((p for p in comparison.pairs if p.difference), key=lambda p: p.difference.point)  # type: ignore[union-attr]
    if ordered:
        lines += ["## Side by side: same task, same seed", ""]
        lines += table(["comparison", "gap closed, points (95%)", "area, points", "relative gain", "won–tied–lost",
                        "p over searches", "p over tasks", "reaches the other's best", "seeds needed", "tasks needed"],
                       map(_pair, ordered))  # fmt: skip
        matrix = page.matrix(comparison.pairs)
        lines += ["### By task, the worst first (points of the gap)", ""]
        lines += table(["task", *(safe(page.versus(p)) for p in matrix.pairs)],
                       ([task, *map(text.points, values)] for task, values in matrix.rows))  # fmt: skip
    if comparison.transfer:
        domains = [d for d, _ in comparison.transfer[0].gains]
        lines += ["### Trained where, better where (points of the gap over the baseline)", ""]
        gains = ([t.mutator, ", ".join(t.trained_on) or text.DASH,
                  *(text.points(m.point if m else None) for _, m in t.gains)] for t in comparison.transfer)  # fmt: skip
        lines += table(["mutator", "trained on", *map(safe, domains)], gains)
    lines += ["## Task by task (final value, gap closed)", ""]
    cells = {(c.task, c.mutator): c for c in comparison.cells}
    names = [r.mutator.name for r in comparison.rows]
    by_task = []
    for t in results.tasks:
        shown = []
        for name in names:
            c = cells.get((t.name, name))
            value = text.number(c.raw.mean if c and c.raw else None)
            shown.append(f"{value} ({text.percent(c.gap.mean)})" if c and c.gap else value)
        by_task.append([t.name, "lower" if t.direction == "min" else "higher", *shown])
    lines += table(["task", "better", *map(safe, names)], by_task)
    if comparison.undefined:
        lines += ["## Undefined", ""]
        lines += table(["number", "task", "mutator", "why"],
                       ([u.what, u.task, u.mutator or "all", u.why] for u in comparison.undefined))  # fmt: skip
    if comparison.failed:
        lines += ["## Searches that failed", ""]
        lines += table(["mutator", "task", "seed", "reason"],
                       ([s.mutator, s.task, s.seed, s.reason[:200]] for s in comparison.failed[:40]))  # fmt: skip
    lines += loops
    lines += ["## Circumstances", ""]
    known = [(n, page.value(results.config[k])) for k, n in page.SETTINGS.items() if results.config.get(k) is not None]
    lines += table(["what", "value"], [*known, *page.contained(results), *sorted(results.versions.items())])
    if provenance.stages:
        said = ([s.name, "; ".join(f"{k} {page.value(v)}" for k, v in s.counts[:8])] for s in provenance.stages)
        lines += table(["stage", "what it reported"], said)
    return "\n".join(lines).rstrip() + "\n"
