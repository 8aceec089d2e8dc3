"""Decontamination: which rows come from a task that must never be trained on, whatever they call it.

A suite's held-out and gate tasks are looked for in four ways:

- `name`: the row's task is called like one of them, in any spelling or folder;
- `text`: half of the distinctive lines (three at least) of its initial program or evaluator stand in the row's prompt,
  logs or programs. Distinctive is a line that no training or validation task has;
- `program`: most of its initial program stands in the row's parent or child, with other names and numbers of lines or
  not: compared by runs of tokens in which names do not count (`lexing.nameless`). A program of a few ordinary lines
  cannot be told from others in this way: such tasks are named by `Guard.ordinary`, and only the other ways find them;
- `lineage`: the row itself shows nothing, but another row of the same search does: a search on a held-out task is left
  out as a whole, since its later children no longer look like the seed.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_tools.lexing import nameless, shingles
from eft.records import Transition, code_hash
from eft.tasks.suite import Suite, load_suite
from eft.tasks.task import Task

PROGRAM_SHARE = 0.7  # of a held-out program's shingles, found in a row's program
LINE_SHARE, FEWEST_LINES, SHORTEST_LINE = 0.5, 3, 16
FEWEST_SHINGLES = 16  # a program with fewer shingles of its own cannot be told from others


@dataclass(frozen=True)
class Hit:
    """One sign of a leak. `share`: of the held-out text or program that was found, 0 to 1."""

    kind: str
    task: str
    share: float


@dataclass(frozen=True)
class Guard:
    """What is known of the tasks that must not leak."""

    names: dict[str, str]
    lines: dict[str, tuple[tuple[str, str], ...]]  # distinctive line -> (task, file) that have it
    sizes: dict[tuple[str, str], int]  # (task, file) -> its distinctive lines
    shingles: Any  # of all initial programs, those that no training task has: a sorted uint64 array
    programs: tuple[tuple[str, Any], ...]  # task, places of its own among them
    ordinary: tuple[str, ...] = ()  # tasks whose programs are too small or too common to be known under other names

    def by_name(self, task: str) -> list[Hit]:
        found = self.names.get(spelling(task))
        return [Hit("name", found, 1.0)] if found else []

    def by_text(self, row: Transition) -> list[Hit]:
        seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        for text in (row.prompt_system, row.prompt_user, row.child_code, row.parent_code, row.parent_artifacts,
                     row.child_artifacts, row.response, row.reasoning):  # fmt: skip
            if text.startswith("{"):  # logs as JSON
                text = text.replace("\\n", "\n").replace('\\"', '"')
            lines = text.split("\n")
            for line in lines:
                line = line.strip()
                for place in self.lines.get(line, ()):
                    seen[place].add(line)
        hits = []
        for place, lines in seen.items():
            share = len(lines) / self.sizes[place]
            if len(lines) >= FEWEST_LINES and share >= LINE_SHARE:
                hits.append(Hit("text", place[0], round(share, 3)))
        return hits

    def by_program(self, row: Transition, known: dict[str, list[Hit]]) -> list[Hit]:
        """`known`: answers by code_hash, since every parent was a child, too."""
        hits = []
        for code in (row.parent_code, row.child_code):
            key = code_hash(code)
            if key not in known:
                if len(known) > 20_000:
                    known.clear()
                known[key] = self._programs_in(code)
            hits += known[key]
        return hits

    def _programs_in(self, code: str) -> list[Hit]:
        import numpy as np

        found = shingles(nameless(code[:200_000]))
        if not self.programs or not len(found):
            return []
        places = np.minimum(np.searchsorted(found, self.shingles), len(found) - 1)
        present = found[places] == self.shingles
        hits = []
        for task, own in self.programs:
            share = present[own].mean()
            if share >= PROGRAM_SHARE:
                hits.append(Hit("program", task, round(float(share), 3)))
        return hits


def spelling(task: str) -> str:
    """A task's own name, without folder, case, `_` and `-`: "Mathematical Discovery/Heilbronn-Triangle" is
    "heilbronntriangle"."""
    return re.sub(r"[\W_]+", "", task.rstrip("/").split("/")[-1].lower())


def guarded_files(suite: Suite) -> list[Path]:
    """The files that decide what a Guard finds."""
    return [file for role in ("train", "validation", "gate", "heldout") for task in suite.tasks(role)
            for file in (task.initial_program, task.evaluator)]  # fmt: skip


def guard_key(suite: str) -> str:
    """16 hex digits that change with the suite's roles and its tasks' texts."""
    digest, loaded = hashlib.sha256(), load_suite(suite)
    digest.update(repr(loaded).encode())
    for file in guarded_files(loaded):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=4)
def guard(suite: str, key: str = "") -> Guard:
    """The guard of a suite's held-out and gate tasks. `key` (guard_key): made anew where it changes. Raises UsageError
    for a suite that is none."""
    import numpy as np

    loaded = load_suite(suite)
    open_tasks = loaded.tasks("train") + loaded.tasks("validation")
    closed = loaded.tasks("heldout") + loaded.tasks("gate")
    common = {line for task in open_tasks for _, line in _lines(task)}
    boilerplate = [shingles(nameless(_text(task.initial_program))) for task in open_tasks]
    known = np.unique(np.concatenate(boilerplate)) if boilerplate else np.empty(0, np.uint64)
    lines: dict[str, set[tuple[str, str]]] = defaultdict(set)
    programs, ordinary = [], []
    for task in closed:
        for file, line in _lines(task):
            if line not in common:
                lines[line].add((task.name, file))
        own = np.setdiff1d(shingles(nameless(_text(task.initial_program))), known)
        if len(own) >= FEWEST_SHINGLES:
            programs.append((task.name, own))
        else:
            ordinary.append(task.name)
    every = np.unique(np.concatenate([own for _, own in programs])) if programs else np.empty(0, np.uint64)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for places in lines.values():
        for place in places:
            sizes[place] += 1
    return Guard(names={spelling(task.name): task.name for task in closed},
                 lines={line: tuple(sorted(places)) for line, places in lines.items()}, sizes=dict(sizes),
                 shingles=every, ordinary=tuple(ordinary),
                 programs=tuple((task, np.searchsorted(every, own)) for task, own in programs))  # fmt: skip


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")


def _lines(task: Task) -> list[tuple[str, str]]:
    """(file, line) of a task's program and evaluator, lines of some length only."""
    return [(file.name, line.strip()) for file in (task.initial_program, task.evaluator)
            for line in _text(file).split("\n") if len(line.strip()) >= SHORTEST_LINE]  # fmt: skip
