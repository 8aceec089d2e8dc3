"""Metrics of query routing, each by its source's formula.

A *choice* is one model index per row; a *point* is (mean cost in dollars, mean score) of one choice. Everything here is
plain arithmetic on tables of shape (rows, models).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ARENA_CHEAPEST, ARENA_DEAREST, ARENA_BETA = 0.0044, 200.0, 0.1  # dollars for 1000 queries


def point(scores: np.ndarray, costs: np.ndarray, choice: Sequence[int] | np.ndarray) -> tuple[float, float]:
    """(mean cost, mean score) of the chosen models."""
    rows = np.arange(len(scores))
    return float(costs[rows, choice].mean()), float(scores[rows, choice].mean())


# ---- Frontier-CS -------------------------------------------------------------------------------------------------


def worth(scores: np.ndarray, costs: np.ndarray, price: float) -> np.ndarray:
    """What every model is worth on every row: score - price x cost; 0 on rows that no model answers (Frontier-CS,
    research/problems/llm_router: such a query costs nothing and counts as wrong)."""
    return np.where(scores.max(axis=1, keepdims=True) > 0, scores - price * costs, 0.0)


def oracle(scores: np.ndarray, costs: np.ndarray, price: float) -> np.ndarray:
    """The worthiest model of every row: with scores 0 and 1, the cheapest that is right. Of equals the first."""
    return worth(scores, costs, price).argmax(axis=1)


def share(scores: np.ndarray, costs: np.ndarray, choice: Sequence[int] | np.ndarray, price: float = 150.0) -> float:
    """Frontier-CS's score: (accuracy - 150 x mean cost) of the choice, in percent of the oracle's. May be negative."""
    values = worth(scores, costs, price)
    best = float(values.max(axis=1).mean())
    if best <= 0:
        return 0.0
    return 100.0 * float(values[np.arange(len(values)), choice].mean()) / best


# ---- RouterBench -------------------------------------------------------------------------------------------------


def hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The non-decreasing convex hull of (cost, quality) points, from the cheapest point to the best one.

    RouterBench (arXiv 2403.12031, section 3): a mixture of two routers reaches every point between them, so the upper
    convex hull counts; and nobody has to take the dearer of two when the cheaper is better, so it never falls.
    """
    found: list[tuple[float, float]] = []
    best = -math.inf
    for cost, quality in sorted(points, key=lambda p: (p[0], -p[1])):
        if quality <= best:  # dearer and no better
            continue
        best = quality
        while len(found) > 1 and _turns_up(found[-2], found[-1], (cost, quality)):
            found.pop()
        found.append((cost, quality))
    return found


def _turns_up(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Does b lie on or below the line from a to c?"""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])


def quality_at(corners: Sequence[tuple[float, float]], cost: float) -> float:
    """The hull's quality at a mean cost: 0 below its cheapest point, flat above its best one."""
    if not corners or cost < corners[0][0]:
        return 0.0
    return float(np.interp(cost, [c for c, _ in corners], [q for _, q in corners]))


def aiq(points: Sequence[tuple[float, float]], low: float, high: float) -> float:
    """Average improvement in quality: the mean of the hull's quality over costs in [low, high].

    RouterBench, equation 7: the integral of the hull over [c_min, c_max], divided by c_max - c_min. Here low and high
    are the mean costs of the cheapest and the dearest single model, the same for all routers on a table.
    """
    corners = hull(points)
    if high <= low:
        return quality_at(corners, low)
    inside = sorted({low, high, *(c for c, _ in corners if low < c < high)})
    area = 0.0
    for a, b in zip(inside[:-1], inside[1:], strict=True):
        # The hull starts with a step from 0 at its cheapest point, which is always a border of these pieces.
        left = quality_at(corners, a) if corners and a >= corners[0][0] else 0.0
        right = quality_at(corners, b) if corners and a >= corners[0][0] else 0.0
        area += (b - a) * (left + right) / 2
    return area / (high - low)


# ---- RouteLLM ----------------------------------------------------------------------------------------------------


def pgr(quality: float, weak: float, strong: float) -> float:
    """Performance gap recovered (RouteLLM, arXiv 2406.18665): 0 is the weak model, 1 the strong one."""
    return (quality - weak) / (strong - weak) if strong != weak else 0.0


def _curve(calls: Sequence[tuple[float, float]], weak: float, strong: float) -> tuple[np.ndarray, np.ndarray]:
    """Shares of calls to the strong model, ascending, and the gap recovered there; never and always included."""
    best = {0.0: weak, 1.0: strong}
    for part, quality in calls:
        if 0.0 < part < 1.0:
            best[part] = max(quality, best.get(part, -math.inf))
    shares = sorted(best)
    return np.array(shares), np.array([pgr(best[s], weak, strong) for s in shares])


def apgr(calls: Sequence[tuple[float, float]], weak: float, strong: float) -> float:
    """Average PGR over the share of strong calls: the area under the curve of (share, PGR), which is
    (AUC - AUC_weak) / (AUC_strong - AUC_weak) in terms of quality (RouteLLM, equation 5). 0.5 is a random router.

    calls: (share of calls to the strong model, mean quality) at several thresholds.
    """
    shares, gaps = _curve(calls, weak, strong)
    return float(np.trapezoid(gaps, shares))


def cpt(calls: Sequence[tuple[float, float]], weak: float, strong: float, x: float = 0.5) -> float:
    """Call-performance threshold CPT(x): the least share of strong calls at which PGR reaches x (RouteLLM), between
    two thresholds on the line between them. 1 where it is not reached before."""
    shares, gaps = _curve(calls, weak, strong)
    for i, gap in enumerate(gaps):
        if gap >= x:
            if i == 0:
                return 0.0
            a, b = gaps[i - 1], gap
            return float(shares[i - 1] + (shares[i] - shares[i - 1]) * (x - a) / (b - a))
    return 1.0


# ---- RouterArena -------------------------------------------------------------------------------------------------


def arena(accuracy: float, cost: float, beta: float = ARENA_BETA) -> float:
    """RouterArena's score (arXiv 2510.00202): S = (1 + beta) A C / (beta A + C), with the cost on a log scale,
    C = (log2 200 - log2 c) / (log2 200 - log2 0.0044), c in dollars for 1000 queries, within [0.0044, 200].

    accuracy in [0, 1]; cost: mean dollars of one query.
    """
    thousand = min(max(1000 * cost, ARENA_CHEAPEST), ARENA_DEAREST)
    cheap = (math.log2(ARENA_DEAREST) - math.log2(thousand)) / (math.log2(ARENA_DEAREST) - math.log2(ARENA_CHEAPEST))
    bottom = beta * accuracy + cheap
    return (1 + beta) * accuracy * cheap / bottom if bottom > 0 else 0.0


# ---- intervals ---------------------------------------------------------------------------------------------------


def over_splits(differences: Sequence[float], tested: float, confidence: float = 0.95) -> dict[str, float]:
    """Mean of paired differences over repeated random splits of one table, with two intervals.

    `low`, `high`: Student's t over the splits, as if they were independent: what other splits of this same table would
    give. `fresh_low`, `fresh_high`: the corrected resampled t interval of Nadeau and Bengio (Machine Learning 52, 2003),
    whose variance is multiplied by 1/J + n_test/n_train because J splits share their rows: what to expect of fresh
    rows. `tested`: the share of the rows that is hidden. Fewer than two splits have no interval (nan).
    """
    from scipy.stats import t

    values = np.asarray(differences, float)
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return dict(mean=mean, low=math.nan, high=math.nan, fresh_low=math.nan, fresh_high=math.nan)
    spread = float(values.std(ddof=1))
    quantile = float(t.ppf(0.5 + confidence / 2, count - 1))
    plain = quantile * spread / math.sqrt(count)
    fresh = quantile * spread * math.sqrt(1 / count + tested / (1 - tested))
    return dict(mean=mean, low=mean - plain, high=mean + plain, fresh_low=mean - fresh, fresh_high=mean + fresh)
