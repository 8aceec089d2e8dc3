"""`eft tasks show TASK`: what a task asks for, its seed program, and what is known of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from eft.config import StageConfig
from eft.errors import UsageError
from eft.tasks.task import find_task


class Config(StageConfig):
    """Options of `eft tasks show`."""

    positional: ClassVar[str | None] = "task"

    task: str | None = Field(default=None, description="a shipped task by name, or a task folder")


def inputs(config: Config) -> list[Path]:
    return []


def run(config: Config) -> dict[str, Any]:
    """Print the card and the seed; returns what --json shows: the fields of the task, and `seed`."""
    if config.task is None:
        raise UsageError("no task was named", way_out="eft tasks show NAME (eft tasks list shows the names)")
    task = find_task(config.path(config.task) if config.path(config.task).is_dir() else config.task)
    card = {f.name: getattr(task, f.name) for f in fields(task) if f.name != "system_message"}
    for name, value in card.items():
        if value is not None and value != "":
            print(f"{name:<18} {value}")
    print(f"\n{task.system_message}\n\n{task.seed()}")
    card = {k: str(v) if isinstance(v, Path) else v for k, v in card.items()}
    return {"verb": "tasks show", **card, "system_message": task.system_message, "seed": task.seed()}
