"""The loops of an evaluation: which are asked for, what must run while they are searched, and what stands beside them.

`loops:` of the options names them; without it suite, role and tasks mean programs, as they always did. Two options are
every loop's, whatever its own are: `role` (of its searches as training data: heldout, or train for experience that may
be learned from) and `iterations`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from eft import loops
from eft.errors import EftError, UsageError, nearest
from eft.evaluate.results import Confirmed, Method, plain
from eft.evaluate.settings import Config, own_options
from eft.manifest import clear_disk_errors, write_json
from eft.search.spec import SearchSpec, finished
from eft.tasks.suite import ROLES
from eft.tasks.task import Task

if TYPE_CHECKING:
    from eft.evaluate.plan import Plan

FOLDER, BESIDE = "loops", "beside.json"


@dataclass(frozen=True)
class Loop:
    """One loop of an evaluation. `out`: its folder; `role`, `iterations`: of its searches."""

    name: str
    section: Any
    tasks: tuple[Task, ...]
    out: Path
    role: str
    iterations: int

    @property
    def module(self) -> Any:
        return loops.load(self.name)

    def has(self, part: str) -> bool:
        """Does its module export this optional part?"""
        return callable(getattr(self.module, part, None))


def slug(name: str) -> str:
    """A task's name as part of a path and of a search id."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "task"


def task_fingerprint(task: Task) -> str:
    """A hash of everything in a task's folder that decides a score."""
    digest = hashlib.sha256()
    for f in sorted(p for p in task.folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(f"{f.relative_to(task.folder)}\0".encode() + hashlib.sha256(f.read_bytes()).digest())
    return digest.hexdigest()


def chosen(config: Config) -> list[Loop]:
    """The loops that are asked for, with their tasks. Writes the task folders of those that make some.

    Raises UsageError for unknown loops and options, for what a loop finds wrong with them, and for tasks of one name.
    """
    found = []
    asked = config.loops or {loops.FIRST: {}}
    for name in (n for n in loops.LOOPS if asked.get(n, False) is not False):
        own, options = own_options(name, asked[name])
        if name == loops.FIRST:
            options = {"suite": config.suite, "role": config.role, "tasks": config.tasks, **options}
            own["role"] = options["role"]
        elif own.get("role", "heldout") not in ROLES:
            raise UsageError(f"there is no role '{own['role']}'", where=f"loops: {name}",
                             way_out=nearest(str(own["role"]), ROLES))  # fmt: skip
        iterations = own.get("iterations", config.iterations)
        if not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1:
            raise UsageError("`iterations` is a whole number of proposals", where=f"loops: {name}",
                             why=f"it is {iterations!r}")  # fmt: skip
        section = loops.section(name, options)
        out = (config.out() / FOLDER / name).resolve()
        made = loops.load(name).tasks(section, root=config.root, out=out)
        if not made:
            raise UsageError(f"the loop '{name}' has no task", way_out="mend its options, or leave it out of `loops:`")
        found.append(Loop(name, section, tuple(made), out, own.get("role", "heldout"), iterations))
    if not found:
        raise UsageError("no loop is to be evaluated", where="loops", way_out="name one, or leave `loops:` out")
    names = [t.name for loop in found for t in loop.tasks]
    if len({slug(n) for n in names}) != len(names):
        raise UsageError("two tasks have the same name", why=", ".join(names))
    return found


def check(config: Config, plan_loops: Sequence[Loop]) -> None:
    """Raises UsageError for loops whose evaluations need something on this machine while other machines search."""
    if config.executor == "local":
        return
    for loop in plan_loops:
        if loop.has("running"):
            raise UsageError(f"the loop '{loop.name}' runs on one machine", where=f"executor: {config.executor}",
                             why="its evaluations share a process there, which other machines do not reach",
                             way_out="--executor local, or evaluate this loop by itself")  # fmt: skip


class Held:
    """What evaluations of loops need, held until the end of a stack of contexts, and started once."""

    def __init__(self, config: Config, stack: contextlib.ExitStack) -> None:
        self.config, self.stack = config, stack
        self._names: set[str] = set()

    def hold(self, loop: Loop) -> None:
        """Start what the loop's evaluations need, unless it runs. Raises what the loop raises where it cannot."""
        if loop.name in self._names or not loop.has("running"):
            return
        with clear_disk_errors(loop.out):
            loop.out.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(
            loop.module.running(loop.section, list(loop.tasks), root=self.config.root, out=loop.out)
        )
        self._names.add(loop.name)


@dataclass(frozen=True)
class Beside:
    """What stands beside the searches of a loop: its controls, and its mutators' best programs on fresh rows."""

    methods: tuple[Method, ...] = ()
    confirmed: tuple[Confirmed, ...] = ()
    trouble: str = ""


def beside(config: Config, plan: Plan, loop: Loop, held: Held) -> Beside:
    """Controls at as many evaluations as a search has, and confirmations of what the searches found.

    Kept on disk: with the same tasks, searches and seeds nothing is computed or started again. A loop that fails here
    says why; its searches stand all the same.
    """
    if not (loop.has("controls") or loop.has("confirm")):
        return Beside()
    winners = best(plan, loop) if loop.has("confirm") else []
    key = _key(config, loop, winners)
    file = loop.out / BESIDE
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["key"] == key:
            return Beside(*TypeAdapter(tuple[tuple[Method, ...], tuple[Confirmed, ...]]).validate_python(known["found"]))
    methods: list[Method] = []
    confirmed: list[Confirmed] = []
    try:
        held.hold(loop)
        for task in loop.tasks if loop.has("controls") else ():
            methods += _methods(config, loop, task)
        for task, spec, program in winners:
            made = loop.module.confirm(loop.section, task, program, root=config.root, out=loop.out)
            confirmed += [Confirmed(spec.mutator, task.name, spec.seed, **asdict(c)) for c in made or ()]
    except EftError as e:
        print(f"evaluate: {loop.name}: {e}", file=sys.stderr)
        return Beside(tuple(methods), tuple(confirmed), e.what + (f": {e.why}" if e.why else ""))
    write_json(file, plain({"key": key, "found": [[asdict(m) for m in methods], [asdict(c) for c in confirmed]]}))
    return Beside(tuple(methods), tuple(confirmed))


def _methods(config: Config, loop: Loop, task: Task) -> list[Method]:
    found = loop.module.controls(
        loop.section, task, root=config.root, out=loop.out, evaluations=loop.iterations, seeds=config.seed_list()
    )
    return [Method(c.name, task.name, c.seed, c.final_raw, tuple(c.curve), c.evaluations, c.bound, c.note)
            for c in found]  # fmt: skip


def _key(config: Config, loop: Loop, winners: Sequence[Winner]) -> str:
    """What controls and confirmations depend on: the tasks' contents, the options, the seeds, the best programs."""
    parts = [loop.section.model_dump(mode="json"), loop.iterations, config.seed_list(),
             [task_fingerprint(t) for t in loop.tasks], [(t.name, s.name, program) for t, s, program in winners]]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


Winner = tuple[Task, SearchSpec, str]  # a task, the search that found the program, the program


def best(plan: Plan, loop: Loop) -> list[Winner]:
    """Of every mutator and task the program with the highest score on what the searches saw: hidden rows have no say.
    Nothing where a mutator found nothing but the start program."""
    found: dict[tuple[str, str], tuple[float, SearchSpec, str]] = {}
    for spec in plan.specs:
        result = finished(spec) if spec.task in {str(t.folder) for t in loop.tasks} else None
        if result is None or result.best_score is None:
            continue
        known = found.get((spec.task, spec.mutator))
        if known is None or result.best_score > known[0]:
            found[spec.task, spec.mutator] = (result.best_score, spec, result.best_code)
    return [(task, *found[key][1:]) for task in loop.tasks for key in found
            if key[0] == str(task.folder) and found[key][2].strip() != task.seed().strip()]  # fmt: skip
