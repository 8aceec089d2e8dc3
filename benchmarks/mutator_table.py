"""Makes the routing table that is shipped, eft/loops/tables/mutators.csv: which mutator improves which program.

    python benchmarks/mutator_table.py [OUT.csv]        a few minutes

Rows are prompts of short tournament searches by `ast` on the training tasks of the embedded suite (held-out tasks are in
none of them). Columns are mutators without a model, each asked once for every prompt: `number` edits one constant,
`ast` anything, `look2`, `look4` and `look8` evaluate so many edits and answer with the best. A score is 1 where the child is
better than its parent, else 0. A cost is $0.0005 for every evaluation that the answer took, which is a convention: nothing
was paid. The data set of a row is its task.
"""

from __future__ import annotations

import csv
import dataclasses
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from eft import edits
from eft.mutators.ast import AstMutator
from eft.mutators.gateway import Gateway, running
from eft.mutators.journal import read
from eft.prompts import current_program
from eft.search.spec import SearchSpec
from eft.search.tournament import body
from eft.tasks.evaluate import evaluate
from eft.tasks.suite import load_suite
from eft.tasks.task import Task, find_task

OUT = Path(__file__).resolve().parent.parent / "eft" / "loops" / "tables" / "mutators.csv"
PROMPTS, ITERATIONS, DOLLARS = 6, 30, 5e-4
ARMS = {
    "ast": {},
    "number": {"kinds": "numbers"},
    "look2": {"lookahead": 2},
    "look4": {"lookahead": 4},
    "look8": {"lookahead": 8},
}


def prompts(task: Task, folder: Path) -> list[list[dict[str, str]]]:
    """The messages of one search, evenly spaced, no program twice."""
    spec = SearchSpec(task=str(task.folder), base_url="", out=str(folder / "search"), name="s", mutator="ast",
                      scaffold="tournament", iterations=ITERATIONS, prompt_format="eft@1",
                      journal=str(folder / "journal" / "s.jsonl"))  # fmt: skip
    spec.folder.mkdir(parents=True)
    with running(Gateway(folder / "journal", {"ast": lambda search: AstMutator(seed=7, task=task)})) as gateway:
        body(dataclasses.replace(spec, base_url=gateway.url("s", "ast")))
    found = {}
    for record in read(Path(spec.journal or "")):
        if record["kind"] == "reply":
            found.setdefault(current_program(record["messages"][-1]["content"]), record["messages"])
    rows = list(found.values())
    step = max(1, len(rows) // PROMPTS)
    return rows[::step][:PROMPTS]


def answers(task: Task, messages: list[dict[str, str]], number: int) -> dict[str, tuple[float, float]]:
    """(score, cost) of every mutator on one prompt."""
    parent = current_program(messages[-1]["content"]) or ""
    before, told = evaluate(task, parent).score, {}
    for name, options in ARMS.items():
        reply = AstMutator(seed=1000 + number, task=task, **options).propose(messages, 0)
        edit = edits.apply(parent, reply.content, kind="diff")
        after = evaluate(task, edit.child).score if edit else None
        better = after is not None and (before is None or after > before)
        told[name] = (float(better), DOLLARS * max(1, options.get("lookahead", 0)))
    return told


def rows_of(name: str) -> list[list[object]]:
    """The table's rows of one task."""
    task, rows = find_task(name), []
    with tempfile.TemporaryDirectory() as folder:
        for number, messages in enumerate(prompts(task, Path(folder))):
            told, group = answers(task, messages, number), name.replace("/", "-")
            values = [told[a][i] for i in (0, 1) for a in ARMS]
            rows.append([f"{group}.{number}", messages[-1]["content"], group, *values])
    print(name, file=sys.stderr, flush=True)
    return rows


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.parent.mkdir(parents=True, exist_ok=True)
    tasks = [t for t in load_suite("embedded").tasks("train") if t.language == "python"]
    with ProcessPoolExecutor() as pool, open(out, "w", newline="", encoding="utf-8") as f:
        table = csv.writer(f, lineterminator="\n")
        table.writerow(["sample_id", "prompt", "eval_name", *ARMS, *(f"{a}|total_cost" for a in ARMS)])
        for rows in pool.map(rows_of, [t.name for t in tasks]):
            table.writerows(rows)


if __name__ == "__main__":
    main()
