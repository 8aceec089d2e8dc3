"""A task: what a search starts from and is scored by. A folder in OpenEvolve's format, read by `load_task`.

    initial_program.py      the seed, its free part between # EVOLVE-BLOCK-START and # EVOLVE-BLOCK-END
    evaluator.py            evaluate(program_path) -> dict with `combined_score` (higher is better) and the raw metric
    config.yaml             a valid OpenEvolve configuration; its extra block `task:` (which OpenEvolve ignores) is
    `Card`

A task with instances keeps other instances of the same distribution for the final score: its evaluator is
`evaluate(program_path, hidden=False)`, and OpenEvolve, which calls `evaluate(path)`, never sees them.

Any OpenEvolve task folder is a task here: without a `task:` block it runs `contained` (evaluator and candidate together
in the sandbox), its raw metric is the score itself, and nothing is known about the best value.
"""

from __future__ import annotations

import ast
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eft.errors import EftError, UsageError, nearest
from eft.syntax import parse_python

SHIPPED = Path(__file__).parent
LANGUAGES = {
    ".py": "python", ".cpp": "cpp", ".cc": "cpp", ".c": "c", ".rs": "rust", ".r": "r", ".js": "javascript",
    ".yaml": "yaml",
}  # fmt: skip


class Card(BaseModel):
    """The `task:` block of config.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = Field(default=None, description="defaults to <domain>/<folder>")
    domain: str = ""
    family: str | None = Field(default=None, description="tasks of one family never serve two roles; default: the name")
    raw_metric: str | None = Field(default=None, description="the metric to report; default: the score key")
    direction: Literal["max", "min"] = "max"
    best_known: float | None = Field(default=None, description="of the raw metric")
    best_known_source: str = ""
    seed_raw: float | None = Field(default=None, description="the initial program's raw metric")
    seed_score: float | None = Field(default=None, description="the initial program's score")
    hidden_seed_raw: float | None = Field(default=None, description="the initial program's, on the hidden instances")
    hidden_best_known: float | None = Field(default=None, description="the best program's, on the hidden instances")
    score_key: str = "combined_score"
    timeout_s: float = Field(default=60.0, gt=0)
    isolation: Literal["isolated", "contained"] = "contained"


@dataclass(frozen=True)
class Task:
    """One task. `score_key` is what the search maximises; `raw_metric` with its `direction` is what reports show."""

    name: str
    domain: str
    family: str
    folder: Path
    initial_program: Path
    evaluator: Path
    language: str
    raw_metric: str
    direction: Literal["max", "min"]
    best_known: float | None
    best_known_source: str
    seed_score: float | None
    seed_raw: float | None
    score_key: str
    timeout_s: float  # wall seconds of one evaluation
    isolation: Literal["isolated", "contained"]
    system_message: str
    has_hidden: bool = False  # does the evaluator take `hidden`?
    hidden_seed_raw: float | None = None
    hidden_best_known: float | None = None

    def seed(self) -> str:
        """The text of the initial program."""
        try:
            return self.initial_program.read_text(encoding="utf-8")
        except UnicodeDecodeError as e:
            raise EftError("the initial program is not UTF-8 text", where=self.initial_program, why=str(e)) from None


def load_task(folder: Path | str) -> Task:
    """Read a task folder. Raises EftError where it is not one: what is missing or wrong, in which file."""
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise EftError("there is no such task folder", where=folder)
    _refuse_links(folder)
    evaluator = folder / "evaluator.py"
    if not evaluator.is_file():
        raise EftError("this task has no evaluator", where=folder, why="a task folder needs evaluator.py",
                       way_out="write evaluator.py with evaluate(program_path) -> dict")  # fmt: skip
    programs = [p for p in sorted(folder.glob("initial_program.*")) if p.suffix in LANGUAGES]
    if not programs:
        raise EftError("this task has no initial program", where=folder,
                       why=f"a task folder needs initial_program{{{','.join(LANGUAGES)}}}")  # fmt: skip
    if len(programs) > 1:
        raise EftError(
            "this task has more than one initial program", where=folder, why=", ".join(p.name for p in programs)
        )
    card, system_message = _read_config(folder / "config.yaml")
    name = card.name or (f"{card.domain}/{folder.name}" if card.domain else folder.name)
    return Task(
        name=name,
        domain=card.domain,
        family=card.family or name,
        folder=folder,
        initial_program=programs[0],
        evaluator=evaluator,
        language=LANGUAGES[programs[0].suffix],
        raw_metric=card.raw_metric or card.score_key,
        direction=card.direction,
        best_known=card.best_known,
        best_known_source=card.best_known_source,
        seed_score=card.seed_score,
        seed_raw=card.seed_raw if card.raw_metric else card.seed_score,
        score_key=card.score_key,
        timeout_s=card.timeout_s,
        isolation=card.isolation,
        system_message=system_message,
        has_hidden=_takes_hidden(evaluator),
        hidden_seed_raw=card.hidden_seed_raw,
        hidden_best_known=card.hidden_best_known,
    )


def _takes_hidden(evaluator: Path) -> bool:
    """Has `evaluate` a parameter `hidden`? Read from the text: a foreign evaluator is never imported here."""
    tree = parse_python(evaluator.read_bytes())
    if tree is None:  # said when it is used
        return False
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "evaluate"]
    return any(a.arg == "hidden" for f in functions for a in (*f.args.args, *f.args.kwonlyargs))


def _refuse_links(folder: Path) -> None:
    """A task is what lies in its folder: a link could make any file of this machine its program, sent to a model."""
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            if path.is_symlink() and not path.resolve().is_relative_to(folder):
                raise EftError("this task folder has a link out of it", where=path, why=f"it leads to {path.resolve()}",
                               way_out="put a copy of the file into the folder")  # fmt: skip


def _read_config(file: Path) -> tuple[Card, str]:
    """(the task block, the system message) of an OpenEvolve config; a missing file gives the defaults."""
    if not file.is_file():
        return Card(), ""
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{file}, line {mark.line + 1}" if mark else file
        raise EftError("the task's config is not valid YAML", where=where, why=getattr(e, "problem", str(e))) from None
    except (OSError, UnicodeDecodeError) as e:
        raise EftError("the task's config cannot be read", where=file, why=str(e)) from None
    if not isinstance(data, dict):
        raise EftError("the task's config must hold a mapping", where=file, why=f"it holds a {type(data).__name__}")
    block = data.get("task") or {}
    if not isinstance(block, dict):
        raise EftError("the `task:` block must be a mapping", where=file, why=f"it is a {type(block).__name__}")
    try:
        card = Card.model_validate(block)
    except ValidationError as e:
        lines = []
        for error in e.errors():
            key = ".".join(str(p) for p in error["loc"])
            hint = nearest(key, Card.model_fields) if error["type"] == "extra_forbidden" else error["msg"]
            lines.append(f"task.{key}: {hint}")
        raise EftError("the `task:` block is not valid", where=file, why="; ".join(lines)) from None
    for key in ("best_known", "hidden_best_known", "seed_raw", "hidden_seed_raw", "seed_score"):
        if (value := getattr(card, key)) is not None and not math.isfinite(value):
            why = f"{key} must be a finite number, or left out"
            raise EftError("the `task:` block is not valid", where=file, why=why)
    prompt = data.get("prompt")
    message = prompt.get("system_message", "") if isinstance(prompt, dict) else ""
    return card, message if isinstance(message, str) else ""


@cache
def shipped() -> dict[str, Path]:
    """Name -> folder of the tasks that come with this package (<domain>/<task>/), by name."""
    folders = sorted(p.parent for p in SHIPPED.glob("*/*/evaluator.py"))
    return {f"{f.parent.name}/{f.name}": f for f in folders}


@cache
def _load_shipped(name: str) -> Task:
    return load_task(shipped()[name])


def find_task(name: str | Path) -> Task:
    """A shipped task by its name (`domain/task`, or just `task`), else the task folder of that path.

    Raises UsageError, naming the nearest task, where there is neither.
    """
    text = str(name)
    if text in shipped():
        return _load_shipped(text)
    short = [n for n in shipped() if n.split("/")[1] == text]
    if len(short) == 1:
        return _load_shipped(short[0])
    if Path(text).is_dir():
        return load_task(text)
    raise UsageError(f"there is no task '{text}'", why="no shipped task has this name, and it is no folder",
                     way_out=nearest(text, shipped()))  # fmt: skip


def gap_closed(task: Task, raw: float | None, hidden: bool = False) -> float | None:
    """Share of the way from the seed to the best known value: 0 at the seed, 1 at the best known, above 1 beyond it.

    `hidden`: `raw` was measured on the hidden instances (where the task declares their values; else on the same scale).
    Works for both directions. None where a value is unknown or not finite, or where the seed is already the best known.
    """
    seed, best = task.seed_raw, task.best_known
    if hidden and task.hidden_seed_raw is not None and task.hidden_best_known is not None:
        seed, best = task.hidden_seed_raw, task.hidden_best_known
    if raw is None or best is None or seed is None or not math.isfinite(raw):
        return None
    return (raw - seed) / (best - seed) if best != seed else None
