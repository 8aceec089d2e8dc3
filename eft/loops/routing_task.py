"""Task folders for query routing: one for every split of a table, with a policy to improve.

    rows.json            what the evaluator knows: the states of the search rows and the hidden rows, scores and costs
    initial_program.py   a policy that sends everything to the model that is best on the search rows, by tiers of price
                         that an edit can move for one kind of prompts
    evaluator.py         routing_score.evaluate

Splits. `across`: whole data sets are hidden, so a policy must carry over to data sets that the search has not seen.
`within`: the rows of every data set are shared out. Search rows and hidden rows never overlap; the same seed and number
give the same split.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from eft.errors import EftError, UsageError
from eft.loops import routing_score
from eft.loops.folders import write_task
from eft.loops.routing_state import facts
from eft.loops.routing_table import Table, family
from eft.tasks.task import Task

EVALUATOR = '''"""Routing prompts to models. Written by eft (eft/loops/routing_task.py)."""

from pathlib import Path

from eft.loops import routing_score


def evaluate(program_path, hidden=False):
    return routing_score.evaluate(program_path, Path(__file__).parent, hidden)
'''

SEED = '''# EVOLVE-BLOCK-START
# Tiers: places in state["models"], which stand from cheap to dear.
CHOICES_TIER = {tier}
FOREIGN_TIER = {tier}
CODE_TIER = {tier}
MATH_TIER = {tier}
LONG_TIER = {tier}
SHORT_TIER = {tier}
LONG = 120  # words
FOREIGN = 0.3  # share of letters


def route(state):
    """The name of the model that answers this prompt."""
    if state["choices"] >= 2:
        tier = CHOICES_TIER
    elif state["foreign"] > FOREIGN:
        tier = FOREIGN_TIER
    elif state["code"] > 0:
        tier = CODE_TIER
    elif state["math"] > 0:
        tier = MATH_TIER
    elif state["words"] > LONG:
        tier = LONG_TIER
    else:
        tier = SHORT_TIER
    models = state["models"]
    return models[max(0, min(len(models) - 1, round(tier)))]
# EVOLVE-BLOCK-END
'''

# A policy that is asked at several prices should spend less where a dollar weighs more.
SEED_BY_PRICE = SEED.replace(
    """    models = state["models"]
""",
    """    models = state["models"]
    if state["price"] > DEAR:
        tier = tier - STEP
""",
).replace("LONG = 120", "DEAR = {dear}  # a dollar of mean cost weighs so much accuracy\nSTEP = {step}\nLONG = 120")

FAMILY_ROWS = 8  # search rows of a family that has a tier of its own where policies are told names

MESSAGE = """Write a policy that routes prompts to language models. route(state) returns the name of the model that \
answers, one of state["models"], which stand from cheap to dear. state["scores"] and state["costs"] are the models' mean \
scores and costs in dollars on past prompts, in the same order; state["price"] is what a dollar counts in units of \
accuracy. About the prompt: prompt, length, words, lines, choices (lines like "A) ..."), digits, capitals, foreign (shares), \
questions, code, math (how many places look like it){name}. {goal} It is asked about every prompt by itself, must be a \
function of the state alone, and may import math, re and the like, nothing that reads files."""

GOALS = {
    "share": "The more right answers and the fewer dollars the better: accuracy - price * mean cost counts.",
    "arena": "Accuracy and low cost count (RouterArena's score).",
    "aiq": "It is asked at several prices, and the area under its curve of quality over cost counts.",
    "apgr": "It is asked at several prices, and how early it recovers the gap between the weak and the strong model counts.",
}


def groups_of(table: Table, by: str) -> list[str]:
    """The group of every row: its data set, or the data set's family (the name up to its first - or _). Rows of a table
    that names no data sets are groups of their own."""
    names = [g or f"row {i}" for i, g in zip(table.ids, table.groups, strict=True)]
    return names if by == "name" else [family(n) for n in names]


def split(groups: Sequence[str], how: str, hidden: float, seed: int, number: int) -> tuple[list[int], list[int]]:
    """(search rows, hidden rows), both sorted: the `number`-th split of `seed`. Raises EftError where one side of it
    would be empty."""
    rng = random.Random(f"{seed}:{number}:{how}")
    rows: dict[str, list[int]] = {}
    for i, g in enumerate(groups):
        rows.setdefault(g, []).append(i)
    away: list[int] = []
    if how == "across":
        order = sorted(rows)
        rng.shuffle(order)
        goal = hidden * len(groups)
        for g in order:  # what does not fit is left to the search; a set larger than the goal is never hidden
            if len(away) + len(rows[g]) <= goal + 0.02 * len(groups):
                away += rows[g]
    else:
        for g in sorted(rows):
            own = list(rows[g])
            rng.shuffle(own)
            away += own[: int(len(own) * hidden + rng.random())]
    kept = sorted(set(range(len(groups))) - set(away))
    if not away or not kept:
        raise EftError("this table cannot be split", why=f"all rows would be on one side ({how}, hidden {hidden:g})",
                       way_out="use split: within, or another share of hidden rows")  # fmt: skip
    return kept, sorted(away)


def blocks(groups: Sequence[str] | None, count: int) -> list[int]:
    """The block of every row: its group, or, where rows do not hang together, one of 20 by turns."""
    if groups is None:
        return [i % 20 for i in range(count)]
    places = {g: i for i, g in enumerate(sorted(set(groups)))}
    return [places[g] for g in groups]


def seed_program(best: int, prices: Sequence[float], names: Sequence[str]) -> str:
    """The policy that sends everything to the model at place `best`. `prices`: those it is asked at, where there are
    several; `names`: the data sets of the search rows, where a policy is told them."""
    program = SEED_BY_PRICE if prices else SEED
    heads = [family(n) for n in names]
    common = sorted({h for h in heads if heads.count(h) >= FAMILY_ROWS})
    if common:
        places = {h: f"OF_{re.sub(r'[^A-Za-z0-9]', '_', h).upper()}_TIER" for h in common}
        constants = "".join(f"{place} = {{tier}}\n" for place in dict.fromkeys(places.values()))
        branches = "".join(f"    elif name.startswith({h!r}):\n        tier = {places[h]}\n" for h in common)
        program = program.replace("LONG = 120", constants + "LONG = 120", 1)
        program = program.replace('    if state["choices"]', branches.replace("    elif", '    name = state["name"]\n    if', 1)
                                  + '    elif state["choices"]')  # fmt: skip
    program = program.replace("{tier}", str(best))
    # At first the best single model at every price: the step starts at nothing.
    middle = sorted(prices)[len(prices) // 2] if prices else 0.0
    return program.replace("{dear}", f"{middle:g}").replace("{step}", "0.0")


def write(
    table: Table, folder: Path, *, name: str, objective: str, prices: Sequence[float], how: str, by: str, hidden: float,
    names: bool, seed: int, number: int, caution: float = 0.5,
) -> Task:  # fmt: skip
    """The task of one split. Nothing is written where the folder holds it already.

    `prices`: the weight of a dollar, of which the first is the one that counts for `share` and `arena`; `names`: is the
    data set's name part of the state? Raises what `split` raises, UsageError for an objective that the table has no
    numbers for.
    """
    if objective != "share" and not table.priced:
        raise UsageError(f"the objective '{objective}' needs costs", where=table.name,
                         why="this table has none", way_out="give `prices`, or objective: share")  # fmt: skip
    if objective == "apgr" and len(table.models) != 2:
        raise UsageError("apgr is about two models", where=table.name, why=f"there are {len(table.models)}",
                         way_out="name the weak and the strong one under `models`")  # fmt: skip
    search, away = split(groups_of(table, by), how, hidden, seed, number)
    seen = table.rows(search)
    order = np.lexsort((seen.scores.mean(axis=0), seen.costs.mean(axis=0)))  # by cost, then by score
    table, seen = (t.only([table.models[i] for i in order]) for t in (table, seen))
    means = {"scores": [round(float(v), 4) for v in seen.scores.mean(axis=0)],
             "costs": [float(f"{v:.4g}") for v in seen.costs.mean(axis=0)]}  # fmt: skip
    parts = {}
    for part, rows in (("search", search), ("hidden", away)):
        own = table.rows(rows)
        states = [facts(p) | ({"name": g} if names else {}) for p, g in zip(own.prompts, own.groups, strict=True)]
        parts[part] = {"ids": own.ids, "groups": own.groups, "states": states, "scores": own.scores.tolist(),
                       "costs": own.costs.tolist(), "blocks": blocks(groups_of(own, by) if how == "across" else None,
                                                                     len(own))}  # fmt: skip
    rows: dict[str, Any] = {
        "models": table.models,
        "objective": objective,
        "prices": list(prices),
        "best": 0,
        "caution": caution,
        **means,
        **parts,
    }
    game = {part: routing_score.Game.of(rows, part) for part in ("search", "hidden")}
    for part, g in game.items():
        weak, strong = g.scores.mean(axis=0)[[0, -1]]
        if objective == "apgr" and strong <= weak:  # then more of the gap would be recovered by worse answers
            raise UsageError("apgr needs a dear model that is better than the cheap one", where=f"{table.name}, {part} rows of split {number}",
                             why=f"{table.models[1]} scores {strong:.3g} there, {table.models[0]} {weak:.3g}",
                             way_out="name others under `models`, or split: within")  # fmt: skip
    best = int(np.argmax(game["search"].singles()))
    rows["best"] = best
    values = {part: g.value(g.same(best)) for part, g in game.items()}
    ideal = {part: g.bound() for part, g in game.items()}
    program = seed_program(best, prices if objective in ("aiq", "apgr") else (), seen.groups if names else ())
    card = {
        "name": name, "domain": "routing", "family": f"query routing: {table.name}", "raw_metric": objective,
        "direction": "max", "best_known": ideal["search"], "best_known_source": "the oracle: the best model for every prompt",
        "seed_raw": values["search"], "seed_score": routing_score.fitness(objective, values["search"]),
        "hidden_seed_raw": values["hidden"], "hidden_best_known": ideal["hidden"], "isolation": "isolated",
        "timeout_s": 120.0,
    }  # fmt: skip
    config = {
        "max_iterations": 100, "diff_based_evolution": True, "file_suffix": ".py",
        "prompt": {"system_message": MESSAGE.format(goal=GOALS[objective], name=", name (its data set)" if names else "")},
        "evaluator": {"timeout": 120, "max_retries": 0, "cascade_evaluation": False}, "task": card,
    }  # fmt: skip
    return write_task(folder, {
        "config.yaml": yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120),
        "evaluator.py": EVALUATOR, "initial_program.py": program,
        "rows.json": json.dumps(rows, ensure_ascii=False, allow_nan=False) + "\n",
    })  # fmt: skip
