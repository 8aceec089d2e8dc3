"""The results as one short table on the terminal (standard error: standard output is for machines)."""

from __future__ import annotations

from eft.evaluate import text
from eft.evaluate.compare import Comparison, Row
from eft.evaluate.page import printable
from eft.evaluate.results import Results
from eft.evaluate.verdict import BAD, GOOD, verdict

COLOURS = {GOOD: "green", BAD: "red"}
NARROW = 100  # columns below which the table leaves out what matters least


def _cells(row: Row) -> list[str]:
    b = row.behaviour
    rates = [text.percent(v.point if v else None) for v in (b.valid, b.no_op, b.improves)]
    gap = text.percent(row.gap.point if row.gap else None)
    inside = text.interval_percent(row.gap.such or row.gap.these) if row.gap else text.DASH
    return [gap, inside, *rates, text.count(b.distinct), text.count(b.completion_tokens)]


def show(results: Results, comparison: Comparison, width: int | None = None, title: str = "") -> None:
    """Print a row per mutator, what could not be measured, and the verdict. `width`: columns, else the terminal's.
    `title`: the loop that the rows are of, where there are several."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, width=width)
    if title:
        console.print(Text(printable(title), style="bold"))
    names = ["gap closed", "95% interval", "valid edits", "no-ops", "improves", "distinct", "reply tokens"]
    shown = len(names) if console.width >= NARROW else 5
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("mutator", no_wrap=True)
    for name in names[:shown]:
        table.add_column(name, justify="right", no_wrap=True)
    for r in comparison.rows:
        if r.done:
            table.add_row(Text(printable(r.mutator.name)), *_cells(r)[:shown])
    if table.row_count:
        console.print(table)
    for r in comparison.rows:
        if not r.done:
            why = r.mutator.error or "no finished search"
            console.print(Text(printable(f"{r.mutator.name}: {why}"), style="red"), soft_wrap=True)
    found = verdict(results, comparison)
    console.print(Text(printable(found.headline), style=f"bold {COLOURS.get(found.tone, 'yellow')}"), soft_wrap=True)
