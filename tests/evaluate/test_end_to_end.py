"""A real evaluation, small: two scaffolds, a scripted server, best-of-N of its replies and `ast`; then its report."""

from __future__ import annotations

import json

import pytest
from endpoint import Endpoint
from test_report import Checker

from eft.evaluate import report, run
from eft.evaluate import results as tables

TASKS = ["control/pid", "routing/tsp_insertion"]


@pytest.mark.integration
def test_an_evaluation_and_its_report(tmp_path):
    weak, good = Endpoint(), Endpoint()
    ideas = weak.reply

    def mostly_ideas(messages):
        answer = ideas(messages)
        if weak.asked % 3:
            answer["choices"][0]["message"]["content"] = "Think <b>harder</b>\x1b[31m\u202e."
        return answer

    weak.reply = mostly_ideas
    mutators = {
        "base": {"model": "toy", "base_url": weak.base_url},
        "kto": {"model": "toy", "base_url": good.base_url, "role": "tuned"},
        "ast": {"kind": "ast"},
        "best_of_n": {"kind": "best_of_n", "of": "kto"},
    }
    try:
        run.run(run.Config(
            root=tmp_path, tasks=TASKS, mutators=mutators, iterations=5, seeds=1, workers=2, prompt_format="eft@1",
            scaffold=["openevolve", "tournament"],
        ))  # fmt: skip
    finally:
        weak.close()
        good.close()
    found = tables.load(tmp_path / "evaluate")
    assert len(found.searches) == 2 * (3 * 2 + 1) and all(s.status == "done" for s in found.searches)
    for s in found.searches:
        assert s.start_final_raw is not None and s.sandbox and s.scaffold
        assert sum(s.outcomes.values()) == s.proposals == 5
        assert not s.best_diff or s.lineage, (s.mutator, s.task)  # whoever found something shows how
    assert {t.name: t.has_hidden for t in found.tasks}["routing/tsp_insertion"]

    report.run(report.Config(root=tmp_path, results=tmp_path / "evaluate"))
    html = (tmp_path / "report.html").read_text()
    checker = Checker()
    checker.feed(html)
    assert not checker.problems and not checker.stack
    shown = "".join(checker.text)
    for part in ("Under openevolve", "under tournament", "final value on hidden instances", "sandbox",
                 "no edit in the reply", "Think <b>harder</b>"):  # fmt: skip
        assert part in shown, part
    assert "\x1b" not in html and "\u202e" not in html
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["scaffolds"] == ["openevolve", "tournament"] and data["hidden"]
    assert {p["mutator"] for p in data["pairs"]} == {"kto · openevolve", "kto · tournament"}
