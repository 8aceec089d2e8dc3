"""Circle packing, n = 7: the sum of the radii of disjoint circles in the unit square.

The candidate gives centers only. Every radius is computed here, as large as the walls and half the distance to the
nearest center allow, so any list of points is an exact packing: no tolerance, nothing to overstate.
"""

import math

from eft.tasks import scoring

COUNT = 7


def score(value):
    centers = scoring.points(value, COUNT, 2, "centers", 0.0, 1.0)
    total = 0.0
    for i, (x, y) in enumerate(centers):
        nearest = min(math.dist((x, y), other) for j, other in enumerate(centers) if j != i)
        total += min(x, 1 - x, y, 1 - y, nearest / 2)
    return {"combined_score": total, "sum_radii": total}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
