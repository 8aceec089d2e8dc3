"""A served mutator in the place of one without a model: for whoever chooses between the two."""

from __future__ import annotations

import hashlib
from typing import Any

from eft.mutators.client import Client
from eft.mutators.reply import Reply


class Served:
    """Asks an OpenAI-compatible endpoint. Implements eft.mutators.reply.Mutator as far as the endpoint is a function of
    its requests (a gateway is: it answers what it has answered before from its journal).

    sampling: temperature, top_p, max_tokens …; every call has a seed of its own.
    """

    def __init__(self, base_url: str, model: str, seed: int, timeout: float, sampling: dict[str, Any]) -> None:
        self.base_url, self.model, self.seed, self.timeout, self.sampling = base_url, model, seed, timeout, sampling

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """The endpoint's reply. Raises EftError where there is none."""
        draw = int.from_bytes(hashlib.sha256(f"{self.seed}:{call}".encode()).digest()[:4]) >> 1
        with Client(self.base_url, self.model, timeout=self.timeout, retries=0) as line:
            answer = line.chat(messages, seed=draw, **self.sampling)
        return Reply(answer["content"], reasoning=answer["reasoning"], usage=answer["usage"])
