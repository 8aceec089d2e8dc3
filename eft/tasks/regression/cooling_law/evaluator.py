"""Symbolic regression: find a formula for y from two variables; the number of digits that it gets right on 99 points,
log10(1 + y's spread / root mean square error).

The candidate's process sees the points' coordinates only; the measured values, and the law behind them, never leave
this one. The hidden split lies between these points, and a little beyond them.
"""

import math

from eft.tasks import scoring

COUNT = 99
POINTS = [(4 * i / 10, 3 * j / 8) for i in range(11) for j in range(9)]
HIDDEN_POINTS = [(4.8 * (i + 0.5) / 11, 3.6 * (j + 0.5) / 9) for i in range(11) for j in range(9)]

DRIVER = """
def drive(predict, points):
    return [float(predict(speed, heat)) for speed, heat in points]
"""


def law(speed, heat):
    """Convection that grows with the root of the speed, and radiation that grows with a power of heat."""
    return 0.4 + 1.3 * heat * math.sqrt(0.2 + speed) / (1 + 0.25 * heat) + 0.15 * heat * heat


def measure(points, seed):
    """(points, measured values)."""
    draw = scoring.stream(seed)
    return points, [law(speed, heat) + 0.04 * (draw() - 0.5) for speed, heat in points]


SEARCH = measure(POINTS, 11000)
HIDDEN = measure(HIDDEN_POINTS, 11001)


def score(value, measured):
    predicted = scoring.numbers(value, COUNT, "predictions", -1e6, 1e6)
    digits = scoring.digits(scoring.relative_error(predicted, measured))
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path, hidden=False):
    points, measured = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="predict", driver=DRIVER, args=(points,), score=lambda value: score(value, measured)
    )
