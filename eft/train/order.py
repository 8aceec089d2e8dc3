"""In which order rows are trained: decided before the launch looks at ranks, so it is the same on any number of them.

A step's rows are one contiguous block of global_batch rows; inside it, a micro batch on a rank is contiguous too.
"""

from __future__ import annotations

import math
import random
from collections import Counter


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


def partner(place: int, block: int) -> int:
    """The place whose completion goes with the prompt at `place` in KTO's KL term: the one before it, within its block
    of `block` rows; the first one gets that of the last."""
    return place - 1 if place % block else place + block - 1


def clashes(rows: list[int], tasks: list[str], block: int) -> list[int]:
    """The places of `rows` (indices into `tasks`) whose KL partner is of the same task, and therefore not unrelated."""
    return [k for k, i in enumerate(rows) if tasks[i] == tasks[rows[partner(k, block)]]]


def micro_batches(
    rows: list[int], lengths: list[int], tasks: list[str], *, step: int, block: int, group: bool
) -> list[int]:
    """KTO's rows, put into micro batches of `block` rows within each step of `step` rows: no row changes its step.

    Within a micro batch, completions are of different tasks wherever the step's rows allow it (see `partner`). With
    `group` a step's rows go by length, longest first: micro batches that run at the same time on different ranks are
    alike too, and what does not fit into memory shows in the first one. `step` is a multiple of `block`.
    """
    found: list[int] = []
    for start in range(0, len(rows), step):
        left = rows[start : start + step]
        if group:
            left.sort(key=lambda i: -lengths[i])  # stable: rows of one length stay in the order of the labels
        dealt: list[int] = []
        while left:
            micro = [left.pop(0)]
            while len(micro) < block and left:
                used = {tasks[i] for i in micro}
                place = next((k for k, i in enumerate(left) if tasks[i] not in used), None)
                if place is None:
                    ends = {tasks[micro[-1]], tasks[micro[0]] if len(micro) == block - 1 else tasks[micro[-1]]}
                    place = next((k for k, i in enumerate(left) if tasks[i] not in ends), 0)
                micro.append(left.pop(place))
            dealt += micro
        found += _untangled(dealt, tasks, block)
    return found


def _untangled(rows: list[int], tasks: list[str], block: int) -> list[int]:
    """`rows` with the last clashes swapped away, each with the nearest row that it helps."""
    counts = Counter(tasks[i] for i in rows)
    unavoidable = max(0, 2 * max(counts.values()) - len(rows))  # where one task has more than half of the rows

    def bad(place: int) -> int:
        """Clashes in the block of `place`; a row that is its own partner (a short table, repeated) counts double."""
        first = place // block * block
        pairs = [(rows[k], rows[partner(k, block)]) for k in range(first, first + block)]
        return sum((tasks[i] == tasks[j]) + (i == j) for i, j in pairs)

    left, swapped = sum(bad(k) for k in range(0, len(rows), block)), True
    while swapped and left > unavoidable:  # a swap that helps may leave a clash at a place that was looked at before
        swapped = False
        for k in range(len(rows)):
            if left <= unavoidable or not bad(k):
                continue
            for j in sorted(range(len(rows)), key=lambda j: abs(j - k)):
                if rows[j] == rows[k] or j // block == k // block and block == 2:
                    continue
                same = j // block == k // block
                before = bad(k) + (0 if same else bad(j))
                rows[k], rows[j] = rows[j], rows[k]
                after = bad(k) + (0 if same else bad(j))
                if after < before:
                    left, swapped = left + after - before, True
                    break
                rows[k], rows[j] = rows[j], rows[k]
    return rows
