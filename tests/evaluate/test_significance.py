"""Tests and sample sizes against full enumeration, against scipy, and against simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.evaluate.significance import (
    ALPHA,
    POWER,
    detectable,
    holm,
    power_of,
    seeds_needed,
    sign,
    tasks_needed,
    wilcoxon,
)

small = st.lists(st.integers(-4, 4).map(float), max_size=9)
shares = st.lists(st.floats(0.0005, 1.0), min_size=1, max_size=5)


def enumerated(values: list[float]) -> float:
    """The signed-rank test by its definition: how many of all sign patterns are at least as extreme."""
    d = np.array([v for v in values if v])
    ranks = scipy.stats.rankdata(np.abs(d))
    found = ranks[d > 0].sum()
    sums = [np.dot(ranks, signs) for signs in itertools.product((0, 1), repeat=len(d))]
    low, high = (sum(f(s, found) for s in sums) / len(sums) for f in (np.less_equal, np.greater_equal))
    return min(1.0, 2 * min(low, high))


@given(small)
@settings(deadline=None, max_examples=60)
def test_signed_ranks_are_enumerated_exactly_with_ties_and_zeros(values):
    test = wilcoxon(values)
    if not any(values):
        assert test is None
    else:
        assert test is not None and test.n == sum(v != 0 for v in values)
        assert test.p == pytest.approx(enumerated(values), abs=1e-12)
        mirrored = wilcoxon([-v for v in values])
        assert mirrored is not None and mirrored.p == pytest.approx(test.p)


@pytest.mark.parametrize("n", [1, 5, 12, 30])
def test_signed_ranks_agree_with_scipy_where_scipy_is_exact(n):
    values = np.random.default_rng(n).normal(0.3, 1.0, n)
    test = wilcoxon(list(values))
    assert test is not None and test.p == pytest.approx(scipy.stats.wilcoxon(values, method="exact").pvalue)


def test_many_values_are_approximated():
    values = np.random.default_rng(1).normal(0.1, 1.0, 900)
    test = wilcoxon(list(values))
    assert test is not None and test.p == pytest.approx(scipy.stats.wilcoxon(values, method="asymptotic").pvalue)


def test_five_tasks_can_never_decide_and_six_can():
    assert wilcoxon([1.0] * 5).p == 0.0625 and wilcoxon([1.0] * 6).p == 0.03125  # type: ignore[union-attr]


def test_sign_test_by_hand():
    assert sign(0, 0) is None
    assert sign(6, 0).p == pytest.approx(2 / 64) and sign(5, 1).p == pytest.approx(14 / 64)  # type: ignore[union-attr]


@given(shares)
def test_holm_is_the_closed_test_of_bonferroni(p):
    """A hypothesis is rejected exactly where every intersection that holds it is (Marcus, Peritz, Gabriel 1976)."""
    everyone = range(len(p))
    for i, adjusted in enumerate(holm(p)):
        sets = [s for k in range(1, len(p) + 1) for s in itertools.combinations(everyone, k) if i in s]
        closed = max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets)
        assert adjusted == pytest.approx(closed) and adjusted >= p[i]


def test_textbook_sample_size():
    """A paired t test sees half a standard deviation with 80 % power from 34 pairs on (Cohen 1988)."""
    assert seeds_needed(0.5, [1.0]) == 34
    assert power_of(0.5, 1 / math.sqrt(34), 33) >= POWER > power_of(0.5, 1 / math.sqrt(33), 32)
    assert detectable(1 / math.sqrt(34), 33) == pytest.approx(0.495, abs=0.001)


def test_power_is_what_a_simulation_finds():
    rng = np.random.default_rng(5)
    samples = rng.normal(0.8, 1.0, (4000, 12))
    p = scipy.stats.ttest_1samp(samples, 0, axis=1).pvalue
    assert power_of(0.8, 1 / math.sqrt(12), 11) == pytest.approx((p < ALPHA).mean(), abs=0.03)


@given(st.floats(0.02, 2.0), st.lists(st.floats(0.01, 4.0), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_larger_differences_need_fewer_seeds(difference, variances):
    few, more = seeds_needed(2 * difference, variances), seeds_needed(difference, variances)
    assert more is None or (few is not None and few <= more)
    alike = seeds_needed(-difference, variances)
    assert alike == more
    corrected = seeds_needed(difference, variances, ALPHA / 6)
    assert corrected is None or (more is not None and more <= corrected)


def test_nothing_to_see_needs_no_number():
    assert seeds_needed(0.0, [1.0]) is None and tasks_needed(0.0, 1.0) is None
    assert seeds_needed(1e-9, [1.0]) is None  # more than anybody will run
    assert seeds_needed(0.1, [0.0, 0.0]) == 3 and seeds_needed(0.1, [0.0] * 9) == 2  # six paired searches at least
    assert detectable(0.0, 3) == 0.0  # no noise at all
    assert tasks_needed(100.0, 1.0) == 6  # fewer can never pass the signed-rank test
    assert power_of(0.0, 0.0, 3) == 0.0


def test_extremes_stay_numbers():
    for difference, error, freedom in ((1e6, 1e-6, 2), (1e-9, 1.0, 1), (5.0, 1e-3, 0.5)):
        assert 0 <= power_of(difference, error, freedom) <= 1
    assert math.isfinite(detectable(1.0, 1.0)) and math.isfinite(detectable(0.3, 1.0, ALPHA / 20))
