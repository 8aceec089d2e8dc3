"""What one search is worth, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_results import MAX, MIN

from eft.evaluate.metrics import area, ends, failed_hidden, measured_finally, reached
from eft.evaluate.results import Search

HIDDEN = dataclasses.replace(MAX, has_hidden=True, hidden_start_raw=0.1, hidden_best_known=0.6)


def search(*curve, **change) -> Search:
    return dataclasses.replace(Search("m", "t", 0, curve=curve, iterations=len(curve) - 1), **change)


def test_area_is_the_mean_of_the_best_so_far():
    assert area(search(8.0, 8.0, 6.5, 5.0), MIN) == pytest.approx((0 + 0.5 + 1) / 3)  # the start program is not counted
    assert area(search(8.0, 6.5, iterations=4), MIN) == pytest.approx(0.5)  # an early end holds its value
    assert area(search(8.0, None, 6.5), MIN) is None and area(search(8.0), MIN) is None
    assert area(search(8.0, 6.5), dataclasses.replace(MIN, best_known=None)) is None


@given(st.lists(st.floats(5.0, 8.0), min_size=1, max_size=20))
def test_area_lies_between_nothing_and_the_end(values):
    best = [8.0]
    for v in values:
        best.append(min(best[-1], v))
    found = area(search(*best), MIN)
    assert found is not None and -1e-12 <= found <= (8.0 - best[-1]) / 3.0 + 1e-12


def test_reached_goes_by_direction():
    assert reached((8.0, 7.0, 6.0), 7.0, "min") == 1 and reached((8.0, 7.0), 6.9, "min") is None
    assert reached((0.2, None, 0.5), 0.4, "max") == 2 and reached((0.2,), 0.2, "max") == 0


def test_hidden_instances_have_their_own_start_and_best():
    s = search(0.2, 0.7, best_raw=0.7, final_raw=0.35, start_final_raw=0.11)
    assert ends(s, HIDDEN, final=True).gap == pytest.approx((0.35 - 0.11) / (0.6 - 0.11))
    assert ends(s, HIDDEN, final=False).gap == pytest.approx(1.0)
    told = dataclasses.replace(s, start_final_raw=None)  # the card's value stands in
    assert ends(told, HIDDEN, final=True).gap == pytest.approx((0.35 - 0.1) / 0.5)
    fixed = dataclasses.replace(s, final_raw=0.7, start_final_raw=0.2)
    assert ends(fixed, MAX, final=True).gap == pytest.approx(1.0)  # one construction has no hidden form


def test_a_best_program_that_fails_on_hidden_instances_is_worth_the_start():
    s = search(0.2, 0.7, best_raw=0.7, start_final_raw=0.11)
    assert failed_hidden(s) and ends(s, HIDDEN, final=True).gap == 0.0


def test_final_values_count_only_where_all_searches_have_them():
    old, new = search(0.2, 0.7, best_raw=0.7), search(0.2, 0.7, final_raw=0.6, start_final_raw=0.1)
    failed = dataclasses.replace(old, status="failed")
    assert measured_finally([new, failed]) is True and measured_finally([old]) is False
    assert measured_finally([old, new]) is None and not measured_finally([])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_what_is_no_number_is_missing(bad):
    assert ends(search(8.0, best_raw=bad), MIN, final=False).value is None
    assert area(search(8.0, bad), MIN) is None
