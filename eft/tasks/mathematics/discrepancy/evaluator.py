"""Sixteen points in the unit square with a small L2 star discrepancy, by Warnock's formula."""

import math

from eft.tasks import scoring

COUNT = 16


def score(value):
    points = scoring.points(value, COUNT, 2, "points", 0.0, 1.0)
    single = sum((1 - x * x) * (1 - y * y) for x, y in points)
    pairs = sum((1 - max(x, u)) * (1 - max(y, v)) for x, y in points for u, v in points)
    discrepancy = math.sqrt(max(1 / 9 - single / (2 * COUNT) + pairs / COUNT**2, 0.0))
    return {"combined_score": 0.1 / (0.02 + discrepancy), "discrepancy": discrepancy}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
