"""Is this task fit to be searched on? `validate` runs one and says what holds and what does not, check by check.

    runs            the seed is valid and its score is above 0
    stable          the same program scores the same each time; the spread over repeats is the noise floor
    stated          seed_score, seed_raw and the hidden ones are what is measured
    room            the seed is not already at the best known value
    quick           an evaluation ends well within its limit
    hidden          the hidden instances give the seed another raw value than the search's
    attacks         no hostile program changes a score, escapes, or leaves anything (attacks.py)
    moves           edits of the seed change its score, and some improve it

Contained tasks are judged more mildly where they cannot do better: a noise floor is allowed there, and said.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from eft.records import Validity
from eft.tasks import attacks
from eft.tasks.evaluate import Evaluation, evaluate
from eft.tasks.task import Task

# An edit of a program in a language, or None where there is nothing to change (or the language is not known).
Propose = Callable[[str, random.Random, str], str | None]
TOLERANCE = 1e-6
NOISE = 0.1  # of the seed's score: what a contained task may scatter


@dataclass(frozen=True)
class Check:
    """`ok` None: not tried, and `text` says why."""

    name: str
    ok: bool | None
    text: str


@dataclass(frozen=True)
class Report:
    """One task's checks, and what was measured on the way."""

    task: str
    isolation: str
    checks: tuple[Check, ...]
    seed_score: float | None = None
    noise: float | None = None  # standard deviation of the seed's score
    seconds: float | None = None  # median of an evaluation
    best_mutant: float | None = None  # the best score among the edits

    @property
    def ok(self) -> bool:
        return all(c.ok is not False for c in self.checks)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def validate(
    task: Task, propose: Propose | None = None, *, repeats: int = 5, mutations: int = 60, attack: bool = True,
    ends: bool = True,
) -> Report:  # fmt: skip
    """Run all checks. `propose` makes edits of programs; without it, and where it knows none, numbers in the text are
    changed. Raises EftError where the evaluator itself cannot be used.
    """
    results, seconds = [], []
    for _ in range(max(2, repeats)):
        started = time.monotonic()
        results.append(evaluate(task, task.seed()))
        seconds.append(time.monotonic() - started)
        if results[-1].validity is not Validity.VALID:
            break
    seed = results[0]
    runs = _runs(results)
    if not runs.ok:
        return Report(task.name, task.isolation, (runs,), seed.score)
    scores = [r.score for r in results if r.score is not None]
    median = statistics.median(seconds)
    checks = [runs, _stable(task, scores), _stated(task, seed, scores), _room(task, seed), _quick(task, median)]
    checks.append(_hidden(task, seed))
    checks.append(_attacks(task, seed, ends) if attack else Check("attacks", None, "not asked for"))
    moved, best = _moves(task, seed, propose, mutations)
    return Report(task.name, task.isolation, (*checks, moved), seed.score, statistics.pstdev(scores), median, best)


def _runs(results: list[Evaluation]) -> Check:
    for found in results:
        if found.validity is not Validity.VALID:
            return Check("runs", False, f"the seed is not valid: {found.metrics.get('error') or found.validity}")
        if found.score <= 0:
            return Check("runs", False, f"the seed's score is {found.score:g}: a ratio to it says nothing")
    return Check("runs", True, f"the seed scores {results[0].score:.6g}")


def _stable(task: Task, scores: list[float]) -> Check:
    noise = statistics.pstdev(scores)
    text = f"noise floor {noise:.3g} over {len(scores)} runs"
    if task.isolation == "isolated":
        return Check("stable", noise == 0, text + ("" if noise == 0 else ": an isolated task must be deterministic"))
    return Check("stable", noise <= NOISE * abs(statistics.fmean(scores)), text)


def _stated(task: Task, seed: Evaluation, scores: list[float]) -> Check:
    slack = max(scores) - min(scores)
    wrong = [
        f"{name} says {stated:.9g}, measured {found}"
        for name, stated, found in (("seed_score", task.seed_score, seed.score), ("seed_raw", task.seed_raw, seed.raw))
        if stated is not None and (found is None or abs(found - stated) > TOLERANCE * max(1.0, abs(stated)) + 3 * slack)
    ]
    if wrong:
        return Check("stated", False, "; ".join(wrong))
    if task.seed_score is None and task.seed_raw is None:
        return Check("stated", None, "config.yaml states no seed_score or seed_raw")
    return Check("stated", True, "the stated values of the seed are true")


def _room(task: Task, seed: Evaluation) -> Check:
    if task.best_known is None:
        return Check("room", None, "no best known value is stated")
    if seed.raw is None:
        return Check("room", False, f"the evaluator returns no finite {task.raw_metric}")
    left = (task.best_known - seed.raw) * (1 if task.direction == "max" else -1)
    text = f"{task.raw_metric} {seed.raw:.6g}, best known {task.best_known:.6g}"
    if left <= TOLERANCE * max(1.0, abs(task.best_known)):
        return Check("room", False, f"the seed is at the best known value: {text}")
    if not task.best_known_source:
        return Check("room", False, "best_known has no best_known_source")
    return Check("room", True, text)


def _quick(task: Task, median: float) -> Check:
    """Half of the time limit is for slower machines, and for programs that do more than the seed."""
    return Check("quick", median <= task.timeout_s / 2, f"{median:.3g} s, limit {task.timeout_s:g} s")


def _hidden(task: Task, seed: Evaluation) -> Check:
    if not task.has_hidden:
        return Check("hidden", None, "the evaluator has no hidden instances")
    found = evaluate(task, task.seed(), hidden=True)
    if found.validity is not Validity.VALID:
        return Check("hidden", False, f"the seed is not valid there: {found.metrics.get('error', '')}")
    if found.raw == seed.raw and found.score == seed.score:
        return Check("hidden", False, "the hidden instances score the seed as the search's do: are they the same?")
    stated = task.hidden_seed_raw
    if stated is not None and (found.raw is None or abs(found.raw - stated) > TOLERANCE * max(1.0, abs(stated))):
        return Check("hidden", False, f"hidden_seed_raw says {stated:.9g}, measured {found.raw}")
    return Check("hidden", True, f"{task.raw_metric} {found.raw:.6g} there" if found.raw is not None else "they differ")


def _attacks(task: Task, seed: Evaluation, ends: bool) -> Check:
    count, failed = attacks.attack(task, seed, ends=ends)
    if failed:
        shown = "; ".join(f"{f.attack} ({f.how})" for f in failed[:5])
        return Check("attacks", False, f"{len(failed)} of {count} got through: {shown}")
    return Check("attacks", True, f"{count} attacks withstood")


def _moves(task: Task, seed: Evaluation, propose: Propose | None, mutations: int) -> tuple[Check, float | None]:
    """(the check, the best score of a mutant)."""
    if mutations < 1:
        return Check("moves", None, "not asked for"), None
    rng = random.Random(task.name)
    moved, better, valid, tried, best = 0, 0, 0, 0, None
    for _ in range(mutations):
        child = propose(task.seed(), rng, task.language) if propose is not None else None
        child = child or change_number(task.seed(), rng)
        if child is None:
            break
        tried += 1
        found = evaluate(task, child)
        if found.score is not None:
            valid += 1
            moved += found.score != seed.score
            better += found.score > seed.score
            best = found.score if best is None else max(best, found.score)
    text = f"of {tried} edits {valid} are valid, {moved} move the score, {better} improve it"
    return Check("moves", better > 0, text), best


_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])")


def change_number(code: str, rng: random.Random) -> str | None:
    """A program of any language with one number between its EVOLVE-BLOCK markers (or anywhere, without) changed."""
    start, end = code.find("EVOLVE-BLOCK-START"), code.find("EVOLVE-BLOCK-END")
    start, end = (start, end) if 0 <= start < end else (0, len(code))
    found = list(_NUMBER.finditer(code, start, end))
    if not found:
        return None
    match = rng.choice(found)
    if "." in match[0]:
        text = f"{float(match[0]) * rng.choice((0.5, 0.8, 0.9, 1.1, 1.25, 2.0)):.6g}"
        text = text if "." in text or "e" in text else text + ".0"
    else:
        value = int(match[0])
        text = str(max(0, rng.choice((value - 1, value + 1, value * 2, value // 2, value + 3))))
    return code[: match.start()] + text + code[match.end() :]
