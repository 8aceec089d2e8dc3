"""The value of a routing policy on the rows of one task: asked row by row in the sandbox, worked out here.

A search maximises the objective minus `caution` standard errors of its difference to the best single model, over blocks
of rows: a rule that pays on one data set only, or on a few lucky rows, then counts little. Raw metric and final score are
the objective itself.

The policy sees states alone (eft/tasks/policy.py); scores and costs stay in this process. A search asks it about made-up
prompts, too (`routing_state.made_up`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from eft.errors import EftError
from eft.loops import routing_metrics as metrics
from eft.loops import routing_state
from eft.records import Validity
from eft.tasks import policy, scoring

AGAIN = 64  # states of an evaluation that are asked twice; all of them for a final score


@dataclass(frozen=True)
class Game:
    """The rows of one side of a split. `scores`, `costs`: (rows, models), models from cheap to dear; `prices`: what a
    dollar weighs, `asked` those at which a policy is asked (all for the metrics of a curve, else the first); `best`: the
    single model that searches start from; `caution`: how many standard errors of the difference to it the score of a
    search takes off; `blocks`: rows that hang together, by number (data sets, where whole ones are
    hidden)."""

    models: tuple[str, ...]
    states: tuple[dict[str, Any], ...]
    scores: np.ndarray
    costs: np.ndarray
    objective: str
    prices: tuple[float, ...]
    best: int = 0
    caution: float = 0.0
    blocks: np.ndarray | None = None

    @classmethod
    def of(cls, rows: dict[str, Any], part: str) -> Game:
        """`rows`: what rows.json holds; `part`: search or hidden."""
        own = rows[part]
        shared = {k: list(rows[k]) for k in ("models", "scores", "costs")}
        states = tuple({**s, **shared} for s in own["states"])
        return cls(tuple(rows["models"]), states, np.array(own["scores"], float), np.array(own["costs"], float),
                   rows["objective"], tuple(rows["prices"]), rows["best"], rows["caution"], np.array(own["blocks"], int))  # fmt: skip

    @property
    def asked(self) -> tuple[float, ...]:
        return self.prices if self.objective in ("aiq", "apgr") else self.prices[:1]

    def same(self, model: int) -> list[np.ndarray]:
        """The choices that send everything to one model."""
        return [np.full(len(self.scores), model)] * len(self.asked)

    def above(self, choices: Sequence[np.ndarray]) -> tuple[float, float]:
        """By how much the choices are above the best single model, and the standard error of that: the jackknife that
        leaves out one block of rows at a time (Efron and Stein, Annals of Statistics 9, 1981)."""

        def difference(game: Game, chosen: Sequence[np.ndarray]) -> float:
            return game.value(chosen) - game.value(game.same(game.best))

        whole = difference(self, choices)
        if self.objective == "share":  # a ratio of sums over rows: the same, without slicing tables
            values = metrics.worth(self.scores, self.costs, self.prices[0])
            gains = values[np.arange(len(values)), choices[0]] - values[:, self.best]
            _, place = np.unique(self.blocks, return_inverse=True)
            part, top = (np.bincount(place, weights=v) for v in (gains, values.max(axis=1)))
            left = top.sum() - top
            return whole, _jackknife(
                100.0 * np.divide(part.sum() - part, left, out=np.zeros_like(left), where=left > 0)
            )
        without = []
        for block in np.unique(self.blocks):
            kept = np.flatnonzero(self.blocks != block)
            part = replace(self, states=(), scores=self.scores[kept], costs=self.costs[kept])
            without.append(difference(part, [c[kept] for c in choices]) if len(kept) else whole)
        return whole, _jackknife(np.array(without))

    def value(self, choices: Sequence[np.ndarray]) -> float:
        """The objective of the choices (model indices by row) made at each of the `asked` prices."""
        points = [metrics.point(self.scores, self.costs, c) for c in choices]
        if self.objective == "share":
            return metrics.share(self.scores, self.costs, choices[0], self.prices[0])
        if self.objective == "arena":
            return metrics.arena(points[0][1], points[0][0])
        weak, strong = self.scores.mean(axis=0)[[0, -1]]
        if self.objective == "apgr":
            calls = [(float((np.asarray(c) == 1).mean()), p[1]) for c, p in zip(choices, points, strict=True)]
            return metrics.apgr(calls, float(weak), float(strong))
        return metrics.aiq(points, *self.span())

    def span(self) -> tuple[float, float]:
        """Mean costs of the cheapest and of the dearest single model."""
        means = self.costs.mean(axis=0)
        return float(means.min()), float(means.max())

    def singles(self) -> list[float]:
        """The objective of every single model."""
        return [self.value(self.same(m)) for m in range(len(self.models))]

    def bound(self) -> float:
        """The objective of the oracle, which knows every score: the upper end. Exact for share, aiq and apgr (on all
        of the oracle's own prices); for arena the best over a ladder of prices."""
        if self.objective == "share":
            return 100.0
        if self.objective == "apgr":
            gain = self.scores[:, 1] - self.scores[:, 0]
            order = np.argsort(-gain, kind="stable")
            weak, strong = (float(v) for v in self.scores.mean(axis=0))
            total = weak + np.cumsum(gain[order]) / len(gain)
            return metrics.apgr([((i + 1) / len(gain), float(q)) for i, q in enumerate(total)], weak, strong)
        ladder = [0.0, *np.geomspace(1e-2, 1e7, 60)]
        points = [metrics.point(self.scores, self.costs, (self.scores - p * self.costs).argmax(axis=1)) for p in ladder]
        if self.objective == "arena":
            return max(metrics.arena(q, c) for c, q in points)
        return metrics.aiq(points, *self.span())

    def told(self, choices: Sequence[np.ndarray]) -> dict[str, float]:
        """Further metrics of the choices, for people: accuracy, mean cost, RouterArena's score."""
        cost, accuracy = metrics.point(self.scores, self.costs, choices[0])
        if not self.costs.any():  # the table has none
            return {"accuracy": accuracy}
        return {"accuracy": accuracy, "cost": cost, "routerarena": metrics.arena(accuracy, cost)}


def _jackknife(without: np.ndarray) -> float:
    """The standard error by the values without one block each."""
    return float(np.sqrt((len(without) - 1) / len(without) * ((without - without.mean()) ** 2).sum()))


def fitness(objective: str, value: float) -> float:
    """The score that searches maximise: above 0 for every valid policy, 1 at a raw value of 0."""
    return max(value / 100.0 if objective == "share" else value, -0.99) + 1.0


@lru_cache(maxsize=64)
def _game(file: Path, changed: int, part: str) -> Game:
    try:
        return Game.of(json.loads(file.read_text(encoding="utf-8")), part)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise EftError("the rows of this routing task cannot be read", where=file, why=f"{type(e).__name__}: {e}",
                       way_out="remove the folder and run the same command again") from None  # fmt: skip


def game(folder: Path, hidden: bool = False) -> Game:
    """The rows of a task folder. Raises EftError where they cannot be read."""
    file = folder / "rows.json"
    try:
        changed = file.stat().st_mtime_ns
    except OSError as e:
        raise EftError("the rows of this routing task cannot be read", where=file, why=str(e.strerror)) from None
    return _game(file, changed, "hidden" if hidden else "search")


def _made_up(rows: Game) -> list[dict[str, Any]]:
    """Prompts that no row holds, of a data set that nobody has heard of: their answers must be names, and count for nothing."""
    first = rows.states[0]
    known = {k: v for k, v in first.items() if k in ("models", "scores", "costs")} | {"price": rows.asked[0]}
    return [{**state, **known, **({"name": "made-up"} if "name" in first else {})} for state in routing_state.made_up()]


def evaluate(program_path: str | Path, folder: Path, hidden: bool = False) -> scoring.Scored:
    """The objective as the raw metric; a failed policy with its reason. Never raises for anything that it does."""
    try:
        code = Path(program_path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return scoring.failed(Validity.ERROR, "the program is not UTF-8 text")
    rows = game(folder, hidden)
    asked = [{**state, "price": price} for price in rows.asked for state in rows.states]
    if not hidden:
        asked += _made_up(rows)
    found = policy.ask(code, asked, rows.models, again=None if hidden else AGAIN)
    if found.validity is not Validity.VALID:
        return scoring.failed(found.validity, found.error, found.stderr)
    place = {name: i for i, name in enumerate(rows.models)}
    names = found.names[: len(rows.asked) * len(rows.states)]
    chosen = np.array([place[name] for name in names]).reshape(len(rows.asked), len(rows.states))
    choices = list(chosen)
    value = rows.value(choices)
    above, error = rows.above(choices)
    cautious = value if hidden else value - rows.caution * error
    known = {"combined_score": fitness(rows.objective, cautious), rows.objective: value, **rows.told(choices),
             "validity": 1.0}  # fmt: skip
    counts = np.bincount(chosen[0], minlength=len(rows.models))
    used = ", ".join(f"{m}: {n}" for m, n in zip(rows.models, counts.tolist(), strict=True) if n)
    told = f"prompts by model: {used}; above the best single model by {above:.3g} (standard error {error:.2g})"
    return scoring.Scored(known, {"routed": told} | ({"stderr": found.stderr} if found.stderr else {}))
