"""Every bound against exact enumeration: all outcomes of a few items, all their probabilities."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from eft.errors import EftError, UsageError
from eft.gate import bounds, sequential
from eft.gate.decide import METHODS, Rule, Verdict, decide

OUTCOMES = (-1.0, 0.0, 1.0)


def everything(n: int, win: float, lose: float):
    """(all outcomes of n items, shape (3^n, n); their probabilities) where an item is won and lost with these."""
    grid = np.array(list(itertools.product(OUTCOMES, repeat=n)))
    p = {-1.0: lose, 0.0: 1 - win - lose, 1.0: win}
    return grid, np.prod(np.vectorize(p.get)(grid), axis=1)


def test_hoeffding_and_bernstein_are_the_formulas_of_their_papers() -> None:
    """Enumeration of few items cannot tell a loose bound from half of it: values worked out by hand."""
    assert bounds.hoeffding(200, 0.05) == pytest.approx(0.1730818, abs=1e-6)  # sqrt(2 ln 20 / 200)
    d = np.array([1.0, -1.0] * 50)  # unbiased variance 100/99
    by_hand = math.sqrt(2 * (100 / 99) * math.log(40) / 100) + 14 * math.log(40) / (3 * 99)
    assert bounds.bernstein(d, 0.05) == pytest.approx(by_hand, rel=1e-12)
    n = bounds.hoeffding_items(0.1, 0.05)
    assert bounds.hoeffding(n, 0.05) <= 0.1 < bounds.hoeffding(n - 1, 0.05)


shares = st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda p: sum(p) <= 1)
levels = st.sampled_from([0.02, 0.1, 0.3])


@settings(max_examples=25, deadline=None)
@given(shares, levels, st.integers(2, 6))
def test_hoeffding_and_bernstein_are_right_as_often_as_they_say(p, alpha, n) -> None:
    outcomes, weight = everything(n, *p)
    true = p[0] - p[1]
    for width in (lambda d: bounds.hoeffding(len(d), alpha), lambda d: bounds.bernstein(d, alpha)):
        wrong = np.array([d.mean() - width(d) > true + 1e-12 for d in outcomes])
        assert weight[wrong].sum() <= alpha + 1e-9


@settings(max_examples=25, deadline=None)
@given(shares.map(lambda p: tuple(sorted(p))), levels, st.integers(2, 7))
def test_no_betting_path_is_lucky_more_often_than_alpha(p, alpha, n) -> None:
    outcomes, weight = everything(n, *p)  # sorted: wins are not more likely than losses
    paths = sequential.wealth(outcomes)
    assert weight[(paths >= math.log(1 / alpha)).any(axis=1)].sum() <= alpha + 1e-9, "Ville's inequality"
    assert (weight * np.exp(paths[:, -1])).sum() <= 1 + 1e-9, "a fair or unfair game does not make rich"


@settings(max_examples=20, deadline=None)
@given(shares, st.floats(-0.5, 0.5), st.integers(2, 6))
def test_betting_with_a_margin_is_a_supermartingale_too(p, margin, n) -> None:
    outcomes, weight = everything(n, *p)
    if p[0] - p[1] <= margin:
        assert (weight * np.exp(sequential.wealth(outcomes, margin)[:, -1])).sum() <= 1 + 1e-9
    if p[0] - p[1] >= margin:
        assert (weight * np.exp(sequential.wealth(-outcomes, -margin)[:, -1])).sum() <= 1 + 1e-9


@given(st.integers(0, 9), st.integers(0, 9))
def test_mcnemar_is_the_share_of_sign_patterns(wins: int, losses: int) -> None:
    m = wins + losses
    totals = binom.pmf(np.arange(m + 1), m, 0.5)  # a pattern's number of wins
    brute = sum(math.comb(m, k) for k in range(wins, m + 1)) / 2**m
    assert bounds.mcnemar(wins, losses) == pytest.approx(brute, abs=1e-12)
    assert bounds.mcnemar(wins, losses, mid=True) == pytest.approx(brute - totals[wins] / 2, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.1]),
)
def test_resampled_signs_agree_with_all_signs(values, margin) -> None:
    d = np.array(values)
    size = np.abs(d - margin)
    sums = np.array([np.dot(s, size) for s in itertools.product((-1, 1), repeat=len(d))])
    for found, exact in zip(
        bounds.sign_flips(d, margin),
        ((sums >= (d - margin).sum() - 1e-9).mean(), (sums <= (d - margin).sum() + 1e-9).mean()),
        strict=True,
    ):
        assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / bounds.DRAWS) + 2e-4)


def test_false_commits_of_mcnemar_and_mid_p_by_enumeration() -> None:
    exact, mid = (
        [bounds.fixed_power(n, 0.0, q, 0.05, mid=m) for n in (16, 64, 256, 700) for q in (0.05, 0.1, 0.2, 0.5, 1.0)]
        for m in (False, True)
    )
    assert max(exact) <= 0.05
    assert max(mid) <= 0.055, "not exact, and near its alpha everywhere"


def test_fixed_power_by_brute_force() -> None:
    outcomes, weight = everything(6, 0.5, 0.2)
    done = np.array([decide(d, Rule("midp", alpha=0.2)).verdict is Verdict.COMMIT for d in outcomes])
    assert bounds.fixed_power(6, 0.3, 0.7, 0.2) == pytest.approx(weight[done].sum(), abs=1e-12)


def test_the_union_bound_by_enumeration() -> None:
    """Two worthless branches on the same six items each, the better one confirmed on what chose it."""
    outcomes, weight = everything(6, 0.5, 0.5)
    alpha = 0.35

    def passes(branches):
        rule = Rule("mcnemar", alpha=alpha, branches=branches)
        return np.array([decide(d, rule).verdict is Verdict.COMMIT for d in outcomes])

    score = outcomes.sum(axis=1)

    def false(ok):  # P(the winner passes): first branch wins ties
        total = 0.0
        for value in np.unique(score):
            here, below, at_most = weight[score == value], weight[score < value].sum(), weight[score <= value].sum()
            total += (here * ok[score == value]).sum() * (at_most + below)
        return total

    single = weight[passes(1)].sum()
    assert single <= alpha < false(passes(1)), "reuse breaks alpha"
    assert false(passes(2)) <= alpha, "alpha / K holds it"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=120), st.sampled_from(METHODS), st.randoms())
def test_decisions_are_pure_and_mirror_images(values, method, random) -> None:
    d = np.array(values)
    one, other = decide(d, Rule(method)), decide(d.copy(), Rule(method))
    assert one.to_json() == other.to_json()
    if method not in ("betting", "gsprt"):
        random.shuffle(values)
        assert decide(values, Rule(method)).verdict == one.verdict, "a fixed sample has no order"
    if method not in ("tau", "gsprt"):
        mirror = decide(-d, Rule(method)).verdict
        assert (one.verdict is Verdict.COMMIT) == (mirror is Verdict.REJECT) or method in ("hoeffding", "bernstein")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(OUTCOMES), min_size=30, max_size=200), st.sampled_from(["betting", "gsprt"]))
def test_sequential_gates_stop_at_the_first_crossing(values, method) -> None:
    whole = decide(values, Rule(method, effect=0.2))
    assert decide(values[: whole.used], Rule(method, effect=0.2)).verdict == whole.verdict
    for k in range(1, whole.used, 7):
        assert decide(values[:k], Rule(method, effect=0.2)).verdict is Verdict.UNDECIDED


def test_llr_is_the_formula() -> None:
    d = np.array([1, 0, 0, -1, 1, 1, 0, 0, 1, 0] * 3, float)
    n, m, v = len(d), d.mean(), d.var()
    assert sequential.llr(d, 0.01, 0.05)[-1] == pytest.approx(n * 0.05 * (2 * m - 0.07) / (2 * v))
    assert np.allclose(sequential.wald(0.05, 0.05), (-2.944439, 2.944439))


@pytest.mark.parametrize(
    ("root", "candidate", "told"),
    [
        ([0.1, 1.2], [0, 0], "not in [0, 1]"),
        ([0.1, float("nan")], [0, 0], "not in [0, 1]"),
        ([0.1], [0.1, 0.2], "missing on one side"),
        ([[0.1]], [0.1], "one number per item"),
    ],
)
def test_bad_scores_are_one_message(root, candidate, told) -> None:
    with pytest.raises(EftError, match=told.replace("[", r"\[")):
        bounds.differences(root, candidate)


def test_bad_rules_are_usage_errors() -> None:
    for bad in (
        {"method": "tua"},
        {"alpha": 0},
        {"branches": 0},
        {"method": "midp", "margin": 0.1},
        {"margin": 1},
        {"branches": 3},
        {"undecided": "tau"},
    ):
        with pytest.raises(UsageError):
            Rule(**bad)
    with pytest.raises(UsageError, match="binary"):
        decide([0.5, 0.1], Rule("mcnemar"))
    with pytest.raises(EftError, match=r"\[-1, 1\]"):
        decide([0.5, float("nan")], Rule("tau"))


def test_nothing_seen_is_undecided() -> None:
    for method in METHODS:
        assert decide([], Rule(method)).verdict is Verdict.UNDECIDED
