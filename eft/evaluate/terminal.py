"""The results as one short table on the terminal (standard error: standard output is for machines)."""

from __future__ import annotations

from eft.evaluate import text
from eft.evaluate.compare import Comparison
from eft.evaluate.page import printable
from eft.evaluate.results import Results
from eft.evaluate.verdict import BAD, GOOD, verdict

COLOURS = {GOOD: "green", BAD: "red"}


def show(results: Results, comparison: Comparison, width: int | None = None) -> None:
    """Print a row per mutator, then the verdict. `width`: columns, default the terminal's."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, width=width)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("mutator", no_wrap=True)
    for name in ("gap closed", "95% interval", "valid edits", "no-ops", "improves", "distinct", "reply tokens"):
        table.add_column(name, justify="right")
    for r in comparison.rows:
        b = r.behaviour
        if not r.done:
            table.add_row(
                Text(printable(r.mutator.name)),
                Text(printable(r.mutator.error or "no finished search")[:60], style="red"),
            )
            continue
        table.add_row(
            Text(printable(r.mutator.name)), text.percent(r.gap.point if r.gap else None),
            text.interval_percent(r.gap.such or r.gap.these) if r.gap else text.DASH,
            *(text.percent(v.point if v else None) for v in (b.valid, b.no_op, b.improves)),
            text.count(b.distinct), text.count(b.completion_tokens),
        )  # fmt: skip
    console.print(table)
    found = verdict(results, comparison)
    console.print(Text(printable(found.headline), style=f"bold {COLOURS.get(found.tone, 'yellow')}"))
