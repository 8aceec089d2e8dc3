"""A cluster of 13 atoms that attract and repel each other as Lennard-Jones': its energy, to be made low.

The energy is the sum over pairs of 4 (r^-12 - r^-6). Its lowest value over all scales of a cluster has a closed form,
-(sum r^-6)^2 / sum r^-12, which is below 0; that is the raw metric.
"""

import math

from eft.tasks import scoring

COUNT = 13
BEST = 44.326801  # the scale of the score


def score(value):
    atoms = scoring.points(value, COUNT, 3, "atoms")
    distances = [math.dist(atoms[i], atoms[j]) for i in range(COUNT) for j in range(i)]
    nearest = min(distances)
    if nearest <= 1e-6 * max(distances):
        raise scoring.Invalid("two atoms are at one place")
    sixth = [(nearest / r) ** 6 for r in distances]
    energy = -(sum(sixth) ** 2) / sum(s * s for s in sixth)
    return {"combined_score": -energy / BEST, "energy": energy}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
