"""Split by task, and choose rows: which tasks validate, which rows of a task stay. Deterministic for a seed.

Rows of one task look alike (the same program, its ancestors and their edits), so a split by rows would let the
validation set see the training set. Nothing here depends on the order of rows, on Python's hash seed or on a clock.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data_tools.choose import Row


def rank(seed: int, *names: str) -> bytes:
    """A place in a random order that is the same everywhere and always."""
    return hashlib.sha256("\0".join([str(seed), *names]).encode("utf-8", "replace")).digest()


def families(rows: Iterable[Row]) -> dict[str, str]:
    """task -> the first name of its family: tasks that share a parent program are one task under several names (two
    runs of it, harvested from folders of different names), and must not be parted by a split."""
    family: dict[str, str] = {}
    owner: dict[str, str] = {}

    def first(task: str) -> str:
        while family[task] != task:
            task = family[task]
        return task

    for row in rows:
        family.setdefault(row.task, row.task)
        if row.has_code:
            a, b = first(row.task), first(owner.setdefault(row.parent, row.task))
            family[max(a, b)] = min(a, b)
    return {task: first(task) for task in family}


def validation_tasks(
    improved: Counter[str], others: Iterable[str], share: float, seed: int, domain: dict[str, str] | None = None
) -> set[str]:
    """The tasks that validate: `share` of all tasks, of every domain (`domain`: by task) as near as whole tasks allow,
    never the last one to train on; one (the smallest) where the share of a few tasks is less than one.

    `improved`: improved rows by task; `others`: tasks without any. Only tasks with improved rows are chosen, so that
    neither side of the split is empty.
    """
    tasks = sorted(improved)
    if share <= 0 or len(tasks) < 2:
        return set()
    wanted = round(share * len(set(tasks) | set(others)))
    if wanted < 1:  # few tasks: the one that costs the training set least
        return {min(tasks, key=lambda t: (improved[t], rank(seed, "task", t)))}
    by_domain: dict[str, list[str]] = defaultdict(list)
    for task in sorted(tasks, key=lambda t: rank(seed, "task", t)):
        by_domain[(domain or {}).get(task, "")].append(task)
    # a domain's tasks lie evenly over the order, so every beginning of it has the domains in their proportions
    placed = [((i + 0.5) / len(members), rank(seed, "task", task), task)
              for members in by_domain.values() for i, task in enumerate(members)]  # fmt: skip
    return {task for _, _, task in sorted(placed)[: min(wanted, len(tasks) - 1)]}


def validation_parents(rows: list[Row], share: float, seed: int) -> set[str]:
    """For a single task: the parents (by code) whose children validate, about `share` of the rows; never all of them.

    A weaker split: parents and children of the two sides are related. Better than none for watching a training, no
    evidence that anything was learned.
    """
    by_parent: dict[str, int] = Counter(r.parent for r in rows)
    if share <= 0 or len(by_parent) < 2:
        return set()
    chosen: set[str] = set()
    size, wanted = 0, share * len(rows)
    for parent in sorted(by_parent, key=lambda p: rank(seed, "parent", p)):
        if size >= wanted or len(chosen) == len(by_parent) - 1:
            break
        if by_parent[parent] * 2 > len(rows) or (size and size + by_parent[parent] > 2 * wanted):
            continue  # a parent with half of all children (the seed, often) would swallow the training set
        chosen.add(parent)
        size += by_parent[parent]
    return chosen or {min(by_parent, key=lambda p: (by_parent[p], rank(seed, "parent", p)))}


def capped(rows: list[Row], cap: int | None, order: str, seed: int) -> list[Row]:
    """At most `cap` rows of each task: a random sample (`order` "random"), or those that changed the score most,
    relative to the parent's ("gain"). In input order."""
    if cap is None:
        return rows
    by_task: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_task[row.task].append(row)
    kept: set[str] = set()
    for members in by_task.values():
        if order == "gain":
            members.sort(key=lambda r: (-abs(relative_delta(r)), rank(seed, "row", r.id)))
        else:
            members.sort(key=lambda r: rank(seed, "row", r.id))
        kept |= {r.id for r in members[:cap]}
    return [r for r in rows if r.id in kept]


def relative_delta(row: Row) -> float:
    """Change of the score over the size of the parent's; over 1 where the parent's is 0. 0 where there is no delta, or
    one that is no number; never infinite, so that weights can be made of it."""
    share = (row.delta or 0.0) / (abs(row.parent_score or 0.0) or 1.0)
    return 0.0 if math.isnan(share) else max(-1e300, min(1e300, share))
