"""Ten interpolation nodes on [-1, 1]: their Lebesgue constant, by which interpolation may be worse than the best
polynomial.

The Lebesgue function sum_i |l_i(x)| has one maximum between neighbouring nodes and rises outside of them, so golden
section search in every gap, and the two ends, find its largest value.
"""

import math

from eft.tasks import scoring

COUNT, NARROWEST = 10, 1e-4
GOLDEN = (math.sqrt(5) - 1) / 2


def score(value):
    nodes = sorted(scoring.numbers(value, COUNT, "nodes", -1.0, 1.0))
    gaps = list(zip(nodes, nodes[1:], strict=False))
    if any(b - a < NARROWEST for a, b in gaps):
        raise scoring.Invalid(f"two nodes are closer than {NARROWEST}")
    weights = [1 / math.prod(x - y for y in nodes if y != x) for x in nodes]

    def height(x):
        if x in nodes:
            return 1.0
        shares = [w / (x - y) for w, y in zip(weights, nodes, strict=True)]
        return sum(map(abs, shares)) / abs(sum(shares))

    most = max(height(-1.0), height(1.0))
    for a, b in gaps:
        low, high = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
        at_low, at_high = height(low), height(high)
        for _ in range(40):
            if at_low > at_high:
                b, high, at_high = high, low, at_low
                low = b - GOLDEN * (b - a)
                at_low = height(low)
            else:
                a, low, at_low = low, high, at_high
                high = a + GOLDEN * (b - a)
                at_high = height(high)
        most = max(most, at_low, at_high)
    return {"combined_score": 1 / (1 + math.log(most)), "lebesgue": most}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
