"""A small evolutionary search of our own: tournament selection in a population of the best distinct programs.

    python -m eft.search.tournament SPEC.json

One generation: three programs are drawn from the population, the best of them is the parent; the mutator is asked for
a few edits of it in one request (so its prompt is sent, and read by the model, once); the children are evaluated side
by side on the cores that this search may use; those that are new and valid enter the population, which keeps its best.
Prompts are OpenEvolve's, with the latest edits of this very parent and their scores as the history. One generation is
in flight at a time, so a search is a function of task, seed and replies: killed and started again with the same journal
it comes to the same result, and is asked for nothing twice.

Why beside OpenEvolve: no islands, no grid, no worker processes, hence a scaffold whose own cost is a few milliseconds a
candidate, and a second opinion on a mutator that does not depend on one scaffold.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from eft import __version__
from eft.records import code_hash
from eft.search import process, sampling
from eft.search.evaluator import Scorer
from eft.search.openevolve import write_run
from eft.search.prompting import Prompts, Shown
from eft.search.spec import RESULT, SearchResult, SearchSpec
from eft.search.tally import Attempt, read_journal, tally

SIZE = 10  # programs in the population
ROUND = 3  # of which so many compete to be the parent
MEMORY = 64  # latest children that a prompt may tell of
GENERATIONS = 24  # at least so many for each search that has enough candidates: feedback before speed
MOST_CHILDREN = 8  # of one parent in one generation


def run_search(spec: SearchSpec, timeout_s: float | None = None) -> SearchResult:
    """Run one search in a process of its own. Raises EftError (with the log's path) where it fails."""
    return process.wait(spec, process.start(spec), timeout_s)


def brood(iterations: int) -> int:
    """Children of one generation, for a search of `iterations` candidates: 1 for short searches, at most 8."""
    return max(1, min(MOST_CHILDREN, iterations // GENERATIONS))


# ------------------------------------------------------------------------------------------ inside the search's process


@dataclass(frozen=True)
class Member:
    """A valid program. `number`: the iteration that made it, 0 for the seed; `parent`: the number of its parent."""

    number: int
    parent: int
    score: float
    shown: Shown


@dataclass
class Population:
    """The best distinct programs, best first; of equals the earlier one goes before."""

    members: list[Member] = field(default_factory=list)
    recent: deque[Member] = field(default_factory=lambda: deque(maxlen=MEMORY))  # latest children, kept or not
    seen: set[str] = field(default_factory=set)

    def enter(self, member: Member) -> None:
        """Take in a program, unless it has been here before."""
        self.recent.append(member)
        key = code_hash(member.shown.code)
        if key in self.seen:
            return
        self.seen.add(key)
        self.members = sorted([*self.members, member], key=lambda m: (-m.score, m.number))[:SIZE]

    def choose(self, rng: random.Random) -> Member:
        """The winner of one tournament."""
        drawn = rng.sample(range(len(self.members)), min(ROUND, len(self.members)))
        return self.members[min(drawn)]  # they stand in order

    def about(self, parent: Member) -> list[Shown]:
        """The latest children of `parent`, then the latest of others: what was tried, and what came of it."""
        latest = [m for m in reversed(self.recent) if m.number != parent.number]
        return [m.shown for m in sorted(latest, key=lambda m: m.parent != parent.number)]


def threads() -> int:
    """How many candidates this search may evaluate at once: its share of the cores (see executor.py)."""
    return max(1, int(os.environ.get(process.CORES) or os.cpu_count() or 1))


def body(spec: SearchSpec) -> None:
    """The search, then the tally."""
    started = time.time()
    scorer = Scorer.of(spec)
    task = scorer.task
    write_run(spec, task, __version__)
    prompts, population, attempts = Prompts(spec, task), Population(), []
    evaluation = scorer.evaluate(task.seed())
    seed = Shown("0", task.seed(), scorer.told(evaluation), artifacts=dict(evaluation.artifacts or {}))
    # A seed that does not evaluate is the parent all the same, until something better is found.
    population.enter(Member(0, -1, _score(evaluation), seed))
    limit = max(10_000, 3 * len(task.seed()))  # characters, as OpenEvolve is told
    with sampling.client(spec) as client, sampling.Log(spec) as log, ThreadPoolExecutor(threads()) as pool:
        generation, size = 0, brood(spec.iterations)
        while len(attempts) < spec.iterations:
            generation += 1
            parent = population.choose(random.Random(f"{spec.seed}:{generation}"))
            best = [m.shown for m in population.members]
            top = {p.id for p in best[: prompts.top]}
            others = [p for p in population.about(parent) if p.id not in top]
            messages = prompts.build(parent.shown, best, others, generation)
            count = min(size, spec.iterations - len(attempts))
            found = sampling.ask(client, spec, task, messages, len(attempts) + 1, count)
            found = [_capped(a, limit) for a in found]
            evaluations = pool.map(_evaluate, found, [scorer] * count, [code_hash(parent.shown.code)] * count)
            for attempt, child in zip(found, evaluations, strict=True):
                if child is not None and child.score is not None:
                    made = Shown(str(attempt.iteration), attempt.child or "", scorer.told(child),
                                 prompts.words(attempt.response or ""), parent.shown.metrics,
                                 dict(child.artifacts or {}))  # fmt: skip
                    population.enter(Member(attempt.iteration, parent.number, child.score, made))
            attempts += found
            log.write(messages, found)
    result = tally(spec, attempts, read_journal(spec.journal), scorer, __version__, time.time() - started)
    result.save(spec.folder / RESULT)


def _score(evaluation: Any) -> float:
    return float("-inf") if evaluation.score is None else evaluation.score


def _capped(attempt: Attempt, limit: int) -> Attempt:
    """The attempt without its child where that is longer than a program may grow."""
    if attempt.child is None or len(attempt.child) <= limit:
        return attempt
    why = f"Generated code exceeds maximum length ({len(attempt.child)} > {limit})"
    return Attempt(attempt.iteration, attempt.prompt, attempt.response, None, why, attempt.usage)


def _evaluate(attempt: Attempt, scorer: Scorer, parent: str) -> Any:
    """The evaluation of the attempt's child; None where there is none, or where it is the parent (by its hash)."""
    if attempt.child is None or code_hash(attempt.child) == parent:
        return None
    return scorer.evaluate(attempt.child)


if __name__ == "__main__":
    process.main(body)
