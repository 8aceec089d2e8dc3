"""Every shipped task: stated values are true, scores move, and nothing that a candidate hands back gets past the
scorer."""

from __future__ import annotations

import importlib.util
import math
import random
from pathlib import Path

import pytest

from eft.mutators import ast_edits
from eft.records import Validity
from eft.tasks import scoring
from eft.tasks.evaluate import _evaluator, evaluate
from eft.tasks.task import find_task, gap_closed, shipped

TASKS = list(shipped())
REFERENCES = Path(__file__).parent / "references"


@pytest.mark.parametrize("name", TASKS)
def test_stated_values_are_true(name):
    task = find_task(name)
    first, second = evaluate(task, task.seed()), evaluate(task, task.seed())
    assert first.metrics == second.metrics, "not deterministic"
    assert first.score == pytest.approx(task.seed_score, rel=1e-6) and first.raw == pytest.approx(
        task.seed_raw, rel=1e-6
    )
    assert first.score > 0.05
    assert task.best_known_source and task.isolation == "isolated" and task.system_message
    assert gap_closed(task, task.seed_raw) == 0 and gap_closed(task, task.best_known) == 1


@pytest.mark.parametrize("name", TASKS)
def test_the_best_known_value_has_a_witness(name):
    """A program that reaches the stated value is kept here, away from what candidates and mutators see."""
    task = find_task(name)
    witness = (REFERENCES / f"{name.replace('/', '__')}.py").read_text()
    result = evaluate(task, witness)
    assert result.raw == pytest.approx(task.best_known, rel=1e-5)
    assert result.score > 1.1 * task.seed_score, "too little room above the seed"


@pytest.mark.parametrize("name", TASKS)
def test_the_seed_is_small_and_plain(name):
    code = find_task(name).seed()
    lines = code.splitlines()
    assert 8 <= len(lines) <= 30 and len(code) <= 600
    assert lines.count("# EVOLVE-BLOCK-START") == lines.count("# EVOLVE-BLOCK-END") == 1
    assert max(map(len, lines)) <= 90


@pytest.mark.parametrize("name", TASKS)
def test_the_evaluator_is_a_plain_openevolve_evaluator(name):
    """Called as OpenEvolve does: loaded from its file, given a path, answering with a dict of numbers."""
    task = find_task(name)
    spec = importlib.util.spec_from_file_location("evaluation_module", task.evaluator)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    metrics = loaded.evaluate(str(task.initial_program))
    assert isinstance(metrics, dict) and set(metrics) == {"combined_score", task.raw_metric, "validity"}
    assert all(type(v) is float for v in metrics.values())
    missing = loaded.evaluate(str(task.evaluator))  # a program without the function
    assert missing["combined_score"] == 0.0 and missing["validity"] == 0.0


@pytest.mark.parametrize("name", TASKS)
def test_scores_move_under_mutation(name):
    """Of forty random edits of the seed, some improve, most are valid, and few leave the score where it is."""
    task, rng = find_task(name), random.Random(name)
    seed = evaluate(task, task.seed())
    results = [evaluate(task, ast_edits.propose(task.seed(), rng).child) for _ in range(40)]
    valid = [r.score for r in results if r.validity is Validity.VALID]
    assert len(valid) >= 20
    assert sum(s > seed.score for s in valid) >= 3
    assert sum(s == seed.score for s in valid) <= 16
    assert all(s > 0 for s in valid)


JUNK = [
    "None", "True", "float('nan')", "float('inf')", "-1e308", "[]", "[None] * 20", "{}", "[[1, 2], [3]]", "1j",
    "[[float('nan')] * 3] * 10", "[True] * 20", "[1e400] * 20", "[[10**400] * 2] * 7", "range(20)",
    "(lambda: 0)", "'text'",
]  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_junk_is_invalid_or_a_score(name):
    """Whatever the program returns: a reason, or a finite score that was computed here. Never an exception."""
    task = find_task(name)
    entry = next(line for line in task.seed().splitlines() if line.startswith("def ")).split()[1].split("(")[0]
    for junk in JUNK:
        result = evaluate(task, f"def {entry}(*args):\n    return {junk}\n")
        if result.validity is Validity.VALID:
            assert math.isfinite(result.score) and result.score > 0
        else:
            assert result.artifacts["error"] and result.metrics["combined_score"] == 0.0
            assert "scorer failed" not in result.artifacts["error"], (junk, result)
            assert result.validity in (Validity.ERROR, Validity.INCORRECT, Validity.NON_FINITE)


@pytest.mark.parametrize("name", TASKS)
def test_scorers_withstand_any_json(name, monkeypatch):
    """As above, but past the driver: data of any shape, as a candidate could write it to the result pipe itself."""
    task, kept = find_task(name), {}
    monkeypatch.setattr(scoring, "evaluate", lambda path, **options: kept.update(options))
    _evaluator(task.evaluator)("unused")
    values = [None, 1, "x", True, [], {}, [[]], [[1, 2]] * 50, [None] * 6, [[None] * 2] * 20, [[[1]]] * 4, float("nan"),
              {"steps": [1], "result": 0}, {"steps": [["x"], ["/", 0, [0.0]]], "result": 1}, [[1, [2]], [3, "x"]] * 2,
              [[[0, 1e9], [0]]] * 4, [["0"] * 3] * 10, [{"a": 1}] * 16]  # fmt: skip
    for value in values:
        try:
            metrics = kept["score"](value)
        except (scoring.Invalid, OverflowError):
            continue
        assert all(math.isfinite(m) for m in metrics.values())


def test_numbers_are_checked():
    with pytest.raises(scoring.Invalid, match="not bool"):
        scoring.number(True, "x")
    with pytest.raises(scoring.Invalid) as caught:
        scoring.number(float("nan"), "x")
    assert caught.value.validity is Validity.NON_FINITE
    with pytest.raises(scoring.Invalid, match="outside"):
        scoring.number(2.0, "x", 0, 1)
    with pytest.raises(scoring.Invalid, match="too large"):
        scoring.number(10**400, "x")
    with pytest.raises(scoring.Invalid, match="hold 3 numbers, not 2"):
        scoring.numbers([1, 2], 3, "x")
    with pytest.raises(scoring.Invalid, match="each of 0 … 2 once"):
        scoring.order([0, 1, 1], 3, "x")
    assert scoring.order([2, 0, 1], 3, "x") == [2, 0, 1]


def test_streams_are_the_same_everywhere():
    draw = scoring.stream(7)
    values = [draw() for _ in range(1000)]
    assert values[:2] == pytest.approx([0.4302, 0.1], abs=1) and all(0 <= v < 1 for v in values)
    assert 0.45 < sum(values) / 1000 < 0.55
    again = scoring.stream(7)
    assert values[0] == again()


@pytest.mark.integration
@pytest.mark.parametrize("name", TASKS)
def test_the_config_is_a_valid_openevolve_config(name):
    from openevolve.config import load_config

    config = load_config(find_task(name).folder / "config.yaml")
    assert config.max_iterations == 100 and config.prompt.system_message == find_task(name).system_message
    assert config.evaluator.cascade_evaluation is False
