"""Symbolic regression: find a formula for y from two variables; the number of digits that it gets right on 99 points,
log10(1 + y's spread / root mean square error).

The candidate's process sees the points' coordinates only; the measured values, and the law behind them, never leave
this one.
"""

import math

from eft.tasks import scoring

POINTS = [(4 * i / 10, 3 * j / 8) for i in range(11) for j in range(9)]

DRIVER = """
def drive(predict, points):
    return [float(predict(speed, heat)) for speed, heat in points]
"""


def law(speed, heat):
    """Convection that grows with the root of the speed, and radiation that grows with a power of heat."""
    return 0.4 + 1.3 * heat * math.sqrt(0.2 + speed) / (1 + 0.25 * heat) + 0.15 * heat * heat


_draw = scoring.stream(11000)
VALUES = [law(speed, heat) + 0.04 * (_draw() - 0.5) for speed, heat in POINTS]
_mean = sum(VALUES) / len(VALUES)
SPREAD = math.sqrt(sum((y - _mean) ** 2 for y in VALUES) / len(VALUES))


def score(value):
    predicted = scoring.numbers(value, len(POINTS), "predictions", -1e6, 1e6)
    error = math.sqrt(sum((a - b) ** 2 for a, b in zip(predicted, VALUES, strict=True)) / len(VALUES)) / SPREAD
    digits = scoring.digits(error)
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path):
    return scoring.evaluate(program_path, entry="predict", driver=DRIVER, args=(POINTS,), score=score)
