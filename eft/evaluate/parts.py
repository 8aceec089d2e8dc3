"""The parts of an evaluation: one for every loop. Loops are compared apart; no mean and no table is over two of them.

A loop's own controls (no mutators: the best parent, a random search, CMA-ES …) stand in its part as contenders, paired
by task and seed like everybody else, so that the same comparison, tests and charts serve them. A `bound` (an oracle) is
shown and compared with nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from eft.evaluate import metrics
from eft.evaluate.contenders import METHOD
from eft.evaluate.results import PROGRAMS, Method, MutatorInfo, Results, Search, TaskInfo


def loops(results: Results) -> tuple[str, ...]:
    """The loops that results are of, in the order of their tasks; programs where there is no task at all."""
    return tuple(dict.fromkeys(t.loop for t in results.tasks)) or (PROGRAMS,)


def headliner(results: Results) -> str:
    """The loop that the report's headline is about: programs, or the first one where they were not searched."""
    found = loops(results)
    return PROGRAMS if PROGRAMS in found else found[0]


def part(results: Results, loop: str) -> Results:
    """The results of one loop, its own controls among the contenders."""
    tasks = {t.name: t for t in results.tasks if t.loop == loop}
    searches = tuple(s for s in results.searches if s.task in tasks)
    methods = [m for m in results.methods if m.task in tasks]
    taken = {m.name for m in results.mutators}
    names = {m.name: f"{m.name} (control)" if m.name in taken else m.name for m in methods}
    infos = {names[m.name]: MutatorInfo(names[m.name], METHOD, "bound" if m.bound else "control") for m in methods}
    starts = _starts(searches)
    if loop != PROGRAMS:
        tasks = {name: _scaled(t, searches, methods) for name, t in tasks.items()}
        tasks = {name: dataclasses.replace(t, hidden_start_raw=starts[name])
                 if t.has_hidden and t.hidden_start_raw is None and name in starts else t for name, t in tasks.items()}  # fmt: skip
    return dataclasses.replace(
        results, tasks=tuple(tasks.values()), mutators=(*results.mutators, *infos.values()),
        searches=(*searches, *(_search(m, names[m.name], tasks[m.task], starts) for m in methods)),
        planned=results.planned_of.get(loop, results.planned) + len(methods), methods=(),
        confirmed=tuple(c for c in results.confirmed if c.task in tasks),
        troubles={k: v for k, v in results.troubles.items() if k == loop},
    )  # fmt: skip


def searched(results: Results) -> Results:
    """A part without its controls: what mutators searched."""
    own = tuple(m for m in results.mutators if m.kind != METHOD)
    names = {m.name for m in own}
    return dataclasses.replace(results, mutators=own, searches=tuple(s for s in results.searches if s.mutator in names))


def _scaled(task: TaskInfo, searches: Iterable[Search], methods: Iterable[Method]) -> TaskInfo:
    """The task with the best value that anybody reached here in the place of a best known one, where there is none: a
    unit for its differences, the same for all contenders. It changes no sign and no rank within the task."""
    if task.best_known is not None:
        return task
    own = [x for x in (*searches, *methods) if x.task == task.name and not getattr(x, "bound", False)]
    best = min if task.direction == "min" else max
    seen = [v for x in own for v in map(metrics.known, x.curve) if v is not None]
    final = [v for v in (metrics.known(x.final_raw) for x in own) if v is not None]
    return dataclasses.replace(
        task, best_known=best(seen, default=None), best_known_source="best of these results",
        hidden_best_known=best(final, default=None) if task.has_hidden else None,
    )  # fmt: skip


def _starts(searches: Iterable[Search]) -> dict[str, float | None]:
    """The start program's value on hidden instances by task, as the searches measured it."""
    found: dict[str, float | None] = {}
    for s in searches:
        if s.start_final_raw is not None:
            found.setdefault(s.task, s.start_final_raw)
    return found


def _search(method: Method, name: str, task: TaskInfo, starts: dict[str, float | None]) -> Search:
    """A control's outcome in the form of a search: it made no proposals, so rates of edits are not its own."""
    seen = [v for v in map(metrics.known, method.curve) if v is not None]
    best = (min if task.direction == "min" else max)(seen) if seen else None
    start = starts.get(task.name, task.hidden_start_raw if task.has_hidden else task.start_raw)
    return Search(
        name, task.name, method.seed, reason=method.note, iterations=method.evaluations, best_raw=best,
        curve=method.curve, evaluations=method.evaluations, final_raw=method.final_raw, start_final_raw=start,
    )  # fmt: skip
