"""The edits that made a search's best program, one after the other, from the search's journal.

A result names every candidate by the hash of its code and of its parent's. The code itself comes from the replies: each
is applied again to the parent that its prompt showed, and counts only where exactly that child comes out. So the way is
the same for every scaffold, and it is whole or not given at all.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from eft import edits, prompts
from eft.errors import EftError
from eft.evaluate.results import Step
from eft.records import code_hash
from eft.search.spec import Candidate, SearchResult
from eft.tasks.task import Task

LONGEST = 40  # steps of one way; a longer one keeps its last ones
DIFF_LINES = 80  # lines kept of one step


def unified(before: str, after: str, names: tuple[str, str], most: int) -> str:
    """The change as a unified diff of at most `most` lines; "" where there is none."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, n=2, lineterm=""))
    more = [f"… {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join(lines[:most] + more)


def chain(result: SearchResult, start: str) -> list[Candidate]:
    """The candidates on the way from the start program to the best one, oldest first; [] where a link is missing."""
    made: dict[str, Candidate] = {}
    for c in result.candidates:
        if c.applied and c.code_hash:
            made.setdefault(c.code_hash, c)
    first, at = code_hash(start), code_hash(result.best_code)
    way: list[Candidate] = []
    while at != first:
        c = made.pop(at, None)  # popped: a circle ends the way
        if c is None:
            return []
        way.append(c)
        at = c.parent_hash
    return way[::-1]


def _replies(records: Iterable[dict[str, Any]], parents: set[str]) -> dict[str, list[str]]:
    """The journal's replies by the hash of the program that their prompt showed."""
    found: dict[str, list[str]] = defaultdict(list)
    for r in records:
        if r.get("kind") != "reply" or r.get("status") != "ok" or not isinstance(r.get("content"), str):
            continue
        users = [m["content"] for m in r.get("messages") or [] if isinstance(m, dict) and m.get("role") == "user"]
        program = prompts.current_program(users[-1]) if users and isinstance(users[-1], str) else None
        if program is not None and code_hash(program) in parents:
            found[code_hash(program)].append(r["content"])
    return found


def _dialects(result: SearchResult) -> list[str]:
    own = edits.dialect_for(result.scaffold_release) if result.scaffold == "openevolve" else f"{result.scaffold}@0"
    return [own, edits.DEFAULT_DIALECT]


def _child(parent: str, replies: list[str], wanted: str, result: SearchResult, language: str) -> str | None:
    for reply in replies:
        for dialect in _dialects(result):
            try:
                edit = edits.apply(parent, reply, kind=result.edit, dialect=dialect, language=language)  # type: ignore[arg-type]
            except EftError:  # no such dialect: this scaffold reads edits as OpenEvolve does
                continue
            if edit and code_hash(edit.child) == wanted:
                return edit.child
    return None


def steps(result: SearchResult, records: Iterable[dict[str, Any]], task: Task) -> tuple[Step, ...]:
    """The way to the best program, oldest edit first; () where there is none, or the journal does not show it all."""
    code = task.seed()
    way = chain(result, code)
    if not way:
        return ()
    replies = _replies(records, {c.parent_hash for c in way})
    found = []
    for c in way:
        child = _child(code, replies.get(c.parent_hash, []), c.code_hash, result, task.language)
        if child is None:
            return ()
        diff = unified(code, child, ("parent", f"proposal {c.index + 1}"), DIFF_LINES)
        found.append(Step(c.index + 1, c.raw, diff))
        code = child
    return tuple(found[-LONGEST:])
