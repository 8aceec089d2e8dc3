"""Items for a pool: recorded search states of a suite's gate tasks, or the tasks themselves.

    mutation   a state of a search: the prompt, its program and that program's score. q = 1 where the reply is an edit
               that applies, evaluates as valid and scores higher than the program, else 0
    judge      a state with two recorded replies, one of which scored higher. q = 1 where the model finds that one more
               likely (per token), 1/2 for a tie, else 0: cheap, no server, and it needs the weights
    search     a task and a seed. q = share of the gap to the best known value that a short search closes, in [0, 1]

States come from a table of transitions (`eft collect --role gate`, then harvest and label). States of one program
depend on each other: they form a group, and by default only one of them becomes an item. Items are a sample of such
states; what a gate says of them it says of states of these tasks, recorded like these.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eft import stages
from eft.errors import EftError, UsageError, nearest
from eft.gate.evidence import SHARES, Item, Pool, digest
from eft.records import Transition, Validity, code_hash, read_transitions
from eft.tasks.suite import load_suite, suite_names
from eft.tasks.task import Task

KINDS = ("mutation", "judge", "search")
ROLE = "gate"
LIMIT = 10  # batches of searches that are recorded for one pool
GROWING = ".growing"  # in a pool that was not large enough yet when its making was interrupted


def gate_tasks(suite: str, root: Path = Path(".")) -> dict[str, Task]:
    """The gate tasks of a suite by name. Raises UsageError where it has none."""
    tasks = load_suite(suite if suite in suite_names() else root / suite).tasks(ROLE)
    if not tasks:
        raise UsageError(
            f"the suite '{suite}' has no gate tasks", way_out="name some under `gate:`, or take another suite"
        )
    return {t.name: t for t in tasks}


def from_transitions(rows: Iterable[Transition], tasks: dict[str, Task], kind: str, per_program: int = 1) -> list[Item]:
    """Items of `kind` (mutation, judge) from labelled transitions, at most `per_program` of one program.

    Raises EftError for rows of tasks that are not gate tasks, and where no item can be made.
    """
    states: dict[tuple[str, str], dict[str, list[Transition]]] = defaultdict(lambda: defaultdict(list))
    seen = 0
    for row in rows:
        seen += 1
        if row.task not in tasks:
            raise EftError(
                f"the recorded searches are of '{row.task}', which is not a gate task",
                where=f"row {row.id}",
                why=f"gate tasks: {', '.join(sorted(tasks))}",
                way_out="record searches with 'eft collect --role gate'",
            )
        if row.prompt_user and row.parent_validity == Validity.VALID and row.parent_score is not None and row.response:
            states[row.task, code_hash(row.parent_code)][row.prompt_user].append(row)
    make = _mutation if kind == "mutation" else _judge
    items = []
    for (task, program), prompts in sorted(states.items()):
        group = f"{task}:{program[:16]}"
        made = [item for _, replies in sorted(prompts.items()) if (item := make(tasks[task], group, replies))]
        items += sorted(made, key=lambda item: item.id)[:per_program]
    if not items:
        raise EftError(
            f"no {kind} item can be made of {seen} transitions",
            why="it takes logged prompts, valid parents"
            + (" and two replies of different score to one prompt" if kind == "judge" else ""),
            way_out="record more searches (judge: by a mutator with lookahead)",
        )
    return items


def _prompt(row: Transition) -> list[dict[str, str]]:
    system = [{"role": "system", "content": row.prompt_system}] if row.prompt_system else []
    return [*system, {"role": "user", "content": row.prompt_user}]


def _mutation(task: Task, group: str, replies: list[Transition]) -> Item | None:
    row = min(replies, key=lambda r: r.id)
    edit = row.edit_kind or "diff"
    return Item(
        "mutation",
        task.name,
        group,
        {
            "messages": _prompt(row),
            "parent_code": row.parent_code,
            "parent_score": row.parent_score,
            "edit": edit,
            "format": row.prompt_format,
            "folder": str(task.folder),
        },
    )


def _judge(task: Task, group: str, replies: list[Transition]) -> Item | None:
    """A pair of valid replies of one form whose scores differ, drawn at random but always the same."""
    valid = sorted(
        {
            (r.response, r.child_score)
            for r in replies
            if r.child_validity == Validity.VALID and r.child_score is not None
        }
    )
    pairs = [(a, b) for a in valid for b in valid if a[1] > b[1]]
    if not pairs:
        return None
    better, worse = random.Random(digest([group, len(pairs)])).choice(pairs)
    return Item(
        "judge",
        task.name,
        group,
        {
            "messages": _prompt(replies[0]),
            "better": better[0],
            "worse": worse[0],
            "difference": better[1] - worse[1],
            "format": replies[0].prompt_format,
        },
    )


def searches(tasks: dict[str, Task], seeds: Iterable[int], about: dict[str, Any]) -> list[Item]:
    """Items of short searches, one for each task and seed. `about`: iterations, edit and prompt_format."""
    return [
        Item("search", name, f"{name}:seed{seed}", {"seed": seed, "folder": str(task.folder), **about})
        for name, task in sorted(tasks.items())
        for seed in seeds
    ]


def record(
    folder: Path,
    suite: str,
    kind: str,
    *,
    need: dict[str, int],
    extend: bool = False,
    root: Path = Path("."),
    seeds: int = 30,
    iterations: int = 12,
    lookahead: int = 4,
    seed: int = 0,
    prompt_format: str = "eft@1",
    edit: str = "diff",
    workers: int = 2,
    shares: tuple[float, float, float] = SHARES,
    per_program: int = 1,
) -> Pool:
    """The pool in `folder`. Where there is none yet (or with `extend`), searches of the `ast` mutator on the gate tasks
    of `suite` are run and recorded beside it (collect, harvest and label, as processes), `seeds` a task at a time,
    until every part holds as many unspent items as it `need`s, or LIMIT times.

    Raises EftError for a suite without gate tasks, and for a pool of another kind or other tasks.
    """
    if kind not in KINDS:
        raise UsageError(f"there are no items of kind '{kind}'", way_out=nearest(kind, KINDS))
    tasks = gate_tasks(suite, root)
    pool = None
    if (folder / "pool.json").exists():
        pool = Pool(folder)
        if pool.kind != kind or pool.tasks != set(tasks):
            raise UsageError(
                "this pool is another one than asked for",
                where=folder,
                why=f"it holds {pool.kind} items of {', '.join(sorted(pool.tasks))}",
                way_out="name another --pool, or its own suite and kind",
            )
        if not extend and not (folder / GROWING).exists():
            return pool
    about = {"suite": suite, "edit": edit, "prompt_format": prompt_format, "iterations": iterations}
    for batch in range(LIMIT):
        if pool and all(pool.left(role) >= count for role, count in need.items()):
            break
        first = seed + batch * seeds
        if kind == "search":
            found = searches(tasks, range(first, first + seeds), {k: v for k, v in about.items() if k != "suite"})
        else:
            where = folder.with_name(f"{folder.name}.records") / str(batch)
            options = {"seeds": seeds, "iterations": iterations, "mutator.lookahead": lookahead, "first_seed": first}
            options |= {"prompt_format": prompt_format, "forms": f"[{edit}]", "workers": workers}
            found = from_transitions(recorded(where, suite, root, options), tasks, kind, per_program)
        if pool is None:
            pool = Pool.create(folder, found, tasks=list(tasks), kind=kind, seed=seed, shares=shares, about=about)
            (folder / GROWING).touch()
        else:
            groups = {item.group for item in pool.items.values()}
            pool.extend(item for item in found if item.group not in groups)
    assert pool is not None
    (folder / GROWING).unlink(missing_ok=True)
    sizes = ", ".join(f"{pool.left(r)} {r}" for r in ("screening", "confirmation", "audit"))
    print(f"gate: a pool of {len(pool.items)} {kind} items, unspent: {sizes}", file=sys.stderr)
    return pool


def recorded(out: Path, suite: str, root: Path, options: dict[str, Any]) -> Iterable[Transition]:
    """Labelled transitions of the gate tasks' recorded searches, run where they are not there yet."""
    text = suite if suite in suite_names() else str((root / suite).resolve())
    out = out.resolve()
    steps = {
        "collect": {"suite": text, "role": ROLE, "output": out / "runs", **options},
        "harvest": {"runs": f"[{out / 'runs'}]", "output": out / "harvest"},
        "label": {"source": out / "harvest", "output": out / "label"},
    }
    for verb, told in steps.items():
        stages.run(verb, sets=tuple(f"{k}={v}" for k, v in told.items()))
    return read_transitions(out / "label")
