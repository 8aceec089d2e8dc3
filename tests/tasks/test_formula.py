"""Recorded formulas: what they are worth is worked out from the record, and operations are counted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.tasks import formula, scoring
from eft.tasks.evaluate import evaluate
from eft.tasks.task import find_task

NUMBER = st.floats(-5, 5, allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 9), NUMBER), min_size=1, max_size=6), NUMBER)
@settings(max_examples=80, deadline=None)
def test_the_record_means_what_the_operations_say(operations, x):
    steps, plain = [["x"]], [x]
    for op, back, constant in operations:
        first = min(back, len(plain) - 1)
        steps.append([op, first, [constant]])
        a = plain[first]
        plain.append({"+": a + constant, "-": a - constant, "*": a * constant}[op])
    found = formula.apply(formula.steps_of({"steps": steps}, 1, 9), len(plain) - 1, [[x, x]])
    assert found == [plain[-1], plain[-1]]


def test_operations_are_counted_and_the_limit_itself_is_allowed():
    record = {"steps": [["x"], *(["+", 0, [1.0]] for _ in range(12))], "result": 12}
    assert len(formula.steps_of(record, 1, 12)) == 12
    with pytest.raises(scoring.Invalid, match="12 operations, at most 11 are allowed"):
        formula.steps_of(record, 1, 11)


@pytest.mark.parametrize("record", [None, {}, {"steps": "x"}, {"steps": []}, {"steps": [["x"], ["+", 0]]},
                                    {"steps": [["x"], ["^", 0, 0]]}, {"steps": [["x"], ["+", 1, 0]]},
                                    {"steps": [["x"], ["+", True, 0]]}, {"steps": [["x"], ["/", 0, [0.0]]]},
                                    {"steps": [["x"], ["+", [float("nan")], 0]]}])  # fmt: skip
def test_a_broken_record_is_no_formula(record):
    with pytest.raises(scoring.Invalid):
        formula.apply(formula.steps_of(record, 1, 9), 1, [[1.0]])


@pytest.mark.parametrize("name,header", [("numerics/bessel", "def approximate(x):"),
                                         ("numerics/root_finding", "def improve(x, f, slope, curvature):")])  # fmt: skip
def test_a_program_with_too_many_operations_has_no_score(name, header):
    task = find_task(name)
    assert evaluate(task, task.seed()).score > 0
    long = f"{header}\n    for _ in range(13):\n        x = x + 0.0\n    return x\n"
    found = evaluate(task, long)
    assert found.score is None and "13 operations, at most 12 are allowed" in found.artifacts["error"]
