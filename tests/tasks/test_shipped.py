"""Every shipped task: stated values are true, scores move, and nothing that a candidate hands back gets past the
scorer."""

from __future__ import annotations

import importlib.util
import math
import random
import shutil
from pathlib import Path

import pytest

from eft.mutators import ast_edits
from eft.records import Validity
from eft.tasks import scoring
from eft.tasks.evaluate import _evaluator, evaluate
from eft.tasks.suite import ROLES, load_suite
from eft.tasks.task import find_task, gap_closed, shipped

TASKS = list(shipped())
PYTHON = [name for name in TASKS if find_task(name).language == "python"]
HIDDEN = [name for name in TASKS if find_task(name).has_hidden]
REFERENCES = Path(__file__).parent / "references"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="C++ TASKS WERE NOT TESTED: g++ is missing")


def with_compiler(names):
    """The names as parameters; those of C++ tasks need a compiler."""
    return [name if name in PYTHON else pytest.param(name, marks=needs_compiler) for name in names]


def reference(name: str, kind: str = "") -> str:
    """A program that reaches the stated best known value; kind "hidden": the hidden one, where another program does."""
    file = REFERENCES / f"{name.replace('/', '__')}{find_task(name).initial_program.suffix}"
    special = file.with_suffix(f".{kind}{file.suffix}")
    return (special if kind and special.exists() else file).read_text()


def test_the_standard_suite():
    """All shipped tasks, each with one role; no family in two."""
    suite = load_suite("standard")
    assert len(suite.train) >= 24 and len(suite.validation) >= 6
    assert len(suite.gate) >= 6 and len(suite.heldout) >= 16
    names = [name for role in ROLES for name in getattr(suite, role)]
    assert sorted(names) == sorted(TASKS)
    families = [{find_task(name).family for name in getattr(suite, role)} for role in ROLES]
    assert sum(map(len, families)) == len(set().union(*families)), "a family crosses roles"
    assert len({find_task(name).domain for name in TASKS}) >= 6
    assert {name for name in TASKS if name not in PYTHON}, "some tasks are in C++"


def test_the_embedded_suite_is_a_part_of_the_standard_one():
    embedded, standard = load_suite("embedded"), load_suite("standard")
    assert [len(getattr(embedded, role)) for role in ROLES] == [11, 2, 3, 8]
    for role in ROLES:
        assert set(getattr(embedded, role)) <= set(getattr(standard, role))


def test_known_families_of_constructions_are_not_trained_on():
    suite = load_suite("standard")
    for word in ("heilbronn", "erdos", "autocorrelation", "determinant", "kissing", "labs", "lennard"):
        roles = {suite.role(name) for name in TASKS if word in name}
        assert roles and "train" not in roles, word


@pytest.mark.parametrize("name", with_compiler(TASKS))
def test_stated_values_are_true(name):
    task = find_task(name)
    first, second = evaluate(task, task.seed()), evaluate(task, task.seed())
    assert first.metrics == second.metrics, "not deterministic"
    assert first.score == pytest.approx(task.seed_score, rel=1e-6) and first.raw == pytest.approx(
        task.seed_raw, rel=1e-6
    )
    assert first.score > 0.05 and first.raw != 0, "a seed at 0 has no ratio to report"
    assert task.best_known_source and task.isolation == "isolated" and task.system_message
    assert gap_closed(task, task.seed_raw) == 0 and gap_closed(task, task.best_known) == 1
    assert (task.best_known > task.seed_raw) == (task.direction == "max"), "the seed is not below the best known value"


@pytest.mark.parametrize("name", with_compiler(HIDDEN))
def test_hidden_values_are_true(name):
    """Hidden instances are others of the same kind: other values, still well apart for seed and reference."""
    task = find_task(name)
    first, second = (evaluate(task, task.seed(), hidden=True) for _ in range(2))
    assert first.metrics == second.metrics, "not deterministic"
    assert first.raw == pytest.approx(task.hidden_seed_raw, rel=1e-6) and first.raw != 0
    assert first.raw != task.seed_raw, "the hidden instances are those of the search"
    best = evaluate(task, reference(name, "hidden"), hidden=True)
    assert best.raw == pytest.approx(task.hidden_best_known, rel=1e-5)
    assert (best.raw > first.raw) == (task.direction == "max") and best.score > 1.03 * first.score
    assert gap_closed(task, first.raw, hidden=True) == pytest.approx(0, abs=1e-6)
    assert gap_closed(task, best.raw, hidden=True) == pytest.approx(1, abs=1e-3)


def test_tasks_outside_training_declare_their_hidden_values():
    suite = load_suite("standard")
    for role in ("validation", "gate", "heldout"):
        for task in suite.tasks(role):
            declared = (task.hidden_seed_raw is not None, task.hidden_best_known is not None)
            assert declared == (task.has_hidden, task.has_hidden), task.name
    assert sum(task.has_hidden for task in suite.tasks("heldout")) >= len(suite.heldout) / 2


@pytest.mark.parametrize("name", with_compiler(TASKS))
def test_the_best_known_value_has_a_witness(name):
    """A program that reaches the stated value is kept here, away from what candidates and mutators see."""
    task = find_task(name)
    result = evaluate(task, reference(name))
    assert result.raw == pytest.approx(task.best_known, rel=1e-5)
    assert result.score > 1.05 * task.seed_score, "too little room above the seed"


@pytest.mark.parametrize("name", TASKS)
def test_the_seed_is_small_and_plain(name):
    code, mark = find_task(name).seed(), "#" if name in PYTHON else "//"
    lines = code.splitlines()
    if name in PYTHON:
        embedded = bool(load_suite("embedded").role(name))
        assert 8 <= len(lines) <= (30 if embedded else 40) and len(code) <= (600 if embedded else 1500)
    assert lines.count(f"{mark} EVOLVE-BLOCK-START") == lines.count(f"{mark} EVOLVE-BLOCK-END") == 1
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("name", with_compiler(TASKS))
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


@pytest.mark.parametrize("name", PYTHON)
def test_scores_move_under_mutation(name):
    """Of forty random edits of the seed, some improve, most are valid, and few leave the score where it is."""
    task, rng = find_task(name), random.Random(name)
    seed = evaluate(task, task.seed())
    results = [evaluate(task, ast_edits.propose(task.seed(), rng).child) for _ in range(40)]
    valid = [r.score for r in results if r.validity is Validity.VALID]
    assert len(valid) >= 20
    assert sum(s > seed.score for s in valid) >= 3
    assert sum(s == seed.score for s in valid) <= 20
    assert all(s > 0 for s in valid)


# A few shapes that come close to an answer; tests/attacks has the rest.
JUNK = ["None", "[]", "{}", "True", "range(20)", "[[float('nan')] * 3] * 10", "[[10**400] * 2] * 7", "[[1, 2], [3]]"]


@pytest.mark.parametrize("name", PYTHON)
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


@pytest.mark.parametrize("name", PYTHON)
def test_scorers_withstand_any_json(name, monkeypatch):
    """As above, but past the driver: data of any shape, as a candidate could write it to the result pipe itself."""
    task, kept = find_task(name), {}
    monkeypatch.setattr(scoring, "evaluate", lambda path, **options: kept.update(options))
    hidden = {"hidden": True} if task.has_hidden else {}
    _evaluator(task.evaluator)("unused", **hidden)
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
