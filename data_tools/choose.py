"""Choose: which clean rows train, which validate, and in what measure. On light rows: texts stay on disk.

A light row knows where its texts lie (its number in the table) and what decides about it. A row of the Finch-Collection
has 9,000 tokens of text; 217,780 light rows fit into a tenth of a gigabyte.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_tools import shards, split
from eft.errors import EftError, UsageError
from eft.records import Label, ScoreKind, code_hash

LIGHT = ("id", "run", "task", "domain", "label", "suite_role", "score_kind", "delta", "parent_score", "scaffold",
         "model", "language", "edit_kind", "prompt_format", "parent_id")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """What a choice needs to know of a transition. `number`: its place in the table. `parent`: who the parent is."""

    number: int
    id: str
    run: str
    task: str
    domain: str
    label: str
    suite_role: str
    score_kind: str
    delta: float | None
    parent_score: float | None
    scaffold: str
    model: str
    language: str
    edit_kind: str
    prompt_format: str
    parent: str
    has_code: bool
    has_prompt: bool
    has_response: bool
    no_op: bool = False  # the child is the parent; known where the policy's own rows are asked for


def read(source: Path, config: shards.Workers) -> list[Row]:
    """All rows of a clean table, light, in its order. Raises EftError for something that is no transitions table."""
    rows = []
    work = functools.partial(_of_unit, children=getattr(config, "negatives", "logged") != "logged")
    for part in shards.mapped(work, shards.units(source), config):
        rows += part
    return rows


def _of_unit(unit: shards.Unit, *, children: bool = False) -> list[Row]:
    import pyarrow.compute as pc

    table = unit.read([*LIGHT, "parent_code", "prompt_user", "response", *(["child_code"] if children else [])])
    codes = table["parent_code"].to_pylist()
    prompt = pc.greater(pc.binary_length(table["prompt_user"]), 0).to_pylist()
    response = pc.greater(pc.binary_length(pc.utf8_trim_whitespace(table["response"])), 0).to_pylist()
    columns = [table[name].to_pylist() for name in LIGHT]
    same = [False] * len(codes)
    if children:
        pairs = zip(codes, table["child_code"].to_pylist(), strict=True)
        same = [code_hash(code) == code_hash(child) for code, child in pairs]
    return [
        Row(unit.first + i, *values[:-1], code_hash(code) if code else values[-1], bool(code.strip()), asked, answered, nop)
        for i, (code, asked, answered, nop, *values) in enumerate(
            zip(codes, prompt, response, same, *columns, strict=True)
        )
    ]


def own_failure(row: Row, policy: str) -> bool:
    """Is this a failure of the model called `policy` itself: a worse program, a broken one, or none?"""
    failed = row.label in (Label.REGRESSED, Label.BREAKAGE) or (row.label == Label.NO_CHANGE and row.no_op)
    return bool(policy) and row.model == policy and failed


def check_policy(rows: Iterable[Row], policy: str, source: Path) -> None:
    """Raises UsageError where no row was answered by the model called `policy`."""
    models = Counter(r.model for r in rows)
    if policy not in models:
        named = ", ".join(f"'{name}' ({n} rows)" for name, n in models.most_common(5) if name)
        raise UsageError(f"no row was answered by the model '{policy}'", where=source,
                         why=f"the models here: {named or 'none is named'}",
                         way_out="set `policy` to the model's name in 'eft collect'")  # fmt: skip


def usable(rows: Iterable[Row], source: Path, *, repair: bool, averaged: bool, left_out: Counter[str],
           tokens: dict[str, tuple[int, int]], max_prompt: int | None, policy: str = "") -> list[Row]:  # fmt: skip
    """The rows that can be trained on, by id; `left_out` counts the others. `policy`: the model whose own failures are
    of use, too. Raises EftError for roles that must never be trained on."""
    kept, wanted = [], {Label.IMPROVED, Label.REGRESSED} | ({Label.REPAIR} if repair else set())
    for row in rows:
        if row.suite_role in ("heldout", "gate"):
            raise EftError(f"a row of a {row.suite_role} task: it must never be trained on",
                           where=f"{row.task}, row {row.id}", way_out="run 'eft clean' first")  # fmt: skip
        if row.label not in wanted and not own_failure(row, policy):
            reason = row.label or "unlabelled"
        elif not row.has_prompt:
            reason = "no_prompt"
        elif not row.has_response:
            reason = "no_response"
        elif row.score_kind == ScoreKind.AVERAGED and not averaged:
            reason = "averaged"
        elif max_prompt is not None and tokens.get(row.id, (0, 0))[0] > max_prompt:
            reason = "prompt_too_long"
        else:
            kept.append(row)
            continue
        left_out[reason] += 1
    if not any(r.label == Label.IMPROVED for r in kept):
        raise EftError("there is no improved row to train on", where=source, why=_why_empty(kept, left_out),
                       way_out="harvest more; without combined_score: 'eft label --score-key NAME'")  # fmt: skip
    return sorted(kept, key=lambda r: r.id)


def _why_empty(rows: list[Row], left_out: Counter[str]) -> str:
    found = Counter(r.label for r in rows) + left_out
    return ", ".join(f"{n} {name}" for name, n in sorted(found.items())) or "the table is empty"


def validating(rows: list[Row], share: float, seed: int) -> Callable[[Row], bool]:
    """A function that says whether a row validates. Rows whose suite role is `validation` always do; otherwise whole
    families of tasks, about `share` of them in every domain. Raises EftError where no improved row would train."""
    named = {r.task for r in rows if r.suite_role == "validation"}
    if named:
        if not {r.task for r in rows if r.label == Label.IMPROVED} - named:
            raise EftError("every improved row is of a validation task", where=", ".join(sorted(named)[:5]),
                           way_out="harvest searches on training tasks too")  # fmt: skip
        return lambda row: row.task in named
    family = split.families(rows)
    for name in sorted(set(family.values())):
        members = sorted(task for task, first in family.items() if first == name)
        if len(members) > 1:
            print(f"warning: {', '.join(members)} share programs: they are split as one task (harvest them with the "
                  "same --task to cap and name them as one, too)", file=sys.stderr)  # fmt: skip
    improved = Counter(family[r.task] for r in rows if r.label == Label.IMPROVED)
    domain = {family[r.task]: r.domain for r in reversed(rows)}
    chosen = split.validation_tasks(improved, family.values(), share, seed, domain)
    if chosen or share == 0:
        return lambda row: family[row.task] in chosen
    # One task with improved rows: by parent, within it.
    only = next(iter(improved))
    ours = [r for r in rows if family[r.task] == only]
    parents = split.validation_parents(ours, share, seed)
    kind = "its validation rows have other parents, but the same task" if parents else "there are no validation rows"
    print(f"warning: only one task ({only}) has improved rows, so the split cannot go by task: {kind}; the validation "
          "loss will not show whether the model learned anything beyond it", file=sys.stderr)  # fmt: skip
    return lambda row: family[row.task] == only and row.parent in parents


def by_weight(rows: list[Row], limit: int | None, weights: str, seed: int) -> list[Row]:
    """At most `limit` rows, shared among tasks in proportion to their rows ("proportional"), to the square root of them
    ("sqrt") or equally ("uniform"). No row is taken twice: what a small task cannot fill goes to the others.

    Returns rows in input order; a random sample of each task's, the same for a seed.
    """
    if limit is None or len(rows) <= limit:
        return rows
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        members[row.task].append(row)
    power = {"proportional": 1.0, "sqrt": 0.5, "uniform": 0.0}[weights]
    quota = shares({task: len(found) for task, found in members.items()}, limit, power)
    kept = set()
    for task, found in members.items():
        kept |= {r.id for r in sorted(found, key=lambda r: split.rank(seed, "row", r.id))[: quota[task]]}
    return [r for r in rows if r.id in kept]


def shares(sizes: dict[str, int], limit: int, power: float) -> dict[str, int]:
    """How many of `limit` rows each task gives, at most what it has, in proportion to size ** power. They add up to
    `limit` (or to all rows, where there are fewer)."""
    left, open_tasks, given = min(limit, sum(sizes.values())), set(sizes), dict.fromkeys(sizes, 0)
    while True:  # a task that cannot fill its share gives all it has, and the others share the rest
        total = sum(sizes[t] ** power for t in open_tasks)
        full = {t for t in open_tasks if left * sizes[t] ** power / total >= sizes[t]} if open_tasks else set()
        if not full:
            break
        for task in full:
            given[task] = sizes[task]
            left -= sizes[task]
        open_tasks -= full
    exact = {t: left * sizes[t] ** power / total for t in open_tasks}
    for task, value in exact.items():
        given[task] = math.floor(value)
    rest = left - sum(given[t] for t in open_tasks)
    for task in sorted(open_tasks, key=lambda t: (given[t] - exact[t], t))[:rest]:
        given[task] += 1
    return given


def nested(rows: list[Row], sizes: list[int], seed: int) -> dict[int, set[str]]:
    """For a scaling study: size -> so many training tasks, every smaller set within every larger one, the domains in
    their proportions. Raises UsageError for a size that there are not enough tasks for."""
    domain = {r.task: r.domain for r in rows}
    by_domain: dict[str, list[str]] = defaultdict(list)
    for task in sorted(domain, key=lambda t: split.rank(seed, "subset", t)):
        by_domain[domain[task]].append(task)
    # every domain's tasks evenly over the whole order, so that each beginning of it is a fair sample
    placed = [((i + 0.5) / len(tasks), split.rank(seed, "subset", task), task)
              for tasks in by_domain.values() for i, task in enumerate(tasks)]  # fmt: skip
    order = [task for _, _, task in sorted(placed)]
    for size in sizes:
        if size > len(order):
            raise UsageError(f"a subset of {size} tasks is asked for", why=f"only {len(order)} tasks train",
                             way_out="leave that size out of --tasks")  # fmt: skip
    improved = {r.task for r in rows if r.label == Label.IMPROVED}
    for size in sizes:
        if improved.isdisjoint(order[:size]):
            raise UsageError(f"a subset of {size} tasks would have no improved row to train on",
                             why=f"{len(improved)} of {len(order)} tasks have any",
                             way_out="another --seed, or leave that size out of --tasks")  # fmt: skip
    return {size: set(order[:size]) for size in sorted(set(sizes))}


def gain_weights(rows: list[Row]) -> dict[str, float]:
    """Row id -> weight of its loss by relative gain, from 0.25 to 4 times the median's, with mean 1."""
    gains = {r.id: abs(split.relative_delta(r)) for r in rows}
    if not gains:
        return {}
    middle = sorted(gains.values())[len(gains) // 2] or 1.0
    raw = {key: min(4.0, max(0.25, value / middle)) for key, value in gains.items()}
    mean = sum(raw.values()) / len(raw)
    return {key: value / mean for key, value in raw.items()}


def describe(rows: Iterable[Row], of: Callable[[Row], Any]) -> dict[str, int]:
    """Counts of a property, the most frequent first."""
    return {str(key): n for key, n in Counter(map(of, rows)).most_common()}
