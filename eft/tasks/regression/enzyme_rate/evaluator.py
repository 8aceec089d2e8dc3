"""Symbolic regression: find a formula for the rate of a reaction from three variables; the number of digits that it
gets right, log10(1 + the rate's spread / root mean square error).

The candidate's process sees coordinates only; measured values, and the law behind them, never leave this one. During
the search 120 points count. The hidden split has 120 others, a quarter of which lie beyond the range of the search.
"""

import math

from eft.tasks import scoring

COUNT, NOISE = 120, 0.02

DRIVER = """
def drive(predict, points):
    return [float(predict(*point)) for point in points]
"""


def law(food, poison, heat):
    """Saturation with a competing poison, slowed by too much food; the rate grows exponentially with heat."""
    return 2.4 * math.exp(0.45 * heat) * food / (0.8 * (1 + poison / 0.7) + food + food * food / 9)


def sample(seed, beyond):
    """(points, measured values); the last `beyond` points reach one and a half times as far in every variable."""
    draw = scoring.stream(14000 + seed)
    points, values = [], []
    for k in range(COUNT):
        far = 1.5 if k >= COUNT - beyond else 1.0
        point = (far * (0.1 + 5.9 * draw()), far * 3 * draw(), far * (2 * draw() - 1))
        points.append(point)
        values.append(law(*point) + NOISE * (draw() + draw() - 1))
    return points, values


SEARCH = sample(0, 0)
HIDDEN = sample(1, COUNT // 4)


def score(value, measured):
    predicted = scoring.numbers(value, COUNT, "predictions", -1e6, 1e6)
    digits = scoring.digits(scoring.relative_error(predicted, measured))
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path, hidden=False):
    points, measured = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="predict", driver=DRIVER, args=(points,), score=lambda value: score(value, measured)
    )
