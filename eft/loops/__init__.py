"""Loops: the places that a mutator is put into, each a module that turns a section of options into task folders.

A search knows nothing of loops: it runs on task folders in OpenEvolve's format, under any scaffold, and leaves the same
journals, results and transitions whatever the genome is. So a loop is one module and one line in LOOPS. It exports

    Section(eft.config.Section)     its options, under `loops: <name>:` of `eft evaluate`
    tasks(section, *, root, out) -> list[Task]
        Writes its task folders below `out` (only where they changed, see folders.py) and loads them. Cheap: no model is
        loaded, no search has started. Raises UsageError for whatever can be known to be wrong by then.

and, where it has them,

    running(section, tasks, *, root, out) -> ContextManager
        Held while searches run on this machine: what evaluations need (a process that holds a base model). Entered only
        where something is left to do, again after a kill.
    controls(section, task, *, evaluations, seeds, out) -> list[Control]
        What other methods find with as many evaluations; kept below `out`, so that it costs nothing the second time.
    confirm(section, task, program, *, root, out) -> list[Confirmation]
        The best program of a mutator's searches on rows that neither the search nor the final score has seen.

`root` is what relative paths of the options are relative to; `out` is the loop's own folder, OUT/loops/<name>.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from eft import config as configs
from eft.errors import UsageError, nearest

# One line a loop: its name in options, results and report -> its module.
LOOPS = {
    "programs": "eft.loops.programs",
    "merge": "eft.loops.merge",
    "routing": "eft.loops.routing",
}
FIRST = "programs"  # the loop that suite, role and tasks of an evaluation speak of, and that its headline is about


@dataclass(frozen=True)
class Control:
    """What a method without a mutator found on one task, with one seed, in as many evaluations as a search has.

    `curve`: the raw metric of its best after 0 (the seed program), 1, 2, … evaluations, on the rows that searches see;
    a method that searches nothing has its value after the first. `final_raw`: of that best on the hidden rows; None
    where it failed there. A method without chance gives the same for every seed. `bound`: an upper end (an oracle) that
    is shown, not compared with.
    """

    name: str
    seed: int
    final_raw: float | None
    curve: tuple[float | None, ...] | list[float | None]
    evaluations: int
    bound: bool = False
    note: str = ""


@dataclass(frozen=True)
class Confirmation:
    """A program against a `reference` (best parent, best single model, …) on fresh rows.

    `value`, `reference_value`: the task's raw metric there; `difference`: positive where the program is better,
    whatever the metric's direction, with its 95 % interval over the rows. `items`: how many rows (groups of them, where
    rows hang together) the interval is over; `what`: what they are, in words.
    """

    reference: str
    value: float | None
    reference_value: float | None
    difference: float | None
    low: float | None
    high: float | None
    items: int
    what: str = ""
    note: str = ""


def load(name: str) -> Any:
    """The module of a loop. Raises UsageError for an unknown one, and for one whose optional parts are missing."""
    if name not in LOOPS:
        raise UsageError(f"there is no loop '{name}'", way_out=nearest(name, LOOPS))
    return importlib.import_module(LOOPS[name])


def section(name: str, options: dict[str, Any] | None, source: object = None) -> Any:
    """The validated options of a loop. Raises UsageError naming every bad key and the nearest valid one."""
    return configs.make(load(name).Section, dict(options or {}), source or f"loops: {name}")
