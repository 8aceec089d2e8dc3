"""The split of regret adds up, and no rule that looks before the update gets below half of what is at stake."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eft.errors import UsageError
from eft.gate import regret

values = st.floats(-1, 1)


@given(st.lists(values, min_size=1, max_size=6), st.data(), values, st.booleans())
def test_the_parts_add_up(branches, data, frozen, committed) -> None:
    screened = data.draw(st.integers(0, len(branches) - 1))
    parts = regret.split(branches, screened, frozen, committed)
    assert parts.selection >= 0 and parts.confirmation >= 0
    assert parts.total == pytest.approx(max(0.0, *branches) - (frozen if committed else 0.0))


@given(st.floats(0, 1), st.integers(), st.floats(0, 1))
def test_two_worlds_that_look_alike(size, observation, bias) -> None:
    def rule(seen: object) -> float:
        return min(1.0, random.Random(seen).random() * bias * 2)

    helps, harms, worst = regret.two_point(rule, observation, size)
    assert worst >= size / 2 - 1e-12
    assert helps + harms == pytest.approx(size)


def test_evidence_after_the_update_gets_below() -> None:
    assert regret.gated(0.1, 1000, 0.0) < 0.1 / 2 / 5
    with pytest.raises(UsageError):
        regret.two_point(lambda _: 2.0, None, 0.1)
    with pytest.raises(UsageError):
        regret.split([], 0, 0.0, True)
