"""Rounds of inheritance for any host: experience, branches, screening, recovery, confirmation, one root.

Everything that decides is on disk before it counts: a round's claims, scores and decisions in the pool's ledger, the
states in the host's own folders. A loop that is killed anywhere and started again goes on after the last of them, and
never spends an item or commits an update twice, because the root is not stored: it follows from the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from eft.gate.confirm import confirm, screen
from eft.gate.decide import Rule, Verdict
from eft.gate.evidence import Item, Pool
from eft.gate.host import State


class LoopHost(Protocol):
    """A host that is told of the round and its root. All of it must be repeatable: asked again after a kill, the same
    answers, without doing again what is done."""

    def begin(self, number: int, root: State) -> None:
        """Gather and archive the experience of a round; the root drives its searches."""
        ...

    def propose(self) -> Sequence[State]:
        """The round's branches, frozen; none where there is nothing to learn from."""
        ...

    def evaluate(self, state: State, items: Sequence[Item]) -> Sequence[float]: ...

    def recover(self, number: int, root: State, winner: State) -> State:
        """What is confirmed in place of the screened winner: repaired where it fails, preserved where it does not.
        A host without recovery returns the winner."""
        ...

    def end(self, number: int, root: State, branches: Sequence[State], result: dict[str, Any] | None) -> None:
        """The round is decided: archive what the branches have to tell, let go of what is not needed."""
        ...


def inherit(
    pool: Pool,
    name: str,
    root: State,
    host: LoopHost,
    rule: Rule,
    *,
    rounds: int,
    screening: int,
    budget: int,
    fresh: bool = True,
    told: Callable[[int, dict[str, Any] | None], None] = lambda number, result: None,
) -> State:
    """Run (or continue) a loop called `name` and return its last root. Raises what the host raises: EftError, nothing
    half decided.

    `fresh` False: decide on the screening evidence at alpha over K. `told(round, result)` after every decision.
    """
    for number in range(rounds):
        host.begin(number, root)
        branches = list(host.propose())
        result = None
        inherited = root
        if branches:
            chosen = branches[0]
            if len(branches) > 1 or not fresh:
                result = screen(
                    pool,
                    f"{name}.r{number}.screen",
                    root,
                    branches,
                    host.evaluate,
                    items=screening,
                    rule=None if fresh else rule,
                )
                chosen = branches[result["winner"]]
            if fresh:
                chosen = host.recover(number, root, chosen)
                result = confirm(pool, f"{name}.r{number}.confirm", root, chosen, rule, host.evaluate, budget=budget)
            inherited = chosen if result["verdict"] == Verdict.COMMIT else root
        host.end(number, inherited, branches, result)
        told(number, result)
        root = inherited
    return root
