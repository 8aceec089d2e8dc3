"""docs/tasks.md says of every shipped task what its card says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from eft.tasks.suite import ROLES, load_suite

REPOSITORY = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("benchmarks_tasks", REPOSITORY / "benchmarks" / "tasks.py")
tasks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tasks)


def test_the_static_columns_are_current():
    text = tasks.PAGE.read_text(encoding="utf-8")
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.split("\n") if line.startswith("| ")]
    rows = {row[0]: row for row in rows}
    standard, embedded = load_suite("standard"), load_suite("embedded")
    for role in ROLES:
        for task in standard.tasks(role):
            cells = tasks.static_cells(task, role, bool(embedded.role(task.name)))
            assert rows.get(cells[0], [])[: len(cells)] == cells, f"run python benchmarks/tasks.py ({task.name})"
            assert len(rows[cells[0]]) == len(cells) + 3
    assert tasks.page(text, {}).count(tasks.BEGIN) == 1


def test_a_climb_keeps_what_is_not_worse(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MUTATIONS", 12)
    task = tasks.find_task("mathematics/circle_packing")
    best, raw = tasks.climb(task, tmp_path / "cache.jsonl")
    assert best >= task.seed_score and raw >= task.seed_raw
    assert tasks.climb(task, tmp_path / "cache.jsonl") == (best, raw)
