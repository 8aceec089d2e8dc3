"""Comparisons with numbers that can be checked by hand, and the properties that a sceptic would try."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_results import MAX, MIN, ZERO, evaluation, results

from eft.evaluate.compare import Found, band, compare, gap_closed, pair, pairings, relative_gain
from eft.evaluate.results import MutatorInfo, from_json, to_json

numbers = st.floats(-100, 100, allow_nan=False)


def test_gap_and_gains_by_hand():
    c = compare(evaluation({"base": {"tour": [8, 8]}, "sft": {"tour": [7.0, 6.5]}}, (MIN,)), draws=100)
    cell = next(c for c in c.cells if c.mutator == "sft")
    assert cell.raw is not None and (cell.raw.mean, cell.raw.low, cell.raw.high) == (6.75, 6.5, 7.0)
    assert cell.gap is not None and cell.gap.mean == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert cell.gain_start == cell.gain_base == pytest.approx((8 - 6.75) / 8)  # (base - finch) / base for "min"
    row = next(r for r in c.rows if r.mutator.name == "sft")
    assert row.gap is not None and row.gap.point == pytest.approx(5 / 12)


def test_directions_agree():
    assert gap_closed(6.5, 8.0, 5.0) == 0.5 and gap_closed(0.45, 0.2, 0.7) == pytest.approx(0.5)
    assert gap_closed(4.0, 8.0, 5.0) == pytest.approx(4 / 3)  # better than the best known
    assert gap_closed(9.5, 8.0, 5.0) == pytest.approx(-0.5)
    assert relative_gain(1.1, 1.0, "max") == pytest.approx(0.1) and relative_gain(0.9, 1.0, "min") == pytest.approx(0.1)
    assert relative_gain(-1.0, -2.0, "max") == pytest.approx(
        0.5
    )  # towards zero is better: the sign of the base is no matter


def test_published_numbers():
    """Hadamard at 4B, .384 -> .146, is the paper's -62 %; Erdos at 9B .385512 -> .381100 is +1.14 %."""
    assert relative_gain(0.146, 0.384, "max") == pytest.approx(-0.62, abs=0.001)
    assert relative_gain(0.381100, 0.385512, "min") == pytest.approx(0.01144, abs=1e-4)


def test_undefined_is_listed_with_its_reason():
    c = compare(
        evaluation({"base": {"zero": [0, 0], "hits": [0.2]}, "sft": {"zero": [1, 2], "hits": [0.3]}}, (ZERO, MAX)),
        draws=50,
    )
    listed = {(u.what, u.task): u.why for u in c.undefined}
    assert "no best known value" in listed["gap closed", "zero"]
    assert listed["relative gain over the start program", "zero"] == "the start value is 0"
    assert listed["relative gain over base", "zero"] == "the mean of base is 0"
    assert ("gap closed", "hits") not in listed
    row = next(r for r in c.rows if r.mutator.name == "sft")
    assert row.gap is not None and row.gap.tasks == 1  # the other task is not in the mean


def test_pairs_use_only_searches_that_both_have():
    c = compare(evaluation({"base": {"hits": [0.2, 0.3]}, "sft": {"hits": [0.4, 0.2, 0.7]}}, (MAX,)), draws=50)
    (p,) = c.pairs
    assert (p.wins, p.ties, p.losses, p.unpaired) == (1, 0, 1, 1)
    assert p.difference is not None and p.difference.point == pytest.approx((0.4 - 0.2) / 2)


def test_losses_come_first():
    found = {"base": {"tour": [8], "hits": [0.2]}, "sft": {"tour": [9], "hits": [0.5]}}
    (p,) = compare(evaluation(found, (MAX, MIN)), draws=50).pairs
    assert [t for t, _ in p.tasks] == ["tour", "hits"]


def test_failed_searches_are_reported_and_not_counted():
    r = evaluation({"base": {"hits": [0.2, 0.2]}, "sft": {"hits": [0.4, 0.4]}}, (MAX,))
    dead = dataclasses.replace(r.searches[-1], status="failed", reason="killed", best_raw=None)
    c = compare(dataclasses.replace(r, searches=(*r.searches[:-1], dead)), draws=50)
    assert [s.reason for s in c.failed] == ["killed"]
    row = next(r for r in c.rows if r.mutator.name == "sft")
    assert (row.done, row.failed, row.behaviour.proposals) == (1, 1, 4)


def test_behaviour_rates():
    c = compare(evaluation({"base": {"hits": [0.2, 0.2]}}, (MAX,)), draws=50)
    b = c.rows[0].behaviour
    assert b.valid and b.no_op and b.improves and b.improves_of_edits
    assert (b.valid.point, b.no_op.point, b.improves.point) == (0.25, 0.25, 0.25)
    assert b.improves_of_edits.point == pytest.approx(1 / 3)  # no-ops left out of the denominator
    assert b.gain == pytest.approx(0.2 / 8)


def test_who_is_compared_with_whom():
    controls = [MutatorInfo("ast", "ast", "control"), MutatorInfo("n_sft", "best_of_n", "control", of="sft")]
    m = [MutatorInfo("base", "served", "baseline"), MutatorInfo("sft"), MutatorInfo("kto"), *controls]
    assert pairings(m) == [
        ("sft", "base"), ("sft", "ast"), ("sft", "n_sft"), ("kto", "base"), ("kto", "sft"), ("kto", "ast"),
    ]  # fmt: skip


def test_band():
    assert band([[0.0, 1.0], [0.0, 3.0], [0.0]]) == ((0.0, 0.0, 0.0), (0.0, 1.0, 3.0))  # the short one keeps its value
    assert band([[None, 1.0]]) == () and band([]) == ()
    five = band([[float(i)] for i in range(5)])
    assert five == ((1.0, 2.0, 3.0),)  # quartiles from five on


@given(numbers, numbers, numbers, numbers)
def test_gap_is_monotone_towards_the_best(start, best, a, b):
    low, high = sorted((a, b))
    first, second = gap_closed(low, start, best), gap_closed(high, start, best)
    if first is not None and second is not None:
        assert first <= second if best > start else first >= second


@given(
    st.dictionaries(
        st.text("ab", min_size=1, max_size=2), st.dictionaries(st.integers(0, 5), numbers, max_size=4), max_size=4
    )
)
@settings(max_examples=50, deadline=None)
def test_a_mutator_against_itself_is_exactly_zero(gaps):
    same = Found(gaps, gaps, gaps, {})
    p = pair("a", same, "a", same, draws=100)
    assert (p.wins, p.losses, p.unpaired) == (0, 0, 0)
    if p.difference is not None:
        intervals = [i for i in (p.difference.these, p.difference.such) if i is not None]
        assert p.difference.point == 0 and all(i.low == i.high == 0 for i in intervals)


def test_order_of_searches_does_not_matter():
    r = results(seeds=3, iterations=8)
    mixed = list(r.searches)
    random.Random(1).shuffle(mixed)
    assert compare(dataclasses.replace(r, searches=tuple(mixed)), draws=100) == compare(r, draws=100)


def test_results_survive_the_file():
    r = results(seeds=2, iterations=5, hostile=True)
    assert from_json(to_json(r)) == r
