"""Near duplicates among MinHash signatures: banded hashing finds candidates, equal shares of the signatures decide.

Own and short, because it must answer in the table's order (a row goes if it is like an *earlier* row that stays),
within groups, from signatures that lie on disk; libraries' indexes keep their own objects in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

COMPARED = 64  # rows of one bucket that a row is held against, the latest first


def bands(threshold: float, permutations: int) -> int:
    """Rows of a band: as many as still find a pair at the threshold with probability 0.98 or more."""
    for rows in (16, 8, 4, 2, 1):
        if permutations % rows == 0 and 1 - (1 - threshold**rows) ** (permutations // rows) >= 0.98:
            return rows
    return 1


def duplicates(signatures: Any, groups: Sequence[Any], alive: Sequence[bool], threshold: float) -> list[int]:
    """For every row the earlier row that makes it a near duplicate, -1 where there is none.

    `signatures`: uint32 array, rows × permutations. Only rows of one group are compared, and only those that are
    `alive`; a near duplicate does not make further ones.
    """
    import numpy as np

    count, permutations = signatures.shape
    width = bands(threshold, permutations)
    found = [-1] * count
    buckets: dict[tuple, list[int]] = defaultdict(list)
    blocks = np.ascontiguousarray(signatures).view(np.uint8).reshape(count, permutations // width, width * 4)
    for i in range(count):
        if not alive[i]:
            continue
        keys = [(groups[i], b, blocks[i, b].tobytes()) for b in range(permutations // width)]
        candidates = sorted({j for key in keys for j in buckets[key][-COMPARED:]})
        if candidates:
            like = (signatures[candidates] == signatures[i]).mean(axis=1)
            best = int(like.argmax())
            if like[best] >= threshold:
                found[i] = candidates[best]
                continue
        for key in keys:
            buckets[key].append(i)
    return found
