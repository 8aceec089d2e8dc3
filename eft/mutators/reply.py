"""What a mutator without a server answers: one reply, and the edits that it tried on the way.

An in-process mutator is served by the gateway behind the same HTTP endpoint as a model. The gateway calls `propose`
from a worker thread, never twice at once on one instance, and makes one instance per search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Reply:
    """One answer. `proposals`: edits that were evaluated on the way, the chosen one included, as objects with
    parent_code, child_code, response, parent_metrics, child_metrics, child_artifacts and chosen. `usage`: prompt_tokens
    and completion_tokens, where it was asked of a model on the way. `about`: what is to be remembered of this call, kept
    in its record."""

    content: str
    proposals: tuple[dict[str, Any], ...] = ()
    reasoning: str | None = None
    usage: dict[str, int] | None = None
    about: dict[str, Any] | None = None


class Mutator(Protocol):
    """prompt -> response without a model."""

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """Answer `messages`. Must be a pure function of them, of the constructor's arguments and of `call`.

        `call` counts this mutator's calls within one search from 0. A search that was killed and started again
        replays its journal and goes on with the next number, so randomness must be seeded by (seed, call) and never
        be carried in the instance. Whatever is raised becomes an HTTP 500 for the scaffold and an `error` record.
        """
        ...
