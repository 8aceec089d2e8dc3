"""`eft tasks run TASK [PROGRAM]`: evaluate one program (default: the seed) as a search would. Exit status 1 where it is
not valid; then the reason is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from eft.config import StageConfig
from eft.errors import EftError, UsageError
from eft.records import Validity
from eft.tasks.evaluate import evaluate
from eft.tasks.task import find_task, gap_closed


class Config(StageConfig):
    """Options of `eft tasks run`."""

    positional: ClassVar[str | None] = "what"

    what: list[str] = Field(default_factory=list, description="TASK [PROGRAM]")
    hidden: bool = Field(default=False, description="on the hidden instances, as for a final score")
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = Field(default="auto", description="see docs/sandbox.md")


def inputs(config: Config) -> list[Path]:
    return []


def run(config: Config) -> dict[str, Any]:
    """Print the metrics and logs; returns what --json shows: the evaluation, `gap_closed`, `exit_code`."""
    from eft.tasks import sandbox

    if not 1 <= len(config.what) <= 2:
        raise UsageError("say which task, and which program", way_out="eft tasks run TASK [PROGRAM]")
    name, *program = config.what
    task = find_task(config.path(name) if config.path(name).is_dir() else name)
    level = sandbox.choose(config.sandbox)
    found = evaluate(task, _text(config.path(program[0])) if program else task.seed(), hidden=config.hidden)
    for key, value in found.metrics.items():
        print(f"{key:<18} {value}")
    gap = gap_closed(task, found.raw, config.hidden)
    if gap is not None:
        print(f"{'gap closed':<18} {gap:.4g}  (0: the seed, 1: the best known)")
    print(f"{'seconds':<18} {found.seconds:.3g}\n{'sandbox':<18} {level}, {task.isolation}")
    for key, value in found.artifacts.items():
        print(f"\n{key}:\n{value}")
    return {"verb": "tasks run", "task": task.name, "hidden": config.hidden, "sandbox": sandbox.describe(),
            "isolation": task.isolation, "validity": str(found.validity), "score": found.score, "raw": found.raw,
            "gap_closed": gap, "metrics": found.metrics, "artifacts": found.artifacts, "seconds": found.seconds,
            "exit_code": 0 if found.validity is Validity.VALID else 1}  # fmt: skip


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise EftError("the program is not UTF-8 text", where=file, why=str(e)) from None
    except OSError as e:
        raise UsageError("the program cannot be read", where=file, why=e.strerror) from None
