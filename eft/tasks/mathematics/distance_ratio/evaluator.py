"""Sixteen points in the plane: the largest distance between two of them over the smallest, to be made small.

Place and scale of the points do not matter.
"""

import math

from eft.tasks import scoring

COUNT = 16
BEST = 3.5901574  # the scale of the score


def score(value):
    points = scoring.points(value, COUNT, 2, "points")
    distances = [math.dist(points[i], points[j]) for i in range(COUNT) for j in range(i)]
    if min(distances) <= 1e-9 * max(distances):
        raise scoring.Invalid("two points coincide")
    ratio = max(distances) / min(distances)
    return {"combined_score": BEST / ratio, "ratio": ratio}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
