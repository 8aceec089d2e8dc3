"""Approximate the Bessel function J0 on [0, 5] with at most 12 arithmetic operations. The raw metric is the number
of correct digits, log10(1 + 1 / root mean square error).

The candidate's function is called once, on a symbol that records + - * / and negation; the recorded expression comes
back as data and is evaluated here. So a candidate can neither call a library nor branch on x, and operations are
counted, not claimed.
"""

import math

from eft.tasks import formula, scoring

OPERATIONS = 12
GRID = [k / 8 for k in range(41)]

DRIVER = formula.SYMBOL + """
def drive(approximate):
    y = approximate(Symbol(["x"]))
    return {"steps": Symbol.steps, "result": y.index if isinstance(y, Symbol) else [float(y)]}
"""


def j0(x):
    """J0 by its power series (fast and exact enough for x <= 5)."""
    total, term = 0.0, 1.0
    for k in range(1, 40):
        total += term
        term *= -(x * x / 4) / (k * k)
    return total


EXACT = [j0(x) for x in GRID]


def score(value):
    result = formula.apply(formula.steps_of(value, 1, OPERATIONS), value.get("result"), [GRID])
    error = math.sqrt(sum((u - v) ** 2 for u, v in zip(result, EXACT, strict=True)) / len(GRID))
    digits = scoring.digits(error)
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path):
    return scoring.evaluate(program_path, entry="approximate", driver=DRIVER, score=score)
