"""Comparisons with numbers that can be checked by hand, and the properties that a sceptic would try."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_results import MAX, MIN, ZERO, evaluation, results

from eft.evaluate.compare import Found, band, compare, gap_closed, pair, pairings, relative_gain
from eft.evaluate.results import MutatorInfo, Results, Search, from_json, to_json

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


def tuned(found, tasks=(MAX,), **change) -> Results:
    return dataclasses.replace(evaluation(found, tasks), **change)


def final(r: Results, **by_mutator: float | None) -> Results:
    """The same searches, evaluated on hidden instances: `mutator=value`."""
    return dataclasses.replace(r, searches=tuple(
        dataclasses.replace(s, final_raw=by_mutator[s.mutator], start_final_raw=0.1) for s in r.searches))  # fmt: skip


def test_hidden_instances_decide():
    """What looked better to the search is worse where it counts, and a crash there is worth the start program."""
    task = dataclasses.replace(MAX, has_hidden=True, hidden_start_raw=0.1, hidden_best_known=0.6)
    r = tuned({"base": {"hits": [0.3, 0.3]}, "sft": {"hits": [0.6, 0.6]}}, (task,))
    (p,) = compare(final(r, base=0.4, sft=0.3), draws=50).pairs
    assert p.difference is not None and p.difference.point == pytest.approx(-0.2) and p.losses == 2
    c = compare(final(r, base=0.4, sft=None), draws=50)
    assert c.hidden == ("hits",) and c.pairs[0].difference.point == pytest.approx(-0.6)  # type: ignore[union-attr]
    assert any(u.mutator == "sft" and "2 of its best programs failed there" in u.why for u in c.undefined)


def test_some_final_values_are_not_mixed_with_others():
    task = dataclasses.replace(MAX, has_hidden=True)
    r = tuned({"base": {"hits": [0.3, 0.3]}, "sft": {"hits": [0.6, 0.6]}}, (task,))
    one = dataclasses.replace(r.searches[0], final_raw=0.9, start_final_raw=0.1)
    c = compare(dataclasses.replace(r, searches=(one, *r.searches[1:])), draws=50)
    assert c.hidden == () and c.pairs[0].difference.point == pytest.approx(0.6)  # type: ignore[union-attr]
    assert any("only some searches were evaluated" in u.why for u in c.undefined)
    assert any("do not have it" in u.why for u in compare(r, draws=50).undefined)


def test_relative_gain_of_the_suite_is_the_mean_where_it_is_defined():
    found = {"base": {"tour": [8.0], "zero": [0.0]}, "sft": {"tour": [6.0], "zero": [1.0]}}
    (p,) = compare(tuned(found, (MIN, ZERO)), draws=50).pairs
    assert p.relative == pytest.approx(0.25) and p.relative_tasks == 1


def test_proposals_to_reach_the_base():
    """Seed 0 is there after 1 proposal of base's 3, seed 1 never, and where base found nothing there is no number."""
    curves = {("base", 0): (0.2, 0.2, 0.3, 0.4), ("base", 1): (0.2, 0.5, 0.5, 0.5), ("base", 2): (0.2,) * 4}
    curves |= {("sft", 0): (0.2, 0.4, 0.4, 0.4), ("sft", 1): (0.2, 0.2, 0.3, 0.3), ("sft", 2): (0.2, 0.3, 0.3, 0.3)}
    r = tuned({m: {"hits": [curves[m, k][-1] for k in range(3)]} for m in ("base", "sft")})
    searches = tuple(dataclasses.replace(s, curve=curves[s.mutator, s.seed]) for s in r.searches)
    r = dataclasses.replace(r, searches=searches)
    reach = compare(r, draws=50).pairs[0].reach
    assert reach is not None and (reach.pairs, reach.reached, reach.idle) == (2, 1, 1)
    assert reach.median is None and reach.reference == 3


def test_scaffolds_are_kept_apart():
    r = tuned({"base": {"hits": [0.3] * 2}, "sft": {"hits": [0.4] * 2}})
    other = [dataclasses.replace(s, scaffold="tournament", best_raw=0.9 if s.mutator == "sft" else 0.2)
             for s in r.searches]  # fmt: skip
    samples = [Search("n", "hits", k, best_raw=0.35, scaffold="best_of_n") for k in range(2)]
    r = dataclasses.replace(r, searches=(*r.searches, *other, *samples),
                            mutators=(*r.mutators, MutatorInfo("n", "best_of_n", "control", of="sft")))  # fmt: skip
    c = compare(r, draws=50)
    assert c.scaffolds == ("openevolve", "tournament")
    points = {(p.mutator, p.reference): p.difference.point for p in c.pairs if p.difference}
    assert points == pytest.approx({
        ("sft · openevolve", "base · openevolve"): 0.2, ("sft · openevolve", "n"): 0.1,
        ("sft · tournament", "base · tournament"): 1.4, ("sft · tournament", "n"): 1.1,
    })  # fmt: skip


def test_the_base_is_compared_in_its_better_form():
    r = tuned({"base": {"hits": [0.25] * 2}, "sft": {"hits": [0.4] * 2}, "rewritten": {"hits": [0.45] * 2}})
    base = dataclasses.replace(r.mutators[0], model="m", edit="diff")
    other = dataclasses.replace(base, name="rewritten", edit="rewrite")
    r = dataclasses.replace(r, mutators=(base, r.mutators[1], other))
    c = compare(r, draws=50)
    assert [(p.mutator, p.reference, p.losses) for p in c.pairs] == [("sft", "rewritten", 2)]
    assert "better one is the reference: rewritten" in c.notes[0]
    cell = next(c for c in c.cells if c.mutator == "sft")
    assert cell.gain_base == pytest.approx((0.4 - 0.45) / 0.45)


def test_gain_by_domain():
    tasks = tuple(dataclasses.replace(MAX, name=n, domain=d) for n, d in (("a", "x"), ("b", "x"), ("c", "y")))
    found = {"base": {n: [0.2] for n in "abc"}, "sft": {"a": [0.7], "b": [0.45], "c": [0.1]}}
    r = tuned(found, tasks)
    r = dataclasses.replace(r, mutators=(r.mutators[0], dataclasses.replace(r.mutators[1], trained_on=("x",))))
    (t,) = compare(r, draws=50).transfer
    assert (t.mutator, t.reference, t.trained_on) == ("sft", "base", ("x",))
    assert {d: m.point for d, m in t.gains if m} == pytest.approx({"x": 0.75, "y": -0.2})


def test_not_a_number_is_missing_and_said():
    r = tuned({"base": {"hits": [0.3, 0.3]}, "sft": {"hits": [float("nan"), 0.5]}})
    c = compare(r, draws=50)
    assert c.pairs[0].wins == 1 and c.pairs[0].difference.values == 1  # type: ignore[union-attr]
    worse = tuned({"base": {"hits": [0.3]}, "sft": {"hits": [float("nan")]}})
    assert ("best value", "sft") in {(u.what, u.mutator) for u in compare(worse, draws=50).undefined}


def test_what_a_difference_needs():
    values = {"base": [0.2, 0.3, 0.2, 0.3], "sft": [0.25, 0.2, 0.5, 0.3]}
    found = {m: dict.fromkeys("abcdefgh", v) for m, v in values.items()}
    r = tuned(found, tuple(dataclasses.replace(MAX, name=n) for n in "abcdefgh"))
    (p,) = compare(r, draws=50).pairs
    assert p.needs is not None and p.needs.seeds is not None and 2 <= p.needs.seeds <= 10
    assert p.needs.tasks == 6  # the tasks agree exactly: only the test's own least number is left
    assert p.needs.seen_here is not None and p.needs.seen_here > 0
    one = compare(tuned({"base": {"hits": [0.2]}, "sft": {"hits": [0.3]}}), draws=50).pairs[0]
    assert one.needs is not None and one.needs.seeds is None and one.needs.tasks is None


def test_finding_nothing_loses_to_finding_something():
    """Where the start program is invalid there is no gap, and a search may end without any value."""
    task = dataclasses.replace(MAX, start_raw=None)
    (p,) = compare(tuned({"base": {"hits": [None, 0.4]}, "sft": {"hits": [0.3, None]}}, (task,)), draws=50).pairs
    assert p.difference is None and (p.wins, p.ties, p.losses, p.unpaired) == (1, 0, 1, 0)
