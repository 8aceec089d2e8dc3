"""Thomson's problem, n = 10: the least energy, sum over pairs of 1/distance, of points on the unit sphere.

The candidate gives directions; they are put onto the sphere here.
"""

import math

from eft.tasks import scoring

COUNT = 10
BEST = 32.716949460  # the scale of the score


def score(value):
    points = []
    for x, y, z in scoring.points(value, COUNT, 3, "points"):
        length = math.sqrt(x * x + y * y + z * z)
        if length < 1e-9:
            raise scoring.Invalid("a point at the center has no direction")
        points.append((x / length, y / length, z / length))
    energy = 0.0
    for i in range(COUNT):
        for j in range(i):
            energy += 1 / max(math.dist(points[i], points[j]), 1e-9)
    return {"combined_score": BEST / energy, "energy": energy}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
