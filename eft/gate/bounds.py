"""What n paired differences say about their mean: one-sided bounds and p-values. Pure functions on numbers.

A difference d = q(candidate, z) − q(root, z) lies in [-1, 1] for scores q in [0, 1]. All bounds are one-sided at
`alpha`: P(bound is wrong) ≤ alpha for independent items, for every n where the name says so:

    hoeffding       exact for every distribution on [-1, 1]; useless below about a thousand items
    bernstein       empirical Bernstein (Maurer and Pontil 2009, theorem 4): the same, tighter where d varies little
    sign_flips      paired bootstrap with the null imposed (wild bootstrap, Rademacher weights): the signs of d − margin
                    are resampled. Exact where d − margin is symmetric under the null, which ±1 outcomes are; the
                    percentile bootstrap is not, it commits on three wins and no loss
    mcnemar         exact test of wins against losses, binary outcomes only; `mid` counts half of the observed table
                    (Lancaster's mid-p): not exact, but its error stays below alpha in the range of discordance that we
                    checked (tests/gate/test_bounds.py enumerates it) and it wastes less
"""

from __future__ import annotations

import math

import numpy as np

from eft.errors import EftError, UsageError

DRAWS = 9999


def differences(root: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """candidate − root per item, shape (n,). Raises EftError unless both are finite, in [0, 1] and of one length."""
    root, candidate = np.asarray(root, float), np.asarray(candidate, float)
    for name, side in (("root", root), ("candidate", candidate)):
        if side.ndim != 1:
            raise EftError(f"the scores of the {name} must be one number per item", why=f"their shape is {side.shape}")
        check_scores(side, f"the {name}")
    if len(root) != len(candidate):
        raise EftError(
            "items are missing on one side",
            why=f"root: {len(root)} scores, candidate: {len(candidate)}",
            way_out="evaluate both states on the same items",
        )
    return candidate - root


def check_scores(scores: np.ndarray, who: str, where: object = None) -> None:
    """Raises EftError for a score that is not a finite number in [0, 1]."""
    bad = np.flatnonzero(~((scores >= 0) & (scores <= 1)))  # NaN compares false
    if len(bad):
        raise EftError(
            f"{len(bad)} of {len(scores)} scores of {who} are not in [0, 1]",
            where=where,
            why=f"item {bad[0]} has {scores[bad[0]]}",
            way_out="q must be a finite number from 0 to 1",
        )


def check_differences(d: np.ndarray) -> np.ndarray:
    """`d` as float array. Raises EftError for differences outside [-1, 1] (a score outside [0, 1]) and for NaN."""
    d = np.asarray(d, float)
    if not (np.abs(d) <= 1).all():
        raise EftError("a paired difference is not in [-1, 1]", why="scores must be finite numbers in [0, 1]")
    return d


def check_level(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise UsageError(f"an error rate lies between 0 and 1, not at {alpha}")
    return alpha


def hoeffding(n: int, alpha: float) -> float:
    """How far a mean of n independent values in [-1, 1] may lie above its expectation: sqrt(2 ln(1/alpha) / n)."""
    return math.sqrt(2 * math.log(1 / check_level(alpha)) / n) if n else math.inf


def hoeffding_items(width: float, alpha: float) -> int:
    """Items that bring Hoeffding's bound down to `width`."""
    return math.ceil(2 * math.log(1 / check_level(alpha)) / width**2)


def bernstein(d: np.ndarray, alpha: float) -> float:
    """Maurer–Pontil's bound in units of d: sqrt(2 V ln(2/alpha) / n) + 2·7 ln(2/alpha) / (3 (n − 1)), V unbiased."""
    n = len(d)
    if n < 2:
        return math.inf
    log = math.log(2 / check_level(alpha))
    return math.sqrt(2 * float(np.var(d, ddof=1)) * log / n) + 14 * log / (3 * (n - 1))


def sign_flips(d: np.ndarray, margin: float = 0.0, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """p-values of "mean ≤ margin" and of "mean ≥ margin" by resampled signs. Deterministic; the order is irrelevant."""
    values, counts = np.unique(np.abs(np.asarray(d, float) - margin), return_counts=True)
    observed = float(np.sum(np.sort(d) - margin))
    rng = np.random.default_rng(seed)
    totals = np.zeros(draws)
    for value, count in zip(values[values > 0], counts[values > 0], strict=True):
        totals += value * (2.0 * rng.binomial(count, 0.5, draws) - count)
    slack = 1e-9 * (1 + abs(observed))  # sums of the same numbers in another order are equal
    above, below = int((totals >= observed - slack).sum()), int((totals <= observed + slack).sum())
    return (1 + above) / (1 + draws), (1 + below) / (1 + draws)


def wins_and_losses(d: np.ndarray) -> tuple[int, int]:
    """(b, c): items that only the candidate, that only the root solved. Raises UsageError for graded scores."""
    if not np.isin(d, (-1.0, 0.0, 1.0)).all():
        raise UsageError(
            "McNemar's test needs binary scores",
            why="some item's difference is not -1, 0 or 1",
            way_out="use --method betting, gsprt or bootstrap for graded scores",
        )
    return int((d == 1).sum()), int((d == -1).sum())


def mcnemar(wins: int, losses: int, *, mid: bool = False) -> float:
    """p-value of "wins are not more likely than losses" from exact binomial tails; `mid`: Lancaster's mid-p."""
    from scipy.stats import binom

    n = wins + losses
    p = float(binom.sf(wins - 1, n, 0.5))
    return p - 0.5 * float(binom.pmf(wins, n, 0.5)) if mid else p


def fixed_power(n: int, effect: float, discordance: float, alpha: float, *, mid: bool = True) -> float:
    """P(McNemar commits) for n items of which a share `discordance` differs and the mean difference is `effect`: exact,
    by enumeration over the number of discordant items."""
    from scipy.stats import binom

    if discordance <= 0:
        return 0.0
    win = (1 + effect / discordance) / 2
    total = 0.0
    weights = binom.pmf(np.arange(n + 1), n, discordance)
    for m in np.flatnonzero(weights > 1e-12):
        total += weights[m] * float(binom.sf(critical_wins(int(m), alpha, mid) - 1, m, win))
    return total


def critical_wins(discordant: int, alpha: float, mid: bool = True) -> int:
    """Fewest wins among `discordant` items that McNemar's test commits on; discordant + 1 where none do."""
    from scipy.stats import binom

    k = np.arange(discordant + 1)
    p = binom.sf(k - 1, discordant, 0.5) - (0.5 * binom.pmf(k, discordant, 0.5) if mid else 0.0)
    passing = np.flatnonzero(p <= alpha)
    return int(passing[0]) if len(passing) else discordant + 1
