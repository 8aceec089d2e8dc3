"""Several evaluations as one: what may be compared, and what may not.

Searches pair by task and seed, so results of different tasks, prompt formats, budgets or sandboxes are not two sides of
one comparison: they are refused, with what differs. Other mutators, other seeds, other scaffolds (kept apart by
`contenders.py`) and other forms of an edit (a mutator's own property) are fine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eft.errors import UsageError
from eft.evaluate.page import printable
from eft.evaluate.parts import loops
from eft.evaluate.results import MutatorInfo, Results, Search, TaskInfo

# setting -> in a reader's words. What decides a search's outcome beside mutator, task, seed, scaffold and edit form.
SAME = {
    "suite": "suites", "role": "roles", "prompt_format": "prompt formats",
    "iterations": "numbers of proposals a search", "max_tokens": "limits of a reply's tokens",
    "temperature": "temperatures", "top_p": "top-p",
}  # fmt: skip
WAY_OUT = "report them one by one, or run 'eft evaluate' again with the settings of the other"


def sandboxes(results: Results) -> set[str]:
    """The sandbox levels under which the searches ran, as far as they were recorded."""
    return {s.sandbox for s in results.searches if s.status == "done" and s.sandbox}


def shown(value: Any) -> str:
    """A name or value out of a file that anybody may have written, as a message may hold it: printable and short."""
    return printable(str(value))[:200]


def _refuse(what: str, one: Any, other: Any, where: Path) -> UsageError:
    why = f"{shown(other)} here, {shown(one)} before"
    return UsageError(f"results of different {what} cannot be compared", where=where, why=why, way_out=WAY_OUT)


def _check(first: Results, other: Results, where: Path) -> None:
    """Raises UsageError where two evaluations are not of the same kind."""
    for key, name in SAME.items():
        a, b = first.config.get(key), other.config.get(key)
        if key == "suite" and first.config.get("tasks") and other.config.get("tasks"):
            continue  # both named their tasks one by one: these are compared below
        if a is not None and b is not None and a != b:
            raise _refuse(name, a, b, where)
    for name in loops(first):
        budgets = [(r.config.get("loops") or {}).get(name) or {} for r in (first, other)]
        a, b = (o.get("iterations", r.config.get("iterations")) for o, r in zip(budgets, (first, other), strict=True))
        if a is not None and b is not None and a != b and name in loops(other):
            raise _refuse(f"numbers of proposals a search ({shown(name)})", a, b, where)
    levels = sandboxes(first), sandboxes(other)
    if all(levels) and levels[0] != levels[1]:
        raise _refuse("sandbox levels", *(" and ".join(sorted(v)) for v in levels), where)
    before = {t.name: t for t in first.tasks}
    names = set(before), {t.name for t in other.tasks}
    if names[0] != names[1]:
        only = sorted(names[0] ^ names[1])
        names_only = ", ".join(map(shown, only[:6])) + (", …" if len(only) > 6 else "")
        raise UsageError("results of different tasks cannot be compared", where=where,
                         why=f"not in both: {names_only}", way_out=WAY_OUT)  # fmt: skip
    for t in other.tasks:
        if changed := _changed(before[t.name], t):
            raise UsageError(f"the task '{shown(t.name)}' is not the same in both results", where=where, why=changed,
                             way_out="run 'eft evaluate' again where its older version was used")  # fmt: skip


def _changed(a: TaskInfo, b: TaskInfo) -> str:
    """What tells two versions of a task apart; "" for the same one."""
    if a.fingerprint and b.fingerprint:
        return "" if a.fingerprint == b.fingerprint else "its folder's fingerprint differs"
    for field in ("loop", "direction", "raw_metric", "start_raw", "best_known", "isolation"):
        one, other = getattr(a, field), getattr(b, field)
        if one != other and None not in (one, other):
            return f"{field} is {shown(other)} here, {shown(one)} before"
    return ""


def _key(s: Search) -> tuple[str, str, int, str]:
    return s.mutator, s.task, s.seed, s.scaffold


def _same_outcome(a: Search, b: Search) -> bool:
    """Are these two records of one search? Times, tokens and recorded words may differ."""
    return (a.status, a.best_raw, a.final_raw, a.curve) == (b.status, b.best_raw, b.final_raw, b.curve)


def _engine(results: Results) -> str:
    declared = results.config.get("scaffold")
    return declared if isinstance(declared, str) else ""


def _prepared(results: Results) -> Results:
    """The same results with what was the evaluation's own written into its mutators and searches."""
    kinds = {m.name: m.kind for m in results.mutators}
    engine, edit = _engine(results), str(results.config.get("edit") or "")
    return dataclasses.replace(
        results,
        mutators=tuple(dataclasses.replace(m, edit=m.edit or ("" if m.kind == "ast" else edit))
                       for m in results.mutators),
        searches=tuple(s if s.scaffold else dataclasses.replace(
            s, scaffold="best_of_n" if kinds.get(s.mutator) == "best_of_n" else engine) for s in results.searches),
    )  # fmt: skip


def combine(found: Sequence[tuple[Path, Results]]) -> Results:
    """One set of results. A mutator of the same name must be the same one; its searches are taken once.

    Raises UsageError, naming what differs, where they may not be compared.
    """
    if len(found) == 1:
        return found[0][1]
    first = _prepared(found[0][1])
    mutators: dict[str, MutatorInfo] = {m.name: m for m in first.mutators}
    searches: dict[tuple, Search] = {_key(s): s for s in first.searches}
    total = first
    for where, results in found[1:]:
        other = _prepared(results)
        _check(total, other, where)
        for m in other.mutators:
            known = mutators.setdefault(m.name, m)
            differ = [f for f in ("kind", "role", "model", "of", "lookahead", "edit")
                      if getattr(known, f) != getattr(m, f)]  # fmt: skip
            if differ:
                why = ", ".join(f"{f} is {getattr(m, f)!r} here, {getattr(known, f)!r} before" for f in differ)
                raise UsageError(f"two different mutators are called '{shown(m.name)}'", where=where, why=why,
                                 way_out="give one of them another name under `mutators:`")  # fmt: skip
        for s in other.searches:
            known_search = searches.setdefault(_key(s), s)
            if not _same_outcome(known_search, s):
                if known_search.status != "done":
                    searches[_key(s)] = s
                elif s.status == "done":
                    name = f"'{shown(s.mutator)}' on '{shown(s.task)}' with seed {s.seed}"
                    raise UsageError(
                        f"the search of {name} is in both results, and differs",
                        where=where, why=f"{s.best_raw} here, {known_search.best_raw} before",
                        way_out="use other seeds, or another name for the mutator")  # fmt: skip
        total = dataclasses.replace(
            total, seconds=total.seconds + other.seconds, seeds=tuple(sorted({*total.seeds, *other.seeds})),
            planned=total.planned + other.planned, versions={**other.versions, **total.versions},
            command="\n".join(c for c in (total.command, other.command) if c),
            started=min((v for v in (total.started, other.started) if v), default=0.0),
            methods=tuple(dict.fromkeys((*total.methods, *other.methods))),
            confirmed=tuple(dict.fromkeys((*total.confirmed, *other.confirmed))),
            troubles={**other.troubles, **total.troubles},
        )  # fmt: skip
    engines = sorted({s.scaffold for s in searches.values()} - {"", "best_of_n"})
    edits = {m.edit for m in mutators.values() if m.edit}
    return dataclasses.replace(
        total, mutators=tuple(mutators.values()), searches=tuple(searches.values()),
        planned=max(len(searches), total.planned - _twice(found, searches)), planned_of=_planned_of(found, searches),
        config={**total.config, "scaffold": engines or total.config.get("scaffold"),
                "edit": " and ".join(sorted(edits)) or total.config.get("edit")},
    )  # fmt: skip


def _planned_of(found: Sequence[tuple[Path, Results]], searches: dict) -> dict[str, int]:
    """How many searches each loop is to have, those in several of the results counted once."""
    of = {t.name: t.loop for _, r in found for t in r.tasks}
    planned: dict[str, int] = {}
    for name in dict.fromkeys(of.values()):
        own = sum(of.get(key[1]) == name for key in searches)
        asked = sum(r.planned_of.get(name, r.planned) for _, r in found)
        standing = sum(of.get(s.task) == name for _, r in found for s in r.searches)
        planned[name] = max(own, asked - (standing - own))
    return planned


def _twice(found: Sequence[tuple[Path, Results]], searches: dict) -> int:
    """How many searches stand in more than one of the results."""
    return sum(len(r.searches) for _, r in found) - len(searches)
