"""How self-evolving systems accept an update without fresh evidence, as a rule to compare gates with.

R-Zero and its like train on questions whose pass rate lies between 0.3 and 0.8, on which replies disagree, and inherit
what they trained. Put as a rule about an update: the root's mean pass rate on the states that it trains on lies in that
band, its replies disagree on at least half of them, and training made its targets more likely. All three are read off
the training itself; none looks at the updated model on anything fresh. A state "passes" a pair of recorded replies
where the model finds the better one more likely, so pass rates need no server.

The pass rate that picked a state is a noisy one: measured again on other replies to the same state, many fall out of
the band. `off_frontier` is that share.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eft.errors import EftError
from eft.gate.evidence import digest

BAND = (0.3, 0.8)


@dataclass(frozen=True)
class Signals:
    """What an update's own training says. Shares in [0, 1]; negative log-likelihoods in nats per token."""

    pass_rate: float
    disagreement: float
    nll_before: float
    nll_after: float
    off_frontier: float | None  # None: no state was on the frontier
    states: int

    @property
    def accepted(self) -> bool:
        return BAND[0] <= self.pass_rate <= BAND[1] and self.disagreement >= 0.5 and self.nll_after < self.nll_before


def passing(likelihood: dict[str, float], replies: Sequence[tuple[str, float]]) -> float | None:
    """Share of pairs of replies (text, score) that are ranked as their scores are; None without such a pair."""
    right = [likelihood[a[0]] > likelihood[b[0]] for a, b in itertools.permutations(replies, 2) if a[1] > b[1]]
    return sum(right) / len(right) if right else None


def signals(
    likelihoods: Sequence[dict[str, float]],
    states: Sequence[Sequence[tuple[str, float]]],
    before: Sequence[float],
    after: Sequence[float],
) -> Signals:
    """The signals of an update. `likelihoods`: per state, reply -> the root's log-likelihood; `states`: per state, its
    replies (text, score); `before`, `after`: log-likelihoods of the training targets under root and update.

    Raises EftError where no state has replies enough.
    """
    first, second = [], []
    for known, replies in zip(likelihoods, states, strict=True):
        mixed = sorted(replies)
        random.Random(digest([r for r, _ in mixed])).shuffle(mixed)
        half = len(mixed) // 2
        one, other = passing(known, mixed[:half]), passing(known, mixed[half:])
        if one is not None and other is not None:
            first.append(one)
            second.append(other)
    if not first:
        raise EftError(
            "no state of the training data has four replies of different score",
            way_out="record searches by a mutator with lookahead",
        )
    inside = [BAND[0] <= p <= BAND[1] for p in first]
    out = [not BAND[0] <= p <= BAND[1] for p, on in zip(second, inside, strict=True) if on]
    return Signals(
        pass_rate=sum(first) / len(first),
        disagreement=sum(0 < p < 1 for p in first) / len(first),
        nll_before=-sum(before) / len(before),
        nll_after=-sum(after) / len(after),
        off_frontier=sum(out) / len(out) if out else None,
        states=len(first),
    )


def measure(
    root: tuple[Any, Any], update: tuple[Any, Any], states: Sequence[dict[str, Any]], targets: Sequence[dict[str, Any]]
) -> Signals:
    """Signals by (model, tokenizer) of root and update. `states`: {messages, replies: [[text, score]…]};
    `targets`: {messages, answer}."""
    from eft.models.logprob import completions

    likelihoods, replies = [], []
    for s in states:
        texts = [text for text, _ in s["replies"]]
        likelihoods.append(dict(zip(texts, completions(*root, s["messages"], texts), strict=True)))
        replies.append([(text, score) for text, score in s["replies"]])
    before, after = ([completions(*m, t["messages"], [t["answer"]])[0] for t in targets] for m in (root, update))
    return signals(likelihoods, replies, before, after)
