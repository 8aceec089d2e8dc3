"""A cantilever of ten rectangular segments: its volume, enlarged for bending too far, for too much stress and for
slenderness.

Limits are penalties that set in smoothly, so a light beam that bends a little too far still has a comparable cost.
Units: the beam is 10 long, the load at its tip 1, the modulus of the material 60000.
"""

import math

from eft.tasks import scoring

SEGMENTS, LENGTH, LOAD, MODULUS = 10, 1.0, 1.0, 60000.0
BEND, STRESS, SLENDER = 0.6, 300.0, 6.0


def over(value, bound):
    """How far a value exceeds its bound, in shares of the bound; smooth, nearly 0 below it."""
    t = 12 * (value / bound - 1)
    return (math.log1p(math.exp(-abs(t))) + max(t, 0.0)) / 12


def score(value):
    segments = scoring.points(value, SEGMENTS, 2, "segments", 0.02, 5.0)
    volume = bend = penalty = 0.0
    for k, (height, width) in enumerate(segments):
        near, far = (SEGMENTS - k) * LENGTH, (SEGMENTS - k - 1) * LENGTH
        inertia = width * height**3 / 12
        bend += LOAD * (near**3 - far**3) / (3 * MODULUS * inertia)
        volume += height * width * LENGTH
        penalty += over(LOAD * near * height / 2 / inertia, STRESS) / SEGMENTS
        penalty += over(height / width, SLENDER) / SEGMENTS
    penalty += over(bend, BEND)
    cost = volume * (1 + 2 * penalty) ** 2
    return {"combined_score": 2 / (0.5 + cost), "cost": cost}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
