"""The order of KTO rows, and the weights of the two classes.

TRL's KTO estimates the KL term by pairing each prompt of a micro-batch with its neighbour's completion, in dataset
order (sequential sampling). So the order is part of the data: labels evenly mixed, neighbours from different tasks
where possible (a completion of the same task is not unrelated), and no last block of one, which would pair with
itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from data_tools.split import rank
from eft.records import Label

if TYPE_CHECKING:
    from data_tools.choose import Row

T = TypeVar("T")
LOWEST, HIGHEST = 1.0, 4 / 3  # of (desirable weight x count) / (undesirable weight x count), KTO paper, section 4.2


def weights(desirable: int, undesirable: int) -> tuple[float, float]:
    """(desirable weight, undesirable weight) whose ratio of weight x count is in [1, 4/3]; the smaller one is 1.

    Counts that are in the interval anyway keep 1, 1. Others are brought to its middle, 7/6, so that a few rows that a
    trainer drops later do not lead out of it. Raises ValueError for a class without rows.
    """
    if desirable <= 0 or undesirable <= 0:
        raise ValueError("both classes need rows")
    ratio, middle = desirable / undesirable, (LOWEST + HIGHEST) / 2
    if LOWEST <= ratio <= HIGHEST:
        return 1.0, 1.0
    return (round(middle / ratio, 6), 1.0) if ratio < LOWEST else (1.0, round(ratio / middle, 6))


def interleave(good: list[Row], bad: list[Row], seed: int, block: int) -> list[Row]:
    """Both classes in one order (see above), its length a multiple of `block`: up to block - 1 rows of the larger class
    (of the undesirable one, where they are equal) are left out."""
    extra = (len(good) + len(bad)) % block
    larger, smaller = (good, bad) if len(good) > len(bad) else (bad, good)
    cut = min(extra, len(larger))
    larger = sorted(larger, key=lambda r: rank(seed, "kto", r.id))[: len(larger) - cut]
    smaller = sorted(smaller, key=lambda r: rank(seed, "kto", r.id))[: len(smaller) - (extra - cut)]
    mixed = _merge(_spread(larger, seed), _spread(smaller, seed))
    return part(mixed, lambda r: r.task, desirable)


def desirable(row: Row) -> bool:
    """Which class a row of a KTO set is of."""
    return row.label == Label.IMPROVED


def _spread(rows: list[Row], seed: int) -> list[Row]:
    """Each task's rows evenly over the whole length."""
    by_task: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: rank(seed, "kto", r.id)):
        by_task[row.task].append(row)
    placed = []
    for task, members in by_task.items():
        offset = int.from_bytes(rank(seed, "offset", task)[:4], "big") / 2**32
        placed += [((i + offset) / len(members), rank(seed, "kto", r.id), r) for i, r in enumerate(members)]
    return [row for _, _, row in sorted(placed, key=lambda p: p[:2])]


def _merge(first: list[T], second: list[T]) -> list[T]:
    """Two lists in one, each evenly over the whole length."""
    placed = [((i + 0.5) / len(rows), k, row) for k, rows in enumerate((first, second)) for i, row in enumerate(rows)]
    return [row for _, _, row in sorted(placed, key=lambda p: p[:2])]


def part(rows: Sequence[T], group: Callable[[T], str], pattern: Callable[[T], str], reach: int = 64) -> list[T]:
    """Swap rows of one `pattern` (label) so that neighbours are of different groups (tasks), where a swap within
    `reach` places can do it. The sequence of patterns stays as it is."""
    rows = list(rows)
    if len(set(map(group, rows))) < 2:
        return rows

    def clashes(i: int) -> int:
        return sum(0 <= j < len(rows) and group(rows[i]) == group(rows[j]) for j in (i - 1, i + 1))

    for i in range(1, len(rows)):
        if group(rows[i]) != group(rows[i - 1]):
            continue
        places = [j for j in range(max(0, i - reach), min(len(rows), i + reach))
                  if pattern(rows[j]) == pattern(rows[i]) and group(rows[j]) != group(rows[i])]  # fmt: skip
        for j in sorted(places, key=lambda j: abs(j - i)):
            before = clashes(i) + clashes(j)
            rows[i], rows[j] = rows[j], rows[i]
            if clashes(i) + clashes(j) < before:
                break
            rows[i], rows[j] = rows[j], rows[i]
    return rows


def neighbours_of_one_task(rows: Sequence[Row]) -> int:
    """How many neighbouring pairs are of the same task: what is left to say about an order."""
    return sum(a.task == b.task for a, b in zip(rows, rows[1:], strict=False))


def label_runs(rows: Sequence[Row]) -> int:
    """The longest run of one class."""
    longest = run = 0
    last = None
    for row in rows:
        run = run + 1 if desirable(row) is last else 1
        longest, last = max(longest, run), desirable(row)
    return longest
