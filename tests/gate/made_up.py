"""A host whose states are numbers: q of a state on an item is 1 with the state's probability, always the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from eft.gate.evidence import Item, Pool
from eft.gate.host import State

TASK = "games/coins"


def items(count: int, first: int = 0) -> list[Item]:
    return [Item("coin", TASK, f"{TASK}:{i}", {"number": i}) for i in range(first, first + count)]


def pool(folder: Path, count: int = 1200, **options) -> Pool:
    return Pool.create(folder, items(count), tasks=[TASK], kind="coin", **options)


def state(p: float, name: str = "") -> State:
    return State(name or f"p{p}", f"fp-{name}-{p}", p)


class Coins:
    """`candidates`: what it proposes. Counts what it was asked."""

    def __init__(self, *candidates: State) -> None:
        self.candidates, self.asked = candidates, 0

    def propose(self) -> Sequence[State]:
        return self.candidates

    def evaluate(self, state: State, items: Sequence[Item]) -> list[float]:
        self.asked += len(items)
        return [float(random.Random(item.id).random() < state.payload) for item in items]
