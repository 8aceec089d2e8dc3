"""Evaluation: isolated and contained tasks, what counts as a score, and the cache."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from eft.errors import EftError
from eft.records import Validity
from eft.tasks import evaluate as module
from eft.tasks.evaluate import evaluate
from eft.tasks.task import find_task, load_task

IN_PROCESS = """
import importlib.util

def evaluate(program_path):
    spec = importlib.util.spec_from_file_location("program", program_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {"combined_score": module.run()}
"""


@pytest.fixture
def make(tmp_path: Path):
    """A foreign task folder with this evaluator and this `task:` block."""

    def folder(evaluator: str, block: str = ""):
        (tmp_path / "evaluator.py").write_text(evaluator)
        (tmp_path / "initial_program.py").write_text("def run():\n    return 1.0\n")
        (tmp_path / "config.yaml").write_text(f"task:\n  timeout_s: 20\n{block}")
        return load_task(tmp_path)

    return folder


def test_an_isolated_task():
    task = find_task("heuristics/knapsack")
    result = evaluate(task, task.seed())
    assert result.validity is Validity.VALID
    assert result.score == pytest.approx(task.seed_score) and result.raw == pytest.approx(task.seed_raw)
    broken = evaluate(task, "def rank(*a):\n    return 1 / 0\n")
    assert (broken.validity, broken.score, broken.raw) == (Validity.ERROR, None, None)
    assert broken.artifacts["error"] == "ZeroDivisionError: division by zero (line 2)"
    why = "evaluator_error: ZeroDivisionError: division by zero (line 2)"
    assert broken.metrics == {"combined_score": 0.0, "validity": 0.0, "error": why}
    assert evaluate(task, "\udcff broken").validity is Validity.ERROR


@pytest.mark.integration
def test_a_contained_task(make):
    task = make(IN_PROCESS)
    assert evaluate(task, task.seed()).score == 1.0
    broken = evaluate(task, "def run():\n    raise KeyError('gone')\n")
    assert broken.validity is Validity.ERROR and "KeyError" in broken.metrics["error"]
    assert evaluate(task, "def run():\n    return float('nan')\n").validity is Validity.NON_FINITE
    assert evaluate(task, "def run():\n    return True\n").validity is Validity.NO_SCORE
    assert evaluate(task, "import os\nos._exit(0)\n").validity is Validity.ERROR
    flood = evaluate(task, "def run():\n    print('x' * 10**7)\n    return 2.0\n")
    assert flood.score == 2.0 and len(flood.artifacts["stderr"]) == 2000


@pytest.mark.integration
def test_contained_evaluators_that_misbehave(make):
    hang = make("import subprocess, sys, time\n\ndef evaluate(path):\n"
                "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(61)'], start_new_session=True)\n"
                "    time.sleep(60)\n", "  score_key: s\n")  # fmt: skip
    hang = hang.__class__(**{**hang.__dict__, "timeout_s": 2.0})
    started = time.monotonic()
    assert evaluate(hang, "").validity is Validity.TIMEOUT
    assert time.monotonic() - started < 30
    until = time.monotonic() + 15
    while left := [p for p in psutil.process_iter(["cmdline"]) if "time.sleep(61)" in " ".join(p.info["cmdline"] or [])]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.mark.integration
@pytest.mark.parametrize(
    "body, validity",
    [
        ("return None", Validity.ERROR),
        ("return {}", Validity.NO_SCORE),
        ("return {'combined_score': float('inf')}", Validity.NON_FINITE),
        ("return {'combined_score': 10**400}", Validity.NON_FINITE),
        ("return {'combined_score': 1.0, 'validity': 0.0}", Validity.INCORRECT),
        ("return {'combined_score': 0.0, 'error': 'no luck'}", Validity.ERROR),
        ("return {'combined_score': 0.0, 'timeout': True}", Validity.TIMEOUT),
        ("import sys; sys.exit(1)", Validity.ERROR),
        ("import numpy; return {'combined_score': numpy.float64(0.5)}", Validity.VALID),
    ],
)
def test_what_counts_as_a_score(make, body, validity):
    assert evaluate(make(f"def evaluate(path):\n    {body}\n"), "").validity is validity


@pytest.mark.integration
def test_openevolve_results_carry_artifacts(make):
    text = ("from openevolve.evaluation_result import EvaluationResult\n\ndef evaluate(path):\n"
            "    return EvaluationResult(metrics={'combined_score': 0.5}, artifacts={'log': b'bytes'})\n")  # fmt: skip
    result = evaluate(make(text), "")
    assert result.score == 0.5 and result.artifacts == {"log": "bytes"}


def test_broken_isolated_evaluators_are_the_users_to_fix(make):
    with pytest.raises(EftError, match="cannot be loaded"):
        evaluate(make("import nothing_like_it\n", "  isolation: isolated\n"), "")


def test_an_isolated_evaluator_needs_evaluate(make):
    with pytest.raises(EftError, match="no evaluate"):
        evaluate(make("x = 1\n", "  isolation: isolated\n"), "")


def test_a_scorer_that_breaks_ends_no_search(make):
    task = make("def evaluate(path):\n    raise IndexError('oops')\n", "  isolation: isolated\n")
    assert "the scorer failed: IndexError" in evaluate(task, "").metrics["error"]


def test_the_cache_answers_and_survives_torn_lines(tmp_path, monkeypatch):
    task, cache = find_task("numerics/quadrature"), tmp_path / "sub" / "cache.jsonl"
    first = evaluate(task, task.seed(), cache=cache)
    monkeypatch.setattr(module, "_isolated", lambda *a: pytest.fail("evaluated again"))
    assert evaluate(task, task.seed(), cache=cache) == first
    assert evaluate(task, task.seed() + "\n   \n", cache=cache) == first  # the same code but for white space
    module._caches.clear()  # as another process would find it
    with open(cache, "a") as f:
        f.write('{"key": "torn')
    assert evaluate(task, task.seed(), cache=cache) == first
    monkeypatch.undo()
    broken = evaluate(task, "def run():\n    return [[float('nan'), 1]] * 3", cache=cache)
    assert broken.validity is Validity.NON_FINITE
    module._caches.clear()
    assert evaluate(task, "def run():\n    return [[float('nan'), 1]] * 3", cache=cache) == broken
    assert evaluate(task, task.seed(), cache=cache) == first
    good = [line for line in cache.read_text().splitlines() if not line.startswith('{"key": "torn')]
    assert len(good) == 2 and all(json.loads(line) for line in good)


HIDDEN = """
from eft.tasks import scoring

def evaluate(program_path, hidden=False):
    answer = [7, 8] if hidden else [1, 2]
    return scoring.evaluate(program_path, args=(answer,), score=lambda v: {"combined_score": float(v)})
"""


def test_hidden_instances(make, tmp_path):
    task = make(HIDDEN, "  isolation: isolated\n")
    cache = tmp_path / "cache.jsonl"
    code = "def run(numbers):\n    return sum(numbers)\n"
    assert task.has_hidden and not find_task("mathematics/circle_packing").has_hidden
    for _ in range(2):  # the second time from the cache, which keeps them apart
        assert evaluate(task, code, cache).score == 3.0
        assert evaluate(task, code, cache, hidden=True).score == 15.0
    with pytest.raises(EftError, match="no hidden instances"):
        evaluate(find_task("mathematics/circle_packing"), code, hidden=True)


@pytest.mark.integration
def test_hidden_instances_of_a_contained_task(make):
    task = make("def evaluate(path, *, hidden=False):\n    return {'combined_score': 2.0 if hidden else 1.0}\n")
    assert task.has_hidden and (evaluate(task, "").score, evaluate(task, "", hidden=True).score) == (1.0, 2.0)
