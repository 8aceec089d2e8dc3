"""A suite: which task serves which role. Also the verb `eft tasks`, which lists them.

A suite is a YAML file with lists of task names (shipped ones, or folders relative to the file) under `train`,
`validation`, `gate` and `heldout`. No task, and no family of tasks, may serve two roles: what a mutator has trained on
proves nothing about it. `load_suite` refuses a suite that breaks this.

A suite may also name tasks of others that do not come with this package, under `external`: a list of {role, task, how}.
They count where their folders exist below $EFT_TASKS (default: ./tasks), as `eft tasks import` writes them; the rest is
the suite's `missing`, with `how` to get each.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from eft.config import StageConfig, read_yaml
from eft.errors import UsageError, nearest
from eft.tasks.task import SHIPPED, Task, find_task

ROLES = ("train", "validation", "gate", "heldout")
SUITES = SHIPPED / "suites"
SHOWN = ("domain", "family", "raw_metric", "direction", "seed_raw", "seed_score", "best_known", "best_known_source",
         "isolation", "timeout_s")  # fmt: skip


@dataclass(frozen=True)
class Missing:
    """A task that a suite names and that is not here; `how` says where it comes from."""

    role: str
    task: str
    how: str


@dataclass(frozen=True)
class Suite:
    """Names of tasks by role, in the order of the file; `find_task` takes each of them."""

    name: str
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    gate: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()

    def role(self, task: str) -> str:
        """The role of a task by name, "" where the suite does not name it."""
        return next((role for role in ROLES if task in getattr(self, role)), "")

    def tasks(self, role: str) -> list[Task]:
        """The tasks of one role, loaded."""
        return [find_task(name) for name in getattr(self, role)]


def suite_names() -> list[str]:
    """Names of the shipped suites."""
    return sorted(p.stem for p in SUITES.glob("*.yaml"))


def load_suite(name_or_path: str | Path) -> Suite:
    """A shipped suite by name, or a YAML file. Raises UsageError for an unknown suite, role or task, or one in two
    roles."""
    text = str(name_or_path)
    file = SUITES / f"{text}.yaml" if text in suite_names() else Path(text)
    if not file.is_file():
        raise UsageError(f"there is no suite '{text}'", way_out=nearest(text, suite_names()) + ", or give a YAML file")
    data = read_yaml(file)
    unknown = set(data) - {*ROLES, "name", "external"}
    if unknown:
        key = sorted(unknown)[0]
        raise UsageError(f"a suite has no role '{key}'", where=file, way_out=nearest(key, ROLES))
    found, missing = _external(data.get("external") or [], file)
    roles: dict[str, tuple[str, ...]] = {}
    owner: dict[str, tuple[str, str]] = {}  # family -> (role, task)
    for role in ROLES:
        entries = data.get(role) or []
        if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries):
            raise UsageError(f"'{role}' must be a list of task names", where=file)
        names = []
        for entry in [*entries, *found[role]]:
            folder = file.parent / entry
            task = find_task(folder if (folder / "evaluator.py").is_file() else entry)
            known_role, known_task = owner.setdefault(task.family, (role, task.name))
            if known_role != role:
                why = (
                    "it is named twice"
                    if known_task == task.name
                    else f"{known_task} is of the same family, '{task.family}'"
                )
                raise UsageError(f"task '{task.name}' serves two roles: {known_role} and {role}", where=file, why=why)
            names.append(str(task.folder) if folder.is_dir() else task.name)
        if len(set(names)) != len(names):
            raise UsageError(f"'{role}' names a task twice", where=file)
        roles[role] = tuple(names)
    return Suite(name=str(data.get("name") or file.stem), missing=tuple(missing), **roles)


def external_folder() -> Path:
    """Where tasks of others lie: $EFT_TASKS, or ./tasks."""
    return Path(os.environ.get("EFT_TASKS") or "tasks").resolve()


def _external(entries: Any, file: Path) -> tuple[dict[str, list[str]], list[Missing]]:
    """(folders of the external tasks that are here, by role; those that are not)."""
    found: dict[str, list[str]] = {role: [] for role in ROLES}
    missing = []
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict) or set(entry) != {"role", "task", "how"} or entry["role"] not in ROLES:
            raise UsageError("an entry of `external` must be {role, task, how}", where=file, why=f"it is {entry!r}")
        folder = external_folder() / str(entry["task"])
        if (folder / "evaluator.py").is_file():
            found[entry["role"]].append(str(folder))
        else:
            missing.append(Missing(entry["role"], str(entry["task"]), str(entry["how"])))
    return found, missing


# ---- eft tasks ---------------------------------------------------------------------------------------------------


class Config(StageConfig):
    """Options of `eft tasks list`."""

    positional: ClassVar[str | None] = None

    suite: str = Field(default="embedded", description="a shipped suite, or a suite's YAML file")
    role: str | None = Field(default=None, description=f"only one role: {', '.join(ROLES)}")


def inputs(config: Config) -> list[Path]:
    return []


def run(config: Config) -> dict[str, Any]:
    """Print the suite's tasks as a table; returns what --json shows: {suite, sandbox, tasks: [...]}."""
    from eft.tasks import sandbox

    if config.role is not None and config.role not in ROLES:
        raise UsageError(f"there is no role '{config.role}'", way_out=nearest(config.role, ROLES))
    suite_file = config.path(config.suite)
    suite = load_suite(config.suite if config.suite in suite_names() else suite_file)
    rows = []
    for role in ROLES if config.role is None else (config.role,):
        for task in suite.tasks(role):
            shown = {c: getattr(task, c) for c in SHOWN}
            rows.append({"role": role, "task": task.name, **shown, "folder": str(task.folder)})
    columns = ("role", "task", "raw_metric", "direction", "seed_raw", "best_known", "seed_score", "isolation")
    print(table(columns, rows))
    level = sandbox.describe()
    print(f"\n{len(rows)} tasks of suite '{suite.name}'; candidates run in: {level}")
    missing = [asdict(m) for m in suite.missing if config.role in (None, m.role)]
    if missing:
        print(f"\n{len(missing)} more are not here (looked for below {external_folder()}):")
        print(table(("role", "task", "how"), missing))
    return {"verb": "tasks", "suite": suite.name, "sandbox": level, "tasks": rows, "missing": missing}


def table(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    """Rows as aligned text; numbers with six digits, unknown values as '-'."""

    def cell(value: Any) -> str:
        return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)

    lines = [columns, *([cell(row[c]) for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
