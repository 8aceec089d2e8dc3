"""From a search's result to its summary: every proposal has exactly one outcome, and gains are in units of the gap."""

from __future__ import annotations

import dataclasses
import json

import pytest

from eft.evaluate import summary
from eft.search.spec import Candidate, SearchResult, SearchSpec
from eft.tasks.task import find_task

TASK = find_task("control/pid")  # cost, lower is better
START = 0.75


def candidate(index: int, status: str, **values) -> Candidate:
    good = status in ("ok", "duplicate")
    defaults = {"applied": good, "changes_syntax": good, "valid": good, "parent_score": 1.0, "code_hash": f"h{index}"}
    return Candidate(index=index, iteration=index + 1, status=status, **{**defaults, **values})


CANDIDATES = (
    candidate(0, "ok", score=2.0, raw=0.5),  # better than the start program, which is its parent
    candidate(1, "ok", score=1.5, raw=0.6, parent_score=2.0, parent_hash="h0"),
    candidate(2, "ok", score=3.0, raw=0.3, parent_score=2.0, parent_hash="h0"),
    candidate(3, "duplicate", score=2.0, raw=0.5, code_hash="h0"),
    candidate(4, "ok", score=1.0, raw=0.9, parent_score=None),  # its parent was invalid
    candidate(5, "no_op", applied=True),
    candidate(6, "invalid", detail="timeout", applied=True, changes_syntax=True),
    candidate(7, "invalid", detail="who knows", applied=True, changes_syntax=True),
    candidate(8, "no_edit", finish_reason="length"),
    candidate(9, "unmatched", finish_reason="length"),  # a whole block was found: the cap is not the cause
    candidate(10, "request_error"),
)


def result(**change) -> SearchResult:
    fields = {
        "name": "s", "task": TASK.name, "domain": "control", "role": "heldout", "mutator": "m", "model": "m", "seed": 3,
        "scaffold": "openevolve", "scaffold_release": "0.4.1", "prompt_format": "eft@1", "edit": "diff",
        "iterations": 11, "iterations_done": 11, "seed_score": 1.0, "seed_raw": START, "best_score": 3.0,
        "best_raw": 0.3, "best_code": TASK.seed() + "\nX = 1\n", "best_curve": (2.0,) * 11, "raw_curve": (0.5,) * 11,
        "candidates": CANDIDATES, "replies": 11, "valid_edits": 5, "distinct_valid_edits": 4, "seconds": 1.0,
    }  # fmt: skip
    return SearchResult(**{**fields, **change})


@pytest.fixture
def task():
    return dataclasses.replace(TASK, best_known=0.25)


def of(task, journal="", **change):
    return summary.of(
        SearchSpec(str(TASK.folder), "", "out", mutator="m", seed=3, journal=journal), result(**change), task
    )


def test_outcomes_add_up(task):
    s = of(task)
    assert s.outcomes == {
        "improved": 3, "not_improved": 1, "repaired": 1, "no_op": 1, "invalid:timeout": 1, "invalid": 1, "cut_off": 1,
        "unmatched": 1, "request_error": 1,
    }  # fmt: skip
    assert sum(s.outcomes.values()) == s.proposals == 11 and s.valid == 5
    assert len(s.curve) == 12 and s.curve[0] == START
    assert (s.prompt_tokens, s.completion_tokens) == (None, None)  # nobody billed any


def test_gain_is_the_way_over_the_own_parent(task):
    # 0.75 -> 0.5 twice and 0.5 -> 0.3 once, of a gap of 0.5
    assert of(task).gain == pytest.approx((0.25 + 0.2 + 0.25) / 0.5)
    assert of(dataclasses.replace(task, best_known=None)).gain is None


def test_best_program_as_a_diff(task):
    assert "+X = 1" in of(task).best_diff
    assert of(task, best_code=TASK.seed()).best_diff == ""
    long = of(task, best_code="\n".join(f"x{i} = {i}" for i in range(5000))).best_diff
    assert len(long.splitlines()) <= summary.DIFF_LINES + 1


def test_examples_come_from_the_journal(task, tmp_path):
    journal = tmp_path / "s.jsonl"
    lines = [{"kind": "reply", "status": "ok", "content": f"reply {i} " + "x" * 3000} for i in range(11)]
    journal.write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "rep')
    found = of(task, str(journal)).examples
    assert set(found) == {"no_op", "invalid:timeout", "invalid", "cut_off", "unmatched", "request_error"}
    assert found["no_op"].startswith("reply 5") and len(found["no_op"]) < 1300
    journal.write_text(json.dumps(lines[0]))  # some replies were not journaled: no guess which is whose
    assert of(task, str(journal)).examples == {}


def test_what_does_not_compile_is_told_from_what_fails(task, tmp_path):
    def line(key, error):
        return json.dumps({"key": key, "artifacts": {"error": error}, "metrics": {}, "validity": "evaluator_error"})

    name = task.name
    said = {f"{name}\0h7": "SyntaxError: invalid syntax (line 1)", f"{name}\0h6": "ZeroDivisionError: x",
            "other\0h6": "SyntaxError: x", f"{name}\0hidden:h6": "it does not compile: x"}  # fmt: skip
    (tmp_path / "evaluations.jsonl").write_text("\n".join(line(k, e) for k, e in said.items()) + '\n{"torn')
    s = summary.of(SearchSpec(str(TASK.folder), "", str(tmp_path), mutator="m"), result(), task)
    assert s.outcomes["invalid:syntax"] == 1 and "invalid" not in s.outcomes and s.outcomes["invalid:timeout"] == 1
    (tmp_path / "evaluations.jsonl").write_text(line(f"{name}\0h6", "it does not compile: program.cpp:1:5: error"))
    assert summary.broken_programs(tmp_path / "evaluations.jsonl", name) == {"h6"}


def test_time_survives_a_replay(task):
    slow = tuple(dataclasses.replace(c, seconds=2.0) for c in CANDIDATES)
    assert of(task, candidates=slow, seconds=1.0).seconds == 22.0
