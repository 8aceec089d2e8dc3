"""What a wrong step of inheritance costs, split by the step; and why observation before the update cannot suffice.

Values are true advantages over the root, V(S) = E[q(S, z) − q(root, z)]; the root itself has V = 0. One round picks a
branch, makes a state of it (recovery, merging, rounding: what is frozen is not what was screened), and inherits it or
keeps the root. With x⁺ = max(x, 0), the value of what one may still keep,

    regret = best⁺ − V(inherited) = (best⁺ − screened⁺) + (screened⁺ − frozen⁺) + (frozen⁺ − V(inherited))
                                         selection            absorption              confirmation

Selection and confirmation error are never negative; absorption is where the frozen state is better than the branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eft.errors import UsageError


@dataclass(frozen=True)
class Regret:
    """The three parts, in units of q. `total`: value that the round gave away."""

    selection: float
    absorption: float
    confirmation: float

    @property
    def total(self) -> float:
        return self.selection + self.absorption + self.confirmation


def split(branches: Sequence[float], screened: int, frozen: float, committed: bool) -> Regret:
    """The regret of one round. `branches`: true values of all branches; `screened`: index of the one that screening
    chose; `frozen`: true value of the state that confirmation saw; `committed`: whether it was inherited."""
    if not 0 <= screened < len(branches):
        raise UsageError(f"there is no branch {screened} among {len(branches)}")
    best, chosen, last = max(0.0, *branches), max(0.0, branches[screened]), max(0.0, frozen)
    return Regret(best - chosen, chosen - last, last - (frozen if committed else 0.0))


def two_point(rule: Callable[[object], float], observation: object, size: float) -> tuple[float, float, float]:
    """(regret if the update helps, if it harms, the larger) of a rule that decides before the update is measured.

    Two worlds look the same before the update: in one it is worth +size, in the other −size. A rule that sees only the
    `observation` inherits with one probability p = rule(observation) in both, so its regrets are (1 − p)·size and
    p·size, and the larger is at least size/2, whatever the rule. Only evidence about the updated state gets below.
    """
    p = float(rule(observation))
    if not 0 <= p <= 1 or size < 0:
        raise UsageError("a rule answers with a probability, and a size is not negative", why=f"p = {p}, size = {size}")
    helps, harms = (1 - p) * size, p * size
    return helps, harms, max(helps, harms)


def gated(size: float, items: int, alpha: float) -> float:
    """The worst of the two worlds for a gate with `items` fresh items: at most size · P(error), by Hoeffding with the
    threshold at 0, exp(−items·size²/2), or `alpha` where that is larger."""
    return size * max(min(1.0, math.exp(-items * size * size / 2)), alpha)
