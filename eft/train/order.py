"""In which order rows are trained: decided before the launch looks at ranks, so it is the same on any number of them.

A step's rows are one contiguous block of global_batch rows; inside it, a micro batch on a rank is contiguous too.
"""

from __future__ import annotations

import math
import random


def sample(rows: int, limit: int | None, seed: int) -> list[int]:
    """Indices of at most `limit` of `rows` rows, chosen at random, in the table's order."""
    if limit is None or rows <= limit:
        return list(range(rows))
    return sorted(random.Random(seed).sample(range(rows), limit))


def order(
    chosen: list[int], lengths: list[int], steps: int, batch: int, seed: int, *, shuffle: bool, group: bool
) -> list[int]:
    """The rows in training order: steps × batch indices. `shuffle`: a new permutation every epoch, else the given
    order.

    `group`: blocks of rows of like length (in tokens), which leaves less padding. Rows are sorted within stretches of
    50 blocks only, and the blocks of a stretch are shuffled again, so what is trained when stays random.
    """
    indices: list[int] = []
    epoch = 0
    while len(indices) < steps * batch:
        rows = list(chosen)
        if shuffle:
            random.Random(f"{seed}/{epoch}").shuffle(rows)
        indices += rows
        epoch += 1
    indices = indices[: steps * batch]
    if not group:
        return indices
    grouped: list[int] = []
    for start in range(0, len(indices), 50 * batch):
        stretch = sorted(indices[start : start + 50 * batch], key=lambda i: (lengths[i], i))
        blocks = [stretch[i : i + batch] for i in range(0, len(stretch), batch)]
        random.Random(f"{seed}/{start}").shuffle(blocks)
        grouped += [i for block in blocks for i in block]
    return grouped


def spread(chosen: list[int], labels: list[bool]) -> list[int]:
    """`chosen` as it is where its labels are mixed (`eft build` interleaves them); else the rarer label spread evenly.

    KTO trains in this order. A stretch of one label would starve the loss of the other for many steps.
    """
    groups = {value: [i for i in chosen if labels[i] is value] for value in (True, False)}
    rarer = min(len(g) for g in groups.values())
    if not rarer or longest_run([labels[i] for i in chosen]) <= 2 * math.ceil(len(chosen) / rarer):
        return chosen
    placed = [((k + 0.5) / len(group), group[k]) for group in groups.values() for k in range(len(group))]
    return [i for _, i in sorted(placed)]


def longest_run(labels: list[bool]) -> int:
    """Length of the longest stretch of one label."""
    longest = run = 0
    for i, label in enumerate(labels):
        run = run + 1 if i and label == labels[i - 1] else 1
        longest = max(longest, run)
    return longest
