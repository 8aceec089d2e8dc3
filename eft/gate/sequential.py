"""Gates that look after every item and stop as soon as they know: a betting e-process and the GSPRT.

`wealth`: testing by betting (Waudby-Smith and Ramdas 2023). Against "mean ≤ margin" a gambler stakes a share λ of the
    wealth on every difference: W_t = Π (1 + λ (d_i − margin) / (1 + |margin|)). Under the hypothesis each factor has
    expectation ≤ 1 given the past, so W is a supermartingale, also mixed over λ, and by Ville's inequality
    P(W ever reaches 1/alpha) ≤ alpha — for any stopping time, any dependence of the stake on the past, any distribution
    on [-1, 1]. The mixture over λ bets predictably: its stake is the wealth-weighted mean of the λs.
`llr`: generalised sequential probability ratio (as chess engines are tested): the log likelihood ratio of "mean =
    margin + effect" against "mean = margin" with the variance estimated. Wald's bounds make its errors about alpha and
    beta; approximate, but it needs about half the items of a fixed test.

All functions work on the last axis, so a benchmark can run thousands of decisions at once.
"""

from __future__ import annotations

import math

import numpy as np

STAKES = (0.15, 0.3, 0.5, 0.8)  # of the mixture; the best one is about effect / discordance, few of them waste little
BURN_IN = 16  # items before the GSPRT may stop: its variance is an estimate


def wealth(d: np.ndarray, margin: float = 0.0) -> np.ndarray:
    """log of the mixed wealth after each item, same shape as `d`, against "mean ≤ margin" (margin in (-1, 1)).

    Against "mean ≥ margin": wealth(−d, −margin).
    """
    x = (np.asarray(d, float) - margin) / (1 + abs(margin))  # in [-1, 1]: no stake loses everything
    total = np.full(x.shape, -np.inf)
    for stake in STAKES:
        total = np.logaddexp(total, np.cumsum(np.log1p(stake * x), axis=-1))
    return total - math.log(len(STAKES))


def llr(d: np.ndarray, margin: float, effect: float) -> np.ndarray:
    """The generalised log likelihood ratio after each item, same shape as `d`: n (s1 − s0)(2 m − s0 − s1) / (2 v).

    m, v: mean and variance of the items so far; v is held above effect² (a handful of equal differences are no proof).
    """
    d = np.asarray(d, float)
    n = np.arange(1, d.shape[-1] + 1)
    mean = np.cumsum(d, axis=-1) / n
    variance = np.maximum(np.cumsum(d * d, axis=-1) / n - mean * mean, effect * effect)
    return n * effect * (2 * mean - 2 * margin - effect) / (2 * variance)


def wald(alpha: float, beta: float) -> tuple[float, float]:
    """(lower, upper): the log likelihood ratio at which the SPRT rejects, and commits."""
    return math.log(beta / (1 - alpha)), math.log((1 - beta) / alpha)


def first(crossed: np.ndarray) -> np.ndarray:
    """Number of items at the first True along the last axis (1 for the first item); 0 where there is none."""
    found = crossed.argmax(axis=-1)
    return np.where(np.take_along_axis(crossed, found[..., None], axis=-1)[..., 0], found + 1, 0)


def betting_stops(d: np.ndarray, alpha: float, beta: float, margin: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(items at COMMIT, items at REJECT) of the betting gate, 0 where it did not come to that; the earlier counts.

    REJECT is the mirror image, so a candidate that is better than the margin is rejected with probability ≤ beta.
    """
    commit = first(wealth(d, margin) >= math.log(1 / alpha))
    return commit, first(wealth(-np.asarray(d, float), -margin) >= math.log(1 / beta))


def gsprt_stops(
    d: np.ndarray, alpha: float, beta: float, margin: float, effect: float
) -> tuple[np.ndarray, np.ndarray]:
    """(items at COMMIT, items at REJECT) of the GSPRT, 0 where it did not come to that; the earlier counts."""
    ratio = llr(d, margin, effect)
    late = np.arange(1, ratio.shape[-1] + 1) >= BURN_IN
    lower, upper = wald(alpha, beta)
    return first((ratio >= upper) & late), first((ratio <= lower) & late)
