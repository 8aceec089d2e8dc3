"""The routing loop: policies that choose which model answers a prompt, or which mutator takes a search's next step.

A genome is a Python policy `route(state) -> name`, run in the sandbox (eft/tasks/policy.py). Two settings:

- query routing, on a table of scores and costs per prompt and model (routing_table.py): one task for every split of it
  (routing_task.py), the value by the metrics of the field (routing_metrics.py);
- which mutator takes this step, on recorded searches of several mutators (routing_steps.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from eft import config as configs
from eft.loops import routing_table, routing_task
from eft.tasks.task import Task

PRICES = (0.0, 10.0, 50.0, 150.0, 500.0, 2000.0, 10000.0)  # of the metrics of a whole curve


class Section(configs.Section):
    """Options of the loop `routing`."""

    table: Path | None = Field(
        None, description="scores and costs: RouterBench's csv, parquet or pickle; LLMRouter's json"
    )
    models: list[str] = Field(
        default_factory=list, description="only these models of the table; apgr: the weak, the strong"
    )
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
    seed: int = Field(0, description="decides the splits")

    @field_validator("sweep")
    @classmethod
    def _prices(cls, value: list[float]) -> list[float]:
        if any(p < 0 for p in value) or len(set(value)) < len(value):
            raise ValueError("prices must be different, and not negative")
        return sorted(value)

    @model_validator(mode="after")
    def _something(self) -> Section:
        if self.table is None:
            raise ValueError("the routing loop needs `table`")
        return self


def tasks(section: Section, *, root: Path, out: Path) -> list[Task]:
    """One task for every split of the table. Raises UsageError and EftError for a table or options that cannot work."""
    file = root / section.table.expanduser()
    table = routing_table.read(file, models=section.models, prices=section.prices)
    prices = section.sweep if section.objective in ("aiq", "apgr") else [section.price]
    found = []
    for number in range(section.splits):
        name = f"{table.name[:40]}-split{number}"
        found.append(routing_task.write(
            table, out / name, name=f"routing/{name}", objective=section.objective, prices=prices, how=section.split,
            by=section.group, hidden=section.hidden, names=section.names, seed=section.seed, number=number,
        ))  # fmt: skip
    return found
