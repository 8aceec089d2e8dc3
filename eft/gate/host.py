"""What the gate asks of a self-evolving system: candidates, and their scores. Everything else is the gate's.

A host need not be ours. It names states (a model, a prompt, a tool set, a program) and scores them on items; the gate
chooses the items, keeps the evidence and decides. See docs/gate.md for one of forty lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eft.gate.evidence import Item


@dataclass(frozen=True)
class State:
    """A frozen state. `fingerprint`: changes whenever anything in it does (a hash of the weights); `payload`: the
    host's own handle on it, which the gate never looks at."""

    name: str
    fingerprint: str
    payload: Any = None

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "fingerprint": self.fingerprint}


Evaluate = Callable[[State, Sequence[Item]], Sequence[float]]


class Host(Protocol):
    """A self-evolving system."""

    def propose(self) -> Sequence[State]:
        """The candidates of one round."""
        ...

    def evaluate(self, state: State, items: Sequence[Item]) -> Sequence[float]:
        """q in [0, 1] of `state` on each item, in order. Raise EftError where it cannot be measured (a server is gone):
        then nothing is decided, and the same call later continues."""
        ...
