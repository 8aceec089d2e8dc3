"""The metrics of routing against small computations done another way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.loops import routing_metrics as metrics

points = st.lists(
    st.tuples(st.integers(0, 40).map(lambda v: v / 8), st.integers(0, 16).map(lambda v: v / 16)), min_size=1, max_size=8
)


def brute_quality(found: list[tuple[float, float]], cost: float) -> float:
    """The best quality that a mixture of two routers has at no more than this mean cost."""
    best = max((q for c, q in found if c <= cost), default=0.0)
    for (c1, q1), (c2, q2) in itertools.permutations(found, 2):
        if c1 <= cost < c2:
            best = max(best, q1 + (q2 - q1) * (cost - c1) / (c2 - c1))
    return best


@given(points, st.integers(0, 48).map(lambda v: v / 8))
def test_the_hull_is_what_mixtures_reach(found: list[tuple[float, float]], cost: float) -> None:
    assert metrics.quality_at(metrics.hull(found), cost) == pytest.approx(brute_quality(found, cost))


@given(points)
def test_the_hull_never_falls_bends_down_and_is_made_of_points(found: list[tuple[float, float]]) -> None:
    corners = metrics.hull(found)
    assert set(corners) <= set(found)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(corners)]
    assert all(s > 0 for s in slopes) and all(a > b for a, b in itertools.pairwise(slopes))


@settings(max_examples=50)
@given(points, st.integers(0, 16), st.integers(1, 32))
def test_aiq_is_the_mean_quality_over_costs(found: list[tuple[float, float]], low: int, width: int) -> None:
    a, b = low / 8, (low + width) / 8
    fine = np.linspace(a, b, 4001)
    mean = np.mean([metrics.quality_at(metrics.hull(found), (x + y) / 2) for x, y in itertools.pairwise(fine)])
    assert metrics.aiq(found, a, b) == pytest.approx(mean, abs=2e-3)


def test_aiq_by_hand() -> None:
    # From (1, 0.4) straight to (3, 0.8), flat to 5: (2 x 0.6 + 2 x 0.8) / 4; the dearer, worse point counts nothing.
    assert metrics.aiq([(1, 0.4), (3, 0.8), (4, 0.7)], 1, 5) == pytest.approx(0.7)
    assert metrics.aiq([(3, 0.8)], 1, 5) == pytest.approx(0.4)  # nothing is reached for less than 3
    assert metrics.aiq([(1, 0.5)], 2, 2) == 0.5


table = st.integers(2, 6).flatmap(lambda rows: st.tuples(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=3), min_size=rows, max_size=rows),
    st.lists(st.lists(st.integers(1, 60).map(lambda v: v / 1e5), min_size=3, max_size=3), min_size=rows, max_size=rows),
))  # fmt: skip


@given(table)
def test_the_oracle_takes_the_cheapest_right_model_and_nobody_gets_more(data) -> None:
    scores, costs = (np.array(v) for v in data)
    best = metrics.oracle(scores, costs, 150.0)
    for i, row in enumerate(scores):
        if row.any():
            assert row[best[i]] == 1 and costs[i, best[i]] == min(costs[i][row == 1])
    for choice in itertools.product(range(3), repeat=min(len(scores), 3)):
        full = [*choice, *best[len(choice) :]]
        assert metrics.share(scores, costs, full) <= (100.0 if scores.any() else 0.0) + 1e-9
    if scores.any():
        assert metrics.share(scores, costs, best) == pytest.approx(100.0)


def test_share_by_hand() -> None:
    scores, costs = np.array([[0, 1], [1, 1], [0, 0]], float), np.array([[0.001, 0.002]] * 3)
    # The oracle: 1 - 0.3, 1 - 0.15, and nothing for the row that nobody answers, whoever is asked.
    best = 0.7 + 0.85
    assert metrics.share(scores, costs, [1, 1, 1]) == pytest.approx(100 * 1.4 / best)
    assert metrics.share(scores, costs, [0, 0, 1]) == pytest.approx(100 * (-0.15 + 0.85) / best)
    assert metrics.share(np.zeros((2, 2)), costs[:2], [0, 0]) == 0.0


def test_pgr_apgr_and_cpt_by_hand() -> None:
    assert metrics.pgr(0.6, 0.5, 0.9) == pytest.approx(0.25)
    line = [
        (s / 10, 0.5 + 0.04 * s) for s in range(11)
    ]  # a random router: quality rises with the share of strong calls
    assert metrics.apgr(line, 0.5, 0.9) == pytest.approx(0.5)
    assert metrics.cpt(line, 0.5, 0.9, 0.2) == pytest.approx(0.2)
    assert metrics.cpt(line, 0.5, 0.9, 0.8) == pytest.approx(0.8)
    good = [(0.25, 0.9)]  # all of the gap with a quarter of the calls
    assert metrics.apgr(good, 0.5, 0.9) == pytest.approx(0.125 + 0.75)
    assert metrics.cpt(good, 0.5, 0.9, 0.5) == pytest.approx(0.125)
    assert metrics.cpt([], 0.9, 0.9, 0.5) == 1.0  # there is no gap to recover


@given(st.lists(st.tuples(st.integers(0, 8).map(lambda v: v / 8), st.integers(0, 8).map(lambda v: v / 8)), max_size=6))
def test_apgr_is_the_area_in_terms_of_quality(calls: list[tuple[float, float]]) -> None:
    weak, strong = 0.25, 0.75
    best = {0.0: weak, 1.0: strong}
    for s, q in calls:
        if 0 < s < 1:
            best[s] = max(q, best.get(s, 0.0))
    xs = sorted(best)
    area = sum((b - a) * (best[a] + best[b]) / 2 for a, b in itertools.pairwise(xs))
    assert metrics.apgr(calls, weak, strong) == pytest.approx((area - weak) / (strong - weak))


@given(st.floats(0.01, 1), st.floats(1e-6, 0.19), st.floats(1.01, 3))
def test_routerarenas_score_falls_with_cost_and_rises_with_accuracy(accuracy: float, cost: float, more: float) -> None:
    score = metrics.arena(accuracy, cost)
    assert 0 <= score <= 1
    assert metrics.arena(accuracy, cost * more) <= score
    assert metrics.arena(min(1.0, accuracy * more), cost) >= score


def test_routerarenas_score_by_hand() -> None:
    c = (math.log2(200) - math.log2(1.0)) / (math.log2(200) - math.log2(0.0044))  # $1 for 1000 queries
    assert metrics.arena(0.7, 0.001) == pytest.approx(1.1 * 0.7 * c / (0.1 * 0.7 + c))
    assert metrics.arena(1.0, 0.0) == pytest.approx(1.0) and metrics.arena(0.5, 10.0) == 0.0


def test_intervals_over_splits() -> None:
    told = metrics.over_splits([1.0, 2.0, 3.0], 0.4)
    half = 4.302653 / math.sqrt(3)  # t(2, 97.5 %) x sd 1
    assert told["mean"] == 2.0 and told["high"] == pytest.approx(2 + half, abs=1e-4)
    assert told["fresh_high"] - 2 == pytest.approx(4.302653 * math.sqrt(1 / 3 + 0.4 / 0.6), abs=1e-4)
    assert math.isnan(metrics.over_splits([1.0], 0.4)["low"])
