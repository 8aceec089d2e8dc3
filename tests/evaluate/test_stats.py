"""Intervals: known numbers, properties, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.evaluate.stats import mean_interval, rate, wilson

DRAWS = 200
values = st.floats(-10, 10, allow_nan=False).map(lambda v: round(v, 3))
groups = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 20), values, min_size=1, max_size=5),
    max_size=5,
)
clusters = st.lists(st.integers(0, 30).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), max_size=12)


def test_mean_over_tasks_of_means_over_seeds():
    mean = mean_interval({"a": {0: 1.0, 1: 3.0}, "b": {0: 10.0}})
    assert mean is not None
    assert (mean.point, mean.tasks, mean.values) == (
        6.0,
        2,
        3,
    )  # (2 + 10) / 2: a task counts once, however many its seeds


def test_no_values_no_mean():
    assert mean_interval({}) is None and mean_interval({"a": {}}) is None


def test_one_value_has_no_interval():
    mean = mean_interval({"a": {0: 1.0}})
    assert mean is not None and mean.these is None and mean.such is None


def test_one_task_says_nothing_of_other_tasks():
    mean = mean_interval({"a": {0: 1.0, 1: 2.0}})
    assert mean is not None and mean.these is not None and mean.such is None


def test_normal_data_give_the_t_interval():
    # 12 seeds of one task: the bootstrap's shape at Student's size
    sample = np.random.default_rng(3).normal(2.0, 1.0, 12)
    mean = mean_interval({"a": dict(enumerate(sample))})
    assert mean is not None and mean.these is not None
    half = 2.201 * sample.std(ddof=1) / math.sqrt(12)
    assert mean.these.high - mean.these.low == pytest.approx(2 * half, rel=0.1)


@given(groups)
@settings(max_examples=60, deadline=None)
def test_intervals_hold_the_point_and_ignore_the_order(data):
    mean = mean_interval(data, draws=DRAWS)
    turned = {k: dict(reversed(list(v.items()))) for k, v in reversed(list(data.items()))}
    assert mean == mean_interval(turned, draws=DRAWS)
    if mean is not None:
        for i in (mean.these, mean.such):
            assert i is None or (i.low <= mean.point <= i.high and math.isfinite(i.low + i.high))


@given(groups, st.floats(0.01, 5))
@settings(max_examples=40, deadline=None)
def test_better_values_never_lower_the_mean(data, more):
    before = mean_interval(data, draws=DRAWS)
    after = mean_interval({k: {s: v + more for s, v in g.items()} for k, g in data.items()}, draws=DRAWS)
    if before is not None and after is not None:
        assert after.point == pytest.approx(before.point + more)
        for a, b in ((before.these, after.these), (before.such, after.such)):
            if a is not None and b is not None:
                assert b.low == pytest.approx(a.low + more, abs=1e-6) and b.high == pytest.approx(
                    a.high + more, abs=1e-6
                )


@pytest.mark.parametrize(("tasks", "seeds", "between"), [(3, 4, 0.5), (8, 5, 1.0)])
def test_zero_is_left_out_no_more_often_than_it_should(tasks, seeds, between):
    """No difference in truth: the interval over tasks and seeds leaves out zero in at most about 5 % of evaluations."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(200):
        centre = rng.normal(0, between, tasks)
        data = {str(t): {s: rng.normal(centre[t], 1.0) for s in range(seeds)} for t in range(tasks)}
        mean = mean_interval(data, draws=300)
        assert mean is not None and mean.such is not None
        wrong += mean.such.sign != 0
    assert wrong / 200 <= 0.09  # 5 % and three standard errors of 200 trials


def test_wilson_known_numbers():
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-3)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 200), st.data())
@settings(deadline=None)
def test_wilson_grows_with_successes(n, data):
    k = data.draw(st.integers(0, n - 1))
    (a, b), (c, d) = wilson(k, n), wilson(k + 1, n)
    assert a <= c and b <= d and 0 <= a <= k / n <= b <= 1


@given(clusters)
@settings(deadline=None)
def test_rates(pairs):
    found = rate(pairs)
    assert found == rate(reversed(pairs))
    if found is None:
        assert not any(n for _, n in pairs)
    else:
        assert 0 <= found.low <= found.point <= found.high <= 1
        assert 0 < found.effective <= found.trials


def test_searches_that_differ_are_worth_fewer_proposals():
    alike, apart = rate([(10, 20)] * 8), rate([(20, 20), (0, 20)] * 4)
    assert alike is not None and apart is not None
    assert alike.point == apart.point == 0.5
    assert alike.effective == 160 and apart.effective < 10
    assert apart.high - apart.low > alike.high - alike.low
