"""What a policy that chooses the mutator of the next step is compared with, in the same games.

single: MUTATOR     that one, always; `best single` is the one that gets furthest in the search games
random              one by lot, every step
round robin         one after the other
ucb                 the bandit UCB1 (Auer, Cesa-Bianchi and Fischer, Machine Learning 47, 2002): after one step of
                    each, the mutator with the largest mean reward + sqrt(2 ln n / n_i); reward 1 where the best
                    score rose, else 0. It starts anew in every game
oracle              the greedy clairvoyant: the upper end
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eft.loops import Control
from eft.loops.routing_steps import Board

Chooser = Callable[[dict[str, Any]], str]


def ucb(state: dict[str, Any]) -> str:
    """UCB1's choice from the state of a policy."""
    past = state["past"]
    untried = [m for m in state["mutators"] if not past[m]["tried"]]
    if untried:
        return untried[0]
    bonus = 2 * math.log(state["step"])
    return max(
        state["mutators"], key=lambda m: past[m]["raised"] / past[m]["tried"] + math.sqrt(bonus / past[m]["tried"])
    )


def round_robin(state: dict[str, Any]) -> str:
    """The mutators in turn."""
    return state["mutators"][state["step"] % len(state["mutators"])]


def by_lot(seed: int) -> Chooser:
    """A random mutator every step."""
    rng = random.Random(seed)
    return lambda state: rng.choice(state["mutators"])


def all_of(search: Board, hidden: Board, seeds: Sequence[int], start: float | None) -> list[Control]:
    """Every control, once for each seed (only `random` differs between them)."""
    found: list[Control] = []

    def add(name: str, choose: Chooser, seeds: Sequence[int], **told: Any) -> None:
        seen, final = search.value(choose), hidden.value(choose)
        curve = (start, seen if start is None else max(seen, start))
        found.extend(Control(name, s, final, curve, 1, **told) for s in seeds)

    singles = [search.value(lambda state, a=a: a) for a in search.arms]
    best = search.arms[int(np.argmax(singles))]
    for arm in search.arms:
        add(f"single: {arm}", lambda state, a=arm: a, seeds, bound=True, note="a single mutator")
    add("best single", lambda state: best, seeds, note=best)
    for seed in seeds:
        add("random", by_lot(seed), [seed])
    add("round robin", round_robin, seeds)
    add("ucb", ucb, seeds)
    curve = (start, search.bound())
    value = hidden.bound()
    found += [
        Control("oracle", s, value, curve, 1, bound=True, note="knows what every next step brings") for s in seeds
    ]
    return found
