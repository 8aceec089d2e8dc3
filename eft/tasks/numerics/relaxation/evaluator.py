"""Eight sweeps of a stationary iteration (Richardson's) with a factor each: how much of an error they leave at worst.

What is left of an error part with eigenvalue s in [0.05, 1] is prod_k |1 - f_k s|. Its largest value lies at an end of
the interval or at the one extremum between neighbouring roots 1 / f_k: golden section search finds it. The raw metric
is the number of digits gained, log10(1 + 1 / left). The best factors are known: 1 / f_k are the roots of a Chebyshev
polynomial.
"""

import math

from eft.tasks import scoring

SWEEPS, LOW, HIGH = 8, 0.05, 1.0
GOLDEN = (math.sqrt(5) - 1) / 2


def score(value):
    factors = scoring.numbers(value, SWEEPS, "factors", -1000.0, 1000.0)

    def left(s):
        return math.prod(abs(1 - f * s) for f in factors)

    edges = sorted({LOW, HIGH, *(min(max(1 / f, LOW), HIGH) for f in factors if f > 0)})
    most = max(left(LOW), left(HIGH))
    for a, b in zip(edges, edges[1:], strict=False):
        low, high = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
        at_low, at_high = left(low), left(high)
        for _ in range(40):
            if at_low > at_high:
                b, high, at_high = high, low, at_low
                low = b - GOLDEN * (b - a)
                at_low = left(low)
            else:
                a, low, at_low = low, high, at_high
                high = a + GOLDEN * (b - a)
                at_high = left(high)
        most = max(most, at_low, at_high)
    digits = scoring.digits(most)
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
