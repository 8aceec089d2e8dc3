"""The table of the shipped tasks in docs/tasks.md: what their cards state, and what is measured here.

    python benchmarks/tasks.py                  write the table again from the cards and the kept measurements
    python benchmarks/tasks.py --measure        measure tasks that have changed since, one after the other, then write
    python benchmarks/tasks.py --measure NAME…  these only

Measured for each task, on one core: seconds of an evaluation of the seed (the least of five), noise (the spread of the
seed's score over five evaluations, 0 for a deterministic one), and what 200 mutations by `ast` reach: a climb from the
seed that keeps every edit that is not worse. Measurements are kept in docs/tasks.json with a fingerprint of the task's
files and of the mutator, and are repeated when one of them changes; an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from eft.manifest import write_json, write_text  # noqa: E402
from eft.mutators import ast_edits, text_edits  # noqa: E402
from eft.tasks import sandbox  # noqa: E402
from eft.tasks.evaluate import evaluate  # noqa: E402
from eft.tasks.suite import ROLES, load_suite  # noqa: E402
from eft.tasks.task import Task, find_task, gap_closed, shipped  # noqa: E402

PAGE, KEPT = REPOSITORY / "docs" / "tasks.md", REPOSITORY / "docs" / "tasks.json"
BEGIN, END = "<!-- table: begin (python benchmarks/tasks.py) -->", "<!-- table: end -->"
MUTATIONS, REPEATS = 200, 5
SUPERSCRIPT = "ᵉ"  # of the suite `embedded`


def fingerprint(task: Task) -> str:
    """Changes when the task's files or the mutator change."""
    files = [task.evaluator, task.initial_program, Path(ast_edits.__file__), Path(text_edits.__file__)]
    return sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()[:16]


def measure(task: Task) -> dict[str, Any]:
    """Seconds, noise and reach of one task."""
    runs = [evaluate(task, task.seed()) for _ in range(REPEATS)]
    scores = [r.score for r in runs if r.score is not None]
    if len(scores) < REPEATS:
        raise SystemExit(f"{task.name}: its seed does not evaluate: {runs[0].metrics}")
    with tempfile.TemporaryDirectory() as folder:
        best, raw = climb(task, Path(folder) / "cache.jsonl")
    return {
        "fingerprint": fingerprint(task), "seconds": round(min(r.seconds for r in runs), 4),
        "noise": max(scores) - min(scores), "reached_score": best, "reached_raw": raw,
    }  # fmt: skip


def climb(task: Task, cache: Path) -> tuple[float, float]:
    """(score, raw) after MUTATIONS random edits, each of the best program so far; equals are taken, to drift."""
    rng = random.Random(f"{task.name}:climb")
    program = task.seed()
    first = evaluate(task, program, cache=cache)
    best, raw = first.score, first.raw
    for _ in range(MUTATIONS):
        if task.language == "python":
            change = ast_edits.propose(program, rng)
        else:
            change = next(text_edits.stream(program, rng, task.language), None)
        if change is None:
            break
        found = evaluate(task, change.child, cache=cache)
        if found.score is not None and found.score >= best:
            program, best, raw = change.child, found.score, found.raw
    return best, raw


def static_cells(task: Task, role: str, embedded: bool) -> list[str]:
    """What the task's card states."""
    hidden = f"{number(task.hidden_seed_raw)} → {number(task.hidden_best_known)}" if task.has_hidden else "–"
    return [
        f"{task.name}{SUPERSCRIPT if embedded else ''}", role, "C++" if task.language == "cpp" else "Python",
        f"{task.raw_metric} ({task.direction})", number(task.seed_raw), number(task.best_known), hidden,
    ]  # fmt: skip


def measured_cells(task: Task, kept: dict[str, Any]) -> list[str]:
    """What was measured; "…" where the task has changed since."""
    if kept.get("fingerprint") != fingerprint(task):
        return ["…", "…", "…"]
    share = gap_closed(task, kept["reached_raw"])
    reached = number(kept["reached_raw"]) + (f" ({share:.0%})" if share is not None else "")
    return [f"{kept['seconds']:.3f}", number(kept["noise"]), reached]


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def table(kept: dict[str, Any]) -> str:
    """The whole generated part: a table by role, then the sources of the best known values."""
    standard, embedded = load_suite("standard"), load_suite("embedded")
    head = ["task", "role", "language", "raw metric", "seed", "best known", "hidden: seed → best", "s / evaluation",
            "noise", f"after {MUTATIONS} × `ast` (share of the gap)"]  # fmt: skip
    rows, sources = [], {}
    for role in ROLES:
        for task in standard.tasks(role):
            cells = static_cells(task, role, bool(embedded.role(task.name)))
            rows.append(cells + measured_cells(task, kept.get(task.name, {})))
            sources.setdefault(task.best_known_source, []).append(task.name)
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    counts = ", ".join(f"{len(getattr(standard, role))} {role}" for role in ROLES)
    said = [f"- {source}: {', '.join(names)}" for source, names in sources.items()]
    return "\n".join([
        f"{len(rows)} tasks: {counts}. {SUPERSCRIPT}: also in suite `embedded`.", "", *lines, "",
        "Where the best known values are from:", "", *said,
    ])  # fmt: skip


def page(text: str, kept: dict[str, Any]) -> str:
    """The page with its generated part written again."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(kept)}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", nargs="*", metavar="NAME", help="measure (all that have changed, or these)")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    if options.measure is not None:
        print(f"candidates run in: {sandbox.describe()}", file=sys.stderr)
        for name in options.measure or shipped():
            task = find_task(name)
            if not options.measure and kept.get(task.name, {}).get("fingerprint") == fingerprint(task):
                continue
            kept[task.name] = measure(task)
            write_json(KEPT, dict(sorted(kept.items())))
            print(task.name, *measured_cells(task, kept[task.name]), sep="  ", file=sys.stderr)
    text = page(options.out.read_text(encoding="utf-8"), kept)
    write_text(options.out, text)


if __name__ == "__main__":
    main()
