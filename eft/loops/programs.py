"""The first loop: programs of held-out tasks, those of a suite or named one by one. It writes nothing."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from eft import config as configs
from eft.errors import UsageError, nearest
from eft.tasks.suite import ROLES, load_suite, suite_names
from eft.tasks.task import Task, find_task


class Section(configs.Section):
    """Options of the loop `programs`; in `eft evaluate` they may stand at the top level, too."""

    suite: str = Field("embedded", description="a shipped suite, or a suite's YAML file")
    role: str = Field("heldout", description="which tasks of the suite")
    tasks: list[str] = Field(default_factory=list, description="these tasks (names or folders) instead of the suite's")


def tasks(section: Section, *, root: Path, out: Path) -> list[Task]:
    """The tasks of the suite's role, or those that are named. Raises UsageError for an unknown suite, role or task, and
    for none at all."""
    if section.tasks:
        # a path is relative to root, a name is a shipped task's
        folders = [(t, root / Path(t).expanduser()) for t in section.tasks]
        return [find_task(str(folder) if folder.is_dir() else name) for name, folder in folders]
    if section.role not in ROLES:
        raise UsageError(f"a suite has no role '{section.role}'", way_out=nearest(section.role, ROLES))
    suite = section.suite if section.suite in suite_names() else root / Path(section.suite).expanduser()
    found = load_suite(suite).tasks(section.role)
    if not found:
        raise UsageError(f"the suite '{section.suite}' has no task of role '{section.role}'",
                         way_out="give `tasks`, or another role")  # fmt: skip
    return found
