"""The routing loop: policies that choose which model answers a prompt, or which mutator takes a search's next step.

A genome is a Python policy `route(state) -> name`, run in the sandbox (eft/tasks/policy.py). Two settings:

- query routing, on a table of scores and costs per prompt and model (routing_table.py): one task for every split of it
  (routing_task.py), the value by the metrics of the field (routing_metrics.py);
- which mutator takes this step, on recorded searches of several mutators (routing_steps.py).
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from eft import __version__, manifest
from eft import config as configs
from eft.loops import (
    Control,
    routing_controls,
    routing_score,
    routing_step_controls,
    routing_steps,
    routing_table,
    routing_task,
)
from eft.tasks.task import Task

PRICES = (0.0, 10.0, 50.0, 150.0, 500.0, 2000.0, 10000.0)  # of the metrics of a whole curve


class Section(configs.Section, allow_inf_nan=False):
    """Options of the loop `routing`."""

    table: Path | None = Field(
        None, description="scores and costs: RouterBench's csv, parquet or pickle; LLMRouter's json; shipped:mutators"
    )
    models: list[str] = Field(
        default_factory=list, description="only these models of the table; apgr: the weak, the strong"
    )
    rows: int = Field(5000, ge=2, description="at most so many rows of the table, drawn by `seed`")
    prices: dict[str, float] = Field(
        default_factory=dict, description="dollars for a million prompt tokens by model, for a table without costs"
    )
    objective: Literal["share", "arena", "aiq", "apgr"] = Field(
        "share", description="share: Frontier-CS's score in percent of the oracle; arena: RouterArena; aiq: RouterBench;"
        " apgr: RouteLLM",
    )  # fmt: skip
    price: float = Field(150.0, ge=0, description="accuracy that a dollar of mean cost takes off (share)")
    sweep: list[float] = Field(list(PRICES), min_length=2, description="prices that a policy is asked at (aiq, apgr)")
    splits: int = Field(5, ge=1, description="random splits into search rows and hidden rows, a task each")
    split: Literal["across", "within"] = Field(
        "across", description="across: whole data sets are hidden; within: rows of every data set are"
    )
    group: Literal["name", "family"] = Field(
        "name", description="what counts as a data set: its name, or the name's head"
    )
    hidden: float = Field(0.4, gt=0, lt=1, description="share of the rows that only the final score sees")
    names: bool = Field(False, description="is the policy told the data set's name, which gives much away?")
    caution: float = Field(
        0.5, ge=0, description="standard errors that a search's score takes off what is above the best single model"
    )
    seed: int = Field(0, description="decides the splits")
    routers: list[Literal["logistic", "knn"]] = Field(
        list(routing_controls.LEARNED), description="learned routers among the controls (scikit-learn)"
    )

    @field_validator("sweep")
    @classmethod
    def _prices(cls, value: list[float]) -> list[float]:
        if any(p < 0 for p in value) or len(set(value)) < len(value):
            raise ValueError("prices must be different, and not negative")
        return sorted(value)

    searches: Path | None = Field(
        None, description="recorded searches of several mutators: the output of eft evaluate, or transitions.parquet"
    )
    mutators: list[str] = Field(default_factory=list, description="only these mutators of the recorded searches")
    budget: int | None = Field(None, ge=1, description="steps of a game; default: as many as the longest search")
    plays: int = Field(4, ge=1, description="games on every recorded task")
    step_price: float = Field(
        0.0, ge=0, description="share of the way to the best recorded score that a second of asking costs"
    )

    @model_validator(mode="after")
    def _something(self) -> Section:
        if self.table is None and self.searches is None:
            raise ValueError("the routing loop needs `table`, `searches`, or both")
        return self


def tasks(section: Section, *, root: Path, out: Path) -> list[Task]:
    """One task for every split of the table and of the recorded searches. Raises UsageError and EftError for a table,
    searches or options that cannot work."""
    found = _query_tasks(section, root, out) if section.table else []
    for number in range(section.splits if section.searches else 0):
        found.append(routing_steps.write(
            root / section.searches.expanduser(), out / f"steps-split{number}", name=f"routing/steps-split{number}",
            mutators=section.mutators, budget=section.budget, plays=section.plays, hidden=section.hidden,
            price=section.step_price, seed=section.seed, number=number,
        ))  # fmt: skip
    return found


def _query_tasks(section: Section, root: Path, out: Path) -> list[Task]:
    if section.routers:
        routing_controls.check()
    table = routing_table.read(routing_table.locate(section.table, root), models=section.models, prices=section.prices)
    if len(table) > section.rows:
        drawn = random.Random(section.seed).sample(range(len(table)), section.rows)
        table = table.rows(sorted(drawn))
    prices = section.sweep if section.objective in ("aiq", "apgr") else [section.price]
    found = []
    for number in range(section.splits):
        name = f"{table.name[:40]}-split{number}"
        found.append(routing_task.write(
            table, out / name, name=f"routing/{name}", objective=section.objective, prices=prices, how=section.split,
            by=section.group, hidden=section.hidden, names=section.names, seed=section.seed, number=number,
            caution=section.caution,
        ))  # fmt: skip
    return found


def controls(
    section: Section, task: Task, *, root: Path, out: Path, evaluations: int, seeds: Sequence[int]
) -> list[Control]:  # fmt: skip
    """What other routers reach on the task's rows, each once for every seed; kept in out/controls.

    None of them searches, so `evaluations` does not bound them.
    """
    file = out / "controls" / f"{task.folder.name}.json"
    rows = task.folder / "rows.json"
    key = [__version__, manifest.file_hash(rows), list(seeds), list(section.routers)]
    if (known := _kept(file, key)) is not None:
        return known
    told = json.loads(rows.read_text(encoding="utf-8"))
    if "plays" in told:
        boards = (routing_steps.board(task.folder), routing_steps.board(task.folder, hidden=True))
        found = routing_step_controls.all_of(*boards, seeds, task.seed_raw)
    else:
        groups = (told["search"]["groups"], told["hidden"]["groups"])
        sides = (routing_score.game(task.folder), routing_score.game(task.folder, hidden=True))
        found = routing_controls.all_of(*sides, groups, seeds, task.seed_raw, section.routers)
    manifest.write_json(file, {"key": key, "controls": [dataclasses.asdict(c) for c in found]})
    return found


def _kept(file: Path, key: list[Any]) -> list[Control] | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return [Control(**{**c, "curve": tuple(c["curve"])}) for c in data["controls"]] if data["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
