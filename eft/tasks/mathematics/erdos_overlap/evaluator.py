"""Erdos' minimum overlap problem with 21 steps: for a density h with values in [0, 1] and integral 1 on an interval of
length 2, make the largest overlap, max over t of the integral of h(x) (1 - h(x + t)), small.

1 - h counts inside the interval only. For steps the overlap is linear in t between whole steps, so its largest value is
at a whole step: it is exact. Any 21 numbers are made a density: one amount is added to all, and they are cut to [0, 1],
such that the integral is 1 (it is scaled for what bisection leaves).
"""

from eft.tasks import scoring

COUNT = 21
MEAN = 0.5


def density(values):
    """`values` shifted and cut to [0, 1] so that their mean is MEAN."""
    low, high = -max(values), 1 - min(values)
    for _ in range(100):
        shift = (low + high) / 2
        if sum(min(max(v + shift, 0.0), 1.0) for v in values) < MEAN * len(values):
            low = shift
        else:
            high = shift
    return [min(max(v + high, 0.0), 1.0) for v in values]


def score(value):
    heights = density(scoring.numbers(value, COUNT, "heights", -1000.0, 1000.0))
    if abs(sum(heights) - MEAN * COUNT) > 1e-9:
        raise scoring.Invalid("the heights cannot be shifted to a mean of 1/2")
    most = 0.0
    for t in range(1 - COUNT, COUNT):
        most = max(most, sum(heights[i] * (1 - heights[i + t]) for i in range(max(0, -t), min(COUNT, COUNT - t))))
    overlap = 2 * most / COUNT / (sum(heights) * 2 / COUNT) ** 2
    return {"combined_score": 0.38 / overlap, "overlap": overlap}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
