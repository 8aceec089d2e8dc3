"""`eft tasks validate TASK…`: does a task run, is it deterministic and bounded, does it withstand the attacks, can a
mutator move it? Exit status 1 where a check fails. The checks are described in eft/tasks/validate.py; this verb lives
beside the `ast` mutator because a task is only fit for a search if that one can improve it.

    eft tasks validate my_task/                    a folder in OpenEvolve's format
    eft tasks validate circle_packing knapsack     shipped tasks by name
    eft tasks validate --suite standard            all tasks of a suite
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from eft.config import StageConfig
from eft.errors import EftError, UsageError
from eft.mutators import ast_edits, text_edits
from eft.tasks.suite import ROLES, load_suite
from eft.tasks.task import find_task
from eft.tasks.validate import Check, Report, validate

_SIGNS = {True: "ok", False: "FAILED", None: "-"}


class Config(StageConfig):
    """Options of `eft tasks validate`."""

    positional: ClassVar[str | None] = "task"

    task: list[str] = Field(default_factory=list, description="task folders, or names of shipped tasks")
    suite: str | None = Field(default=None, description="all tasks of this suite")
    repeats: int = Field(default=5, ge=2, description="runs of the seed, for the noise floor")
    mutations: int = Field(default=60, ge=0, description="random edits of the seed; 0: none")
    attacks: bool = Field(default=True, description="throw the attacks at it")
    ends: bool = Field(default=True, description="also the attacks that run into a limit (seconds each)")
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = Field(default="auto", description="see docs/sandbox.md")


def inputs(config: Config) -> list[Path]:
    return []


def run(config: Config) -> dict[str, Any]:
    """Print the checks of each task; returns {verb, sandbox, tasks: [report], exit_code}."""
    from eft.tasks import sandbox

    names = list(config.task)
    if config.suite is not None:
        suite = load_suite(config.suite)
        names += [name for role in ROLES for name in getattr(suite, role)]
    if not names:
        raise UsageError("no task was named", way_out="eft tasks validate FOLDER, or --suite standard")
    level = sandbox.choose(config.sandbox)
    reports = []
    for name in names:
        report = _validate(name, config)
        reports.append(report)
        _print(report)
    bad = [r.task for r in reports if not r.ok]
    print(f"\n{len(reports) - len(bad)} of {len(reports)} tasks are fit; sandbox: {level}")
    return {"verb": "tasks validate", "sandbox": sandbox.describe(), "tasks": [r.as_dict() for r in reports],
            "exit_code": 1 if bad else 0}  # fmt: skip


def _validate(name: str, config: Config) -> Report:
    """A task that cannot even be loaded is a report too, so that the others are still looked at."""
    try:
        task = find_task(config.path(name) if config.path(name).is_dir() else name)
        return validate(task, propose, repeats=config.repeats, mutations=config.mutations, attack=config.attacks,
                        ends=config.ends)  # fmt: skip
    except UsageError:
        raise
    except EftError as e:
        return Report(name, "unknown", (Check("loads", False, str(e)),))


def propose(code: str, rng: random.Random, language: str) -> str | None:
    """One random edit by the `ast` mutator; None for a language that it does not know."""
    if language == "python":
        change = ast_edits.propose(code, rng)
    else:
        change = next(text_edits.stream(code, rng, language), None) if language in text_edits.LANGUAGES else None
    return None if change is None else change.child


def _print(report: Report) -> None:
    print(f"{report.task} ({report.isolation}): {'ok' if report.ok else 'NOT FIT'}")
    for check in report.checks:
        text = check.text.replace("\n", "\n" + " " * 20)
        print(f"  {check.name:<9}{_SIGNS[check.ok]:<8} {text}", flush=True)
