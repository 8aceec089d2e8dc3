"""Tests of paired differences, and how much data a difference needs: pure functions on numbers.

A comparison is tested twice, for the two claims that `stats.py` has intervals for.
    over searches  Wilcoxon's signed-rank test on the paired searches. If both mutators were the same, each difference
                   would as well have had the other sign; that needs no normal noise and no equal spread of the tasks.
    over tasks     the same test on one mean difference per task (Demšar 2006): do *such* tasks profit?
Zeros are dropped and ties share their mean rank, as Wilcoxon does; the distribution is enumerated, not approximated
(scipy's is exact without ties only, or for up to 13 values). Where no gap exists, an exact sign test on wins and losses
stands in. Holm's procedure corrects for the number of comparisons in one report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.05
POWER = 0.8
MOST = 10_000  # seeds or tasks beyond which "how many are needed" is not worth a number
EXACT = 600  # values up to which the signed-rank distribution is enumerated


@dataclass(frozen=True)
class Test:
    """A two-sided p value. `n`: differences other than zero. `adjusted`: by Holm's procedure, over the report."""

    p: float
    n: int
    adjusted: float


def wilcoxon(values: Sequence[float]) -> Test | None:
    """Wilcoxon's signed-rank test of finite differences; None where all are zero, or none is there."""
    import numpy as np
    from scipy.stats import rankdata, wilcoxon

    d = np.asarray([v for v in values if v != 0], float)
    if not len(d):
        return None
    if len(d) > EXACT:
        p = float(wilcoxon(d, method="asymptotic").pvalue)
        return Test(p, len(d), p)
    ranks = np.rint(2 * rankdata(np.abs(d))).astype(int)  # doubled: mean ranks of ties are halves
    share = np.ones(1)  # share[k]: probability that the positive ranks sum to k/2
    for r in ranks:
        longer = np.zeros(len(share) + r)
        longer[: len(share)] += share / 2
        longer[r:] += share / 2
        share = longer
    found = int(ranks[d > 0].sum())
    tail = min(share[: found + 1].sum(), share[found:].sum())
    p = min(1.0, 2 * float(tail))
    return Test(p, len(d), p)


def sign(wins: int, losses: int) -> Test | None:
    """The exact sign test; ties are left out. None where nothing was decided."""
    from scipy.stats import binomtest

    if not wins + losses:
        return None
    p = float(binomtest(wins, wins + losses).pvalue)
    return Test(p, wins + losses, p)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, running = [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        running = max(running, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = running
    return adjusted


def power_of(difference: float, error: float, freedom: float, alpha: float = ALPHA) -> float:
    """The chance that a two-sided t test at `alpha` sees a true `difference` of a mean with standard error `error`."""
    from scipy.stats import nct, t

    if not error:
        return 1.0 if difference else 0.0
    limit, shift = float(t.ppf(1 - alpha / 2, freedom)), abs(difference) / error
    power = 1.0 - float(nct.cdf(limit, freedom, shift))
    return power if math.isfinite(power) else 1.0  # scipy's far tail, where nothing is left to miss


def _smallest(enough, first: int) -> int | None:
    """The smallest whole number from `first` to MOST of which `enough` (monotone) is true."""
    low, high = first, first
    while not enough(high):
        if high >= MOST:
            return None
        low, high = high + 1, min(2 * high, MOST)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _least(alpha: float) -> int:
    """Differences below which no signed-rank test rejects: n signs all alike have p = 2 / 2**n."""
    return max(2, 1 + math.ceil(-math.log2(alpha)))


def seeds_needed(difference: float, variances: Sequence[float], alpha: float = ALPHA) -> int | None:
    """Seeds per task with which a true mean `difference` is seen with POWER, on these very tasks.

    `variances`: of the paired differences between seeds, one per task. None beyond MOST, or for no difference. Never
    fewer than the signed-rank test needs to speak at all.
    """
    total, squares, tasks = math.fsum(variances), math.fsum(v * v for v in variances), len(variances)
    if not difference or not tasks:
        return None
    worth = total * total / squares if squares else float(tasks)  # of how many equally noisy tasks (Satterthwaite)

    def enough(n: int) -> bool:
        return power_of(difference, math.sqrt(total / n) / tasks, worth * (n - 1), alpha) >= POWER

    return _smallest(enough, max(2, math.ceil(_least(alpha) / tasks)))


def tasks_needed(difference: float, variance: float, alpha: float = ALPHA) -> int | None:
    """Tasks with which a true mean `difference` is seen with POWER, on tasks of this kind, seeds as they are.

    `variance`: of the tasks' mean differences. Never fewer than the signed-rank test needs to speak at all.
    """
    if not difference:
        return None
    return _smallest(lambda n: power_of(difference, math.sqrt(variance / n), n - 1, alpha) >= POWER, _least(alpha))


def detectable(error: float, freedom: float, alpha: float = ALPHA) -> float:
    """The smallest true difference that is seen with POWER at this standard error."""
    from scipy.optimize import brentq

    if not error:
        return 0.0
    return error * float(brentq(lambda d: power_of(d, 1.0, freedom, alpha) - POWER, 0.0, 1e4))
