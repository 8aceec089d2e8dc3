"""Which mutator takes the next step of a search: policies fitted on recorded searches of several mutators.

Read are the searches of an `eft evaluate` (OUT/<mutator>/<task>/<seed>/result.json) or harvested and labelled
transitions (transitions.parquet, mutators by the column `model`). A task of this kind holds out whole tasks: a policy is
searched for on some tasks' recorded steps, and its final score is on the others'. How steps are played again, and what
that assumes, is in routing_replay.py; whether a policy holds in live searches is for `eft evaluate` to say, with a
mutator of kind `routed`.
"""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from eft.errors import EftError, UsageError
from eft.loops import routing_replay as replay
from eft.loops.folders import write_task
from eft.mutators import journal as journals
from eft.mutators import step_state as states
from eft.prompts import current_program
from eft.records import Validity, code_hash, read_transitions
from eft.search.spec import RESULT, SearchResult
from eft.tasks import policy, scoring
from eft.tasks.task import Task

EVALUATOR = '''"""Choosing the mutator of a search's next step. Written by eft (eft/loops/routing_steps.py)."""

from pathlib import Path

from eft.loops import routing_steps


def evaluate(program_path, hidden=False):
    return routing_steps.evaluate(program_path, Path(__file__).parent, hidden)
'''

SEED = '''# EVOLVE-BLOCK-START
# Places in state["mutators"].
FIRST = {arm}
THEN = {arm}
STUCK = {arm}
LAST = {arm}
OPENING = 0.2  # share of the budget
ENDING = 0.8
PATIENCE = 6  # steps without a better program


def route(state):
    """The name of the mutator that takes the next step."""
    done = state["step"] / state["budget"]
    if state["stagnation"] > PATIENCE:
        place = STUCK
    elif done < OPENING:
        place = FIRST
    elif done > ENDING:
        place = LAST
    else:
        place = THEN
    mutators = state["mutators"]
    return mutators[max(0, min(len(mutators) - 1, round(place)))]
# EVOLVE-BLOCK-END
'''

MESSAGE = """Write a policy that chooses which mutator takes the next step of an evolutionary search. route(state) \
returns one of state["mutators"]. The state tells task, domain, size (characters of the program), budget, step, left \
(steps), history (best score after each of the latest steps, 1.0 is the start program), best, stagnation (steps since the \
best rose) and past: by mutator tried, valid, improved, raised, gain, cost (mean seconds), since (steps since it was used). \
What counts is how far the search gets{price}. It is asked before every step, must be a function of the state alone, and may \
import math and the like, nothing that reads files."""

DRIVER = "\n\n".join(
    [inspect.getsource(states).partition("from __future__ import annotations\n")[2]]
    + [inspect.getsource(f) for f in (replay.simulate, replay.outcome, replay.nearest, replay.lot)]
    + ['''
def drive(ask, games):
    return [[simulate(ask, game, number, step_state)[0] for number in range(plays)] for game, plays in games]
''']
)  # fmt: skip


@dataclass
class Recorded:
    """What was recorded of one task. `steps`: by mutator, [before, after or None, cost in seconds, characters]."""

    task: str
    domain: str
    start: float
    steps: dict[str, list[list[Any]]] = field(default_factory=dict)
    longest: int = 0  # steps of the longest search


# ---- reading -----------------------------------------------------------------------------------------------------


def read(source: Path, mutators: Sequence[str] = ()) -> list[Recorded]:
    """The recorded steps by task, with at least two mutators each. Raises UsageError where there are none."""
    if source.is_file():
        found = _transitions(source)
    elif source.is_dir():
        found = _searches(source)
    else:
        raise UsageError("there are no recorded searches", where=source, why="no such file or folder",
                         way_out="give the output of 'eft evaluate', or a transitions.parquet")  # fmt: skip
    kept = []
    for r in found:
        own = {m: s for m, s in r.steps.items() if not mutators or m in mutators}
        if len(own) > 1:
            kept.append(Recorded(r.task, r.domain, r.start, own, r.longest))
    if not kept:
        names = sorted({m for r in found for m in r.steps})
        raise UsageError("a choice needs recorded steps of two mutators on the same task", where=source,
                         why=f"there are steps of {', '.join(names) or 'none'}")  # fmt: skip
    return sorted(kept, key=lambda r: r.task)


def _searches(folder: Path) -> list[Recorded]:
    found: dict[str, Recorded] = {}
    for file in sorted(folder.glob(f"*/*/*/{RESULT}")):
        result = SearchResult.load(file)
        if result.seed_score is None or result.scaffold == "best_of_n":
            continue
        own = found.setdefault(result.task, Recorded(result.task, result.domain, result.seed_score))
        sizes = _sizes(folder / "journal" / f"{result.name}.jsonl")
        steps = own.steps.setdefault(result.mutator, [])
        for c in result.candidates:
            if c.parent_score is None:
                continue
            after = c.score if c.valid_edit else None
            steps.append([c.parent_score, after, round(c.seconds or 0.0, 3), sizes.get(c.parent_hash, 0)])
        own.longest = max(own.longest, result.iterations)
    return list(found.values())


def _sizes(journal: Path) -> dict[str, int]:
    """Characters of the programs that were shown, by their hash; none where there is no journal."""
    if not journal.exists():
        return {}
    sizes = {}
    for record in journals.read(journal):
        user = [m.get("content") for m in record.get("messages") or [] if m.get("role") == "user"]
        program = current_program(user[-1]) if user and isinstance(user[-1], str) else None
        if program is not None:
            sizes[code_hash(program)] = len(program)
    return sizes


def _transitions(file: Path) -> list[Recorded]:
    found: dict[str, Recorded] = {}
    first: dict[str, int] = {}
    runs: dict[tuple[str, str], int] = {}
    for t in read_transitions(file):
        if not t.model or t.parent_score is None:
            continue
        own = found.setdefault(t.task, Recorded(t.task, t.domain, t.parent_score))
        if t.iteration < first.get(t.task, 1 << 60):  # the parent of the first step is the start program
            first[t.task], own.start = t.iteration, t.parent_score
        own.steps.setdefault(t.model, []).append([t.parent_score, t.child_score, 0.0, len(t.parent_code)])
        runs[t.task, t.run] = runs.get((t.task, t.run), 0) + 1
        own.longest = max(own.longest, runs[t.task, t.run])
    if not found:
        raise UsageError("there are no recorded steps", where=file, why="no row has a model and a score of the parent",
                         way_out="run 'eft label' first")  # fmt: skip
    return list(found.values())


# ---- tasks -------------------------------------------------------------------------------------------------------


def games(recorded: Sequence[Recorded], budget: int | None) -> list[dict[str, Any]]:
    """What can be played: tasks on which some recorded step rose above the start."""
    found = []
    for r in recorded:
        tops = [s[1] for steps in r.steps.values() for s in steps if s[1] is not None]
        if not tops or max(tops) <= r.start or not all(r.steps.values()):
            continue
        sizes = [s[3] for steps in r.steps.values() for s in steps if s[3]]
        found.append({
            "task": r.task, "domain": r.domain, "arms": sorted(r.steps), "budget": budget or r.longest, "start": r.start,
            "ceiling": max(tops), "size": sizes[0] if sizes else 0, "steps": {m: r.steps[m] for m in sorted(r.steps)},
        })  # fmt: skip
    return found


def write(
    source: Path, folder: Path, *, name: str, mutators: Sequence[str], budget: int | None, plays: int, hidden: float,
    price: float, seed: int, number: int,
) -> Task:  # fmt: skip
    """The task of one split of the recorded tasks. Raises UsageError where too little is recorded."""
    playable = games(read(source, mutators), budget)
    if len(playable) < 2:
        raise UsageError("two tasks at least are needed: some to search on, some to hold out", where=source,
                         why=f"{len(playable)} of the recorded ones rose above their start")  # fmt: skip
    arms = sorted({a for g in playable for a in g["arms"]})
    if any(g["arms"] != arms for g in playable):
        raise UsageError("not every mutator has steps on every task", where=source,
                         way_out=f"name some of {', '.join(arms)} under `mutators`")  # fmt: skip
    order = random.Random(f"{seed}:{number}").sample(range(len(playable)), len(playable))
    away = set(order[: min(max(1, round(hidden * len(order))), len(order) - 1)])
    parts = {"search": [g for i, g in enumerate(playable) if i not in away],
             "hidden": [g for i, g in enumerate(playable) if i in away]}  # fmt: skip
    rows = {"arms": arms, "plays": plays, "price": price, **parts}
    board = {part: Board.of(rows, part) for part in parts}
    best = int(np.argmax([board["search"].value(lambda state, a=a: a) for a in arms]))
    values = {part: b.value(lambda state: arms[best]) for part, b in board.items()}
    bounds = {part: b.bound() for part, b in board.items()}
    card = {
        "name": name, "domain": "routing", "family": "choice of the mutator", "raw_metric": "gap", "direction": "max",
        "best_known": bounds["search"], "best_known_source": "hindsight: the best mutator of every game, or the greedy clairvoyant",
        "seed_raw": values["search"], "seed_score": fitness(values["search"]), "hidden_seed_raw": values["hidden"],
        "hidden_best_known": bounds["hidden"], "isolation": "isolated", "timeout_s": 120.0,
    }  # fmt: skip
    told = f", minus {price:g} of the whole way for a second of asking" if price else ""
    config = {
        "max_iterations": 100, "diff_based_evolution": True, "file_suffix": ".py",
        "prompt": {"system_message": MESSAGE.format(price=told)},
        "evaluator": {"timeout": 120, "max_retries": 0, "cascade_evaluation": False}, "task": card,
    }  # fmt: skip
    return write_task(folder, {
        "config.yaml": yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120),
        "evaluator.py": EVALUATOR, "initial_program.py": SEED.replace("{arm}", str(best)),
        "rows.json": json.dumps(rows, allow_nan=False) + "\n",
    })  # fmt: skip


def fitness(value: float) -> float:
    """The score that searches maximise: above 0 for every policy that plays."""
    return max(value / 100.0, -0.99) + 1.0


@dataclass(frozen=True)
class Board:
    """The games of one side of a split, each played `plays` times. `price`: share of the way that a second costs."""

    arms: tuple[str, ...]
    games: tuple[dict[str, Any], ...]
    plays: int
    price: float

    @classmethod
    def of(cls, rows: dict[str, Any], part: str) -> Board:
        return cls(tuple(rows["arms"]), tuple(rows[part]), int(rows["plays"]), float(rows["price"]))

    def worth(self, game: dict[str, Any], steps: Sequence[dict[str, Any]]) -> float:
        """Percent of the way from the start to the best recorded score, minus what the seconds of asking cost."""
        return 100.0 * (replay.gap(game, steps) - self.price * sum(s["cost"] for s in steps))

    def value(self, choose: Any) -> float:
        """The mean worth of a chooser (state -> name), which is trusted: it runs in this process."""
        return float(np.mean([
            self.worth(g, replay.simulate(choose, g, k, states.step_state)[1])
            for g in self.games for k in range(self.plays)
        ]))  # fmt: skip

    def bound(self) -> float:
        """What hindsight gets: in every game, the best of each mutator alone and of the greedy clairvoyant, who takes
        the mutator whose next step will gain most. No optimum (that is a search of its own), so a policy can be above."""
        found = []
        for game in self.games:
            for k in range(self.plays):
                alone = [replay.simulate(lambda state, a=a: a, game, k, states.step_state)[1] for a in self.arms]
                found.append(max(self.worth(game, steps) for steps in (*alone, self._foreseen(game, k))))
        return float(np.mean(found))

    def _foreseen(self, game: dict[str, Any], number: int) -> list[dict[str, Any]]:
        """The greedy clairvoyant's steps."""
        best, steps = game["start"], []
        used: dict[str, set[int]] = {a: set() for a in self.arms}
        for _ in range(game["budget"]):
            gains = {}
            for a in self.arms:
                change, cost, _ = replay.outcome(game, number, {a: set(used[a])}, a, best)
                rise = 0.0 if change is None else max(0.0, min(best + change, game["ceiling"]) - best)
                gains[a] = rise / (game["ceiling"] - game["start"]) - self.price * cost
            arm = max(self.arms, key=gains.__getitem__)
            change, cost, _ = replay.outcome(game, number, used, arm, best)
            after = None if change is None else min(best + change, game["ceiling"])
            steps.append({"arm": arm, "before": best, "after": after, "cost": cost})
            best = max(best, after) if after is not None else best
        return steps


def board(folder: Path, hidden: bool = False) -> Board:
    """The games of a task folder. Raises EftError where they cannot be read."""
    file = folder / "rows.json"
    try:
        return Board.of(json.loads(file.read_text(encoding="utf-8")), "hidden" if hidden else "search")
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise EftError("the recorded steps of this task cannot be read", where=file, why=f"{type(e).__name__}: {e}",
                       way_out="remove the folder and run the same command again") from None  # fmt: skip


# ---- evaluation --------------------------------------------------------------------------------------------------


def evaluate(program_path: str | Path, folder: Path, hidden: bool = False) -> scoring.Scored:
    """How far the policy's searches get, in percent. Never raises for anything that the policy does.

    The games are played beside the policy's process, which sees one state at a time; the value is worked out here from
    the choices. All states are then asked once more in another order: other answers are an error.
    """
    try:
        code = Path(program_path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return scoring.failed(Validity.ERROR, "the program is not UTF-8 text")
    played = board(folder, hidden)
    questions = sum(g["budget"] for g in played.games) * played.plays
    found = policy.run(code, DRIVER, [(g, played.plays) for g in played.games], bounds=policy.limits(questions))
    if found.validity is not Validity.VALID:
        return scoring.failed(found.validity, found.error, found.stderr)
    asked: list[dict[str, Any]] = []
    answers: list[str] = []
    worths, used = [], dict.fromkeys(played.arms, 0)
    for game, choices in zip(played.games, found.value, strict=True):
        for number, names in enumerate(choices):
            if (why := policy.foreign(names, game["budget"], played.arms)) is not None:
                return scoring.failed(Validity.INCORRECT, why, found.stderr)
            said = iter(names)

            def again(state: dict[str, Any], said: Any = said) -> str:
                asked.append(state)
                return next(said)

            worths.append(played.worth(game, replay.simulate(again, game, number, states.step_state)[1]))
            answers += names
    order = random.Random(code_hash(code)).sample(range(len(asked)), len(asked))
    second = policy.ask(code, [asked[i] for i in order], played.arms, again=0)
    if second.validity is not Validity.VALID:
        return scoring.failed(second.validity, f"{second.error} (asked in another order)", second.stderr)
    if second.names != [answers[i] for i in order]:
        return scoring.failed(Validity.INCORRECT, policy.REMEMBERS, second.stderr)
    for name in answers:
        used[name] += 1
    value = float(np.mean(worths))
    artifacts = {"routed": "steps by mutator: " + ", ".join(f"{a}: {n}" for a, n in used.items())}
    metrics = {"combined_score": fitness(value), "gap": value, "validity": 1.0}
    return scoring.Scored(metrics, artifacts | ({"stderr": found.stderr} if found.stderr else {}))
