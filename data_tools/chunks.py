"""Count tokens of texts that repeat each other, exactly: in chunks, each counted once.

Prompts of one search show the same programs again and again, so most of their text was counted before. A text may be
cut where no token can reach over the cut. For a byte-level BPE (GPT-2's split of words, Llama 3's or Qwen's) that is so

- after a single line end that follows a visible character, before a visible one, and
- between a letter or digit and a line end,

since no rule of these splits joins across. Other tokenizers are counted whole. The two ways are held against each other
on the first rows and then on every hundredth; a difference ends the count (`exact` is False). EFT_COUNT_WHOLE=1 counts
every text whole.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

KEPT = 400_000  # chunks of about 50 characters
CHECKED_FIRST, CHECKED_EVERY = 20, 100
_CUT = re.compile(r"(?<=\S\n)(?=\S)|(?<=[^\W_])(?=\n)")


def can_cut(tokenizer: Any) -> bool:
    """Is the tokenizer of the kind that the cuts are safe for?"""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    normalizer = (state.get("normalizer") or {}).get("type", "")
    pre = state.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers", [pre])
    strips = any(t.get("lstrip") or t.get("rstrip") for t in state.get("added_tokens", ()))
    return (
        (state.get("model") or {}).get("type") == "BPE" and normalizer in ("", "NFC") and not strips
        and bool(steps) and steps[-1].get("type") == "ByteLevel"
        and all(s.get("type") in ("ByteLevel", "Digits", "Split") for s in steps)
        and not any(s.get("add_prefix_space") for s in steps)
    )  # fmt: skip


class ChunkCounter:
    """Counts with one fast tokenizer. `exact` turns False where a check failed (see above)."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._cut = can_cut(tokenizer) and not os.environ.get("EFT_COUNT_WHOLE")
        self._known: dict[str, int] = {}
        self._seen = 0
        self.exact = True

    def count(self, texts: list[str]) -> list[int]:
        """How many tokens each text has, special ones in the text included, none added."""
        if not self._cut:
            return self._whole(texts)
        parts = [_CUT.split(text) for text in texts]
        new = list({p: None for found in parts for p in found if p not in self._known})
        if len(self._known) + len(new) > KEPT:
            self._known.clear()
            new = list({p: None for found in parts for p in found})
        self._known.update(zip(new, self._whole(new), strict=True))
        counts = [sum(map(self._known.__getitem__, found)) for found in parts]
        check = [i for i in range(len(texts))
                 if self._seen + i < CHECKED_FIRST or (self._seen + i) % CHECKED_EVERY == 0]  # fmt: skip
        self._seen += len(texts)
        if self._whole([texts[i] for i in check]) != [counts[i] for i in check]:
            self._cut = self.exact = False
            return self._whole(texts)
        return counts

    def _whole(self, texts: list[str]) -> list[int]:
        return [len(e) for e in self._backend.encode_batch_fast(texts, add_special_tokens=False)] if texts else []
