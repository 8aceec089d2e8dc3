"""What a merge is compared with: the best parent, the uniform average, random recipes, and CMA-ES (package `cma`).

All of them are scored by the same worker on the same rows, with as many evaluations as a search has. Choices are made on
the search rows; the hidden rows give the final value, the fresh rows the confirmation. Finished scores are on disk, so
that a control costs nothing the second time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from eft.errors import EftError
from eft.loops import Confirmation, Control, merge_client, merge_rows, merge_score
from eft.loops.merge_recipe import METHODS, Recipe, RecipeError, parse, text
from eft.tasks.task import Task

SIGMA = 1 / 6  # first step of CMA-ES, that of mergekit-evolve (docs/evolve.md)
NAMES = {"best_parent": "best parent", "uniform": "uniform average", "random": "random recipes", "cma": "CMA-ES"}


class Asking:
    """Scores of recipes of one merge by their text."""

    def __init__(self, task: Task) -> None:
        self.work, self.plan = merge_client.plan_of(task.folder)
        self.experts = list(self.plan["experts"]["places"])
        self.layers, self.full = self.plan["experts"]["layers"], self.plan["experts"]["full"]
        self.results = merge_score.Results(self.work)

    def parse(self, genome: str) -> Recipe:
        return parse(genome, self.experts, layers=self.layers, full=self.full)

    def score(self, genome: str, split: str) -> dict[str, Any]:
        """{fitness, …} or {error}. Raises EftError where the worker cannot be had."""
        try:
            recipe = self.parse(genome)
        except RecipeError as e:
            return {"error": str(e)}
        known = self.results.get(recipe, split)
        return known if known is not None else merge_client.ask(self.work, genome, split)

    def fitness(self, genome: str, split: str) -> float | None:
        """The fitness; None for a recipe that failed."""
        return self.score(genome, split).get("fitness")

    def parents(self) -> dict[str, str]:
        """alias -> the recipe that is this expert alone."""
        return {alias: text("linear", {alias: 1.0}) for alias in self.experts}

    def uniform(self) -> str:
        return text("linear", dict.fromkeys(self.experts, 1 / len(self.experts)))

    def best_parent(self) -> str:
        """The recipe of the expert that is best on the search rows. Raises EftError where none has a score."""
        found = [(f, alias) for alias, genome in self.parents().items() if (f := self.fitness(genome, "search")) is not None]
        if not found:
            raise EftError("no expert of this merge has a score", where=self.work, why=str(self.score(self.uniform(), "search"))[:200])
        return self.parents()[max(found)[1]]


def run(section: Any, task: Task, *, evaluations: int, seeds: Sequence[int]) -> list[Control]:
    """The section's controls, one for each seed."""
    asking = Asking(task)
    start = asking.fitness(task.seed(), "search")
    found = []
    for name in section.controls:
        for seed in seeds:
            if name in ("best_parent", "uniform"):
                genome = asking.best_parent() if name == "best_parent" else asking.uniform()
                value, spent = asking.fitness(genome, "search"), len(asking.experts) if name == "best_parent" else 1
                found.append(Control(NAMES[name], seed, asking.fitness(genome, "hidden"), (start, value), spent))
                continue
            curve, best = climb(asking, task.seed(), start, evaluations, (_random if name == "random" else _cma)(section, asking, seed))
            found.append(Control(NAMES[name], seed, asking.fitness(best, "hidden"), tuple(curve), len(curve) - 1))
    return found


Proposals = Iterator[tuple[str, Callable[[float | None], None]]]


def climb(asking: Asking, first: str, start: float | None, evaluations: int, proposals: Proposals) -> tuple[list[float | None], str]:
    """(best fitness so far after 0, 1, … evaluations, the best recipe) of proposals; each is told its fitness."""
    best, value, curve = first, start, [start]
    for _ in range(evaluations):
        genome, tell = next(proposals)
        found = asking.fitness(genome, "search")
        tell(found)
        if found is not None and (value is None or found > value):
            best, value = genome, found
        curve.append(value)
    return curve, best


def _random(section: Any, asking: Asking, seed: int) -> Proposals:
    """Methods at random; weights uniform on [0, 1], by group of layers; densities on [0.2, 1]."""
    rng = random.Random(f"random recipes {seed}")
    groups = max(1, min(section.groups, asking.layers))
    able = [m for m in ("linear", "task_arithmetic", "ties", "dare_linear", "dare_ties") if not section.methods or m in section.methods]
    while True:
        method = rng.choice(able or ["linear"])
        settings: dict[str, Any] = {}
        for alias in asking.experts:
            drawn = [round(rng.random(), 4) for _ in range(groups)]
            settings[alias] = {"weight": drawn if groups > 1 else drawn[0]}
            if "density" in METHODS[method].per_model:
                settings[alias]["density"] = round(rng.uniform(0.2, 1.0), 4)
        yield text(method, settings), lambda fitness: None


def _cma(section: Any, asking: Asking, seed: int) -> Proposals:
    """CMA-ES over the experts' weights by group of layers, the differences added up (task arithmetic)."""
    import cma

    groups = max(1, min(section.groups, asking.layers))
    size = len(asking.experts) * groups
    options = {"seed": seed + 1, "verbose": -9, "bounds": [-5.0, 5.0]}  # a seed of 0 would mean the clock
    strategy = cma.CMAEvolutionStrategy([1 / len(asking.experts)] * size, SIGMA, options)
    while True:
        points = strategy.ask()
        losses: list[float] = []
        for point in points:
            weights = {alias: [round(float(x), 6) for x in point[i * groups : (i + 1) * groups]]
                       for i, alias in enumerate(asking.experts)}  # fmt: skip
            genome = text("task_arithmetic", {a: w if groups > 1 else w[0] for a, w in weights.items()})
            yield genome, lambda fitness, losses=losses: losses.append(1e9 if fitness is None else -fitness)
        strategy.tell(points, losses)


def confirm(section: Any, task: Task, program: str) -> list[Confirmation]:
    """`program` against the best parent and the uniform average on the fresh rows."""
    asking = Asking(task)
    return [
        against(asking, program, genome, name, section.auc_weight)
        for name, genome in (("best parent", asking.best_parent()), ("uniform average", asking.uniform()))
    ]


def against(asking: Asking, program: str, reference: str, name: str, auc_weight: float, split: str = "fresh") -> Confirmation:
    """One recipe against another on a set of rows, with a paired 95 % interval where the fitness is by rows."""
    one, other = asking.score(program, split), asking.score(reference, split)
    told = [r.get("fitness") for r in (one, other)]
    if None in told:
        return Confirmation(name, told[0], told[1], None, None, None, 0, "fresh rows", one.get("error") or other.get("error", ""))
    if "values" not in one or "values" not in other:
        return Confirmation(name, told[0], told[1], told[0] - told[1], None, None, 0, "fresh rows", "the fitness has no values by row")
    rows = merge_rows.read(asking.work / merge_score.ROWS)[split]
    difference, low, high = merge_rows.interval(rows, one["values"], other["values"], auc_weight)
    tasks = len({r.task for r in rows})
    return Confirmation(name, told[0], told[1], difference, low, high, len(rows), f"rows of {tasks} tasks, tasks and programs drawn")

