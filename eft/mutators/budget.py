"""What a model behind an endpoint may use up, and what it has: counted from the journals, so it holds over restarts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eft.mutators.wire import Failure


@dataclass(frozen=True)
class Budget:
    """Limits of one mutator over all searches of a journal folder; None: no limit.

    replies: asked for and got. tokens: of prompts and replies. seconds: of asking, all requests added up. dollars: at
    prompt_price and completion_price, dollars for a million tokens. Replies from the journal cost nothing.

    Replies are exact: what is under way counts. Tokens, seconds and dollars are known once a reply is there, so what is
    in flight when a limit is reached comes on top.
    """

    replies: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0

    @property
    def limited(self) -> bool:
        return any(v is not None for v in (self.replies, self.tokens, self.seconds, self.dollars))


class Meter:
    """What has been used up of a budget. For one event loop."""

    def __init__(self, mutator: str, budget: Budget) -> None:
        self.mutator, self.budget = mutator, budget
        self.replies, self.prompt_tokens, self.completion_tokens, self.seconds = 0, 0, 0, 0.0
        self.under_way = 0

    def load(self, record: dict[str, Any]) -> None:
        """Count a journal's record, where it is a reply of this mutator."""
        if record.get("kind") == "reply" and record.get("mutator") == self.mutator and record.get("status") == "ok":
            first = record.get("choice", 0) == 0  # the seconds are those of all choices of a request
            self.add(1, record.get("usage"), float(record.get("seconds") or 0.0) if first else 0.0)

    def add(self, replies: int, usage: dict[str, int] | None, seconds: float) -> None:
        """Count replies of one request. `usage`: prompt_tokens, completion_tokens; None where the server tells none."""
        self.replies += replies
        self.seconds += seconds
        self.prompt_tokens += (usage or {}).get("prompt_tokens") or 0
        self.completion_tokens += (usage or {}).get("completion_tokens") or 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def dollars(self) -> float:
        b = self.budget
        return (self.prompt_tokens * b.prompt_price + self.completion_tokens * b.completion_price) / 1e6

    def reserve(self, replies: int) -> None:
        """Set `replies` aside before they are asked for. Raises Failure (402) where the budget does not hold them."""
        b = self.budget
        if b.replies is not None and self.replies + self.under_way + replies > b.replies:
            self._refuse(f"{self.replies + self.under_way} of {b.replies} replies")
        for limit, used, noun in ((b.tokens, self.tokens, "tokens"), (b.seconds, self.seconds, "seconds of asking"),
                                  (b.dollars, self.dollars, "dollars")):  # fmt: skip
            if limit is not None and used >= limit:
                self._refuse(f"{used:.6g} of {limit:g} {noun}")
        self.under_way += replies

    def release(self, replies: int) -> None:
        """The request is over, however it went; `add` counts what came of it."""
        self.under_way -= replies

    def _refuse(self, used: str) -> None:
        raise Failure(402, f"the budget of mutator '{self.mutator}' is used up ({used}); raise it to go on: what was "
                      "answered is kept", "budget_error")  # fmt: skip

    def stats(self) -> dict[str, Any]:
        """What is used up, for /stats."""
        return {"replies": self.replies, "prompt_tokens": self.prompt_tokens, "seconds": round(self.seconds, 3),
                "completion_tokens": self.completion_tokens, "dollars": round(self.dollars, 6)}  # fmt: skip
