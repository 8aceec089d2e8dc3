"""Heilbronn's problem for nine points in the unit square: the area of the smallest triangle, to be made large.

The score adds a little of the second to fifth smallest area (at most 0.1 in all), so that a program which opens one of
several flat triangles gets on.
"""

from itertools import combinations

from eft.tasks import scoring

COUNT = 9
BEST = 0.054876  # the scale of the score


def score(value):
    points = scoring.points(value, COUNT, 2, "points", 0.0, 1.0)
    areas = sorted(
        abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])) / 2 for a, b, c in combinations(points, 3)
    )
    others = sum(min(area / BEST, 1.0) for area in areas[1:5])
    return {"combined_score": (areas[0] / BEST + 0.025 * others + 0.1) / 1.2, "area": areas[0]}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
