"""The control without a search: N independent samples from the seed program, at a search's budget.

    python -m eft.search.best_of_n SPEC.json

Every sample is asked with the prompt that OpenEvolve's first iteration would send (same format, same templates), and
evaluated the same way, so the difference to a search is the search alone. Same spec, same result, same resumption.
"""

from __future__ import annotations

import time

from eft.mutators.client import Client
from eft.search import process, sampling
from eft.search.evaluator import Scorer
from eft.search.openevolve import openevolve_release, write_run
from eft.search.prompting import Prompts, Shown
from eft.search.spec import RESULT, SearchResult, SearchSpec
from eft.search.tally import Attempt, read_journal, tally


def run_search(spec: SearchSpec, timeout_s: float | None = None) -> SearchResult:
    """Draw the samples in a process of its own. Raises EftError (with the log's path) where that fails."""
    return process.wait(spec, process.start(spec), timeout_s)


# ------------------------------------------------------------------------------------------ inside the search's process


def body(spec: SearchSpec) -> None:
    """Ask, apply, evaluate, N times; then the tally."""
    started = time.time()
    scorer = Scorer.of(spec)
    release = openevolve_release()
    write_run(spec, scorer.task, release)
    evaluation = scorer.evaluate(scorer.task.seed())
    seed = Shown("seed", scorer.task.seed(), scorer.told(evaluation), artifacts=dict(evaluation.artifacts or {}))
    messages = Prompts(spec, scorer.task).build(seed, [seed], [], 1)
    attempts: list[Attempt] = []
    with sampling.client(spec) as client, sampling.Log(spec) as log:
        for iteration in range(1, spec.iterations + 1):
            attempts += _sample(spec, scorer, client, messages, iteration)
            log.write(messages, attempts[-1:])
    result = tally(spec, attempts, read_journal(spec.journal), scorer, release, time.time() - started)
    result.save(spec.folder / RESULT)


def _sample(
    spec: SearchSpec, scorer: Scorer, client: Client, messages: list[dict[str, str]], iteration: int
) -> list[Attempt]:
    """One reply, applied to the seed and evaluated; a failed request is an attempt too."""
    attempts = sampling.ask(client, spec, scorer.task, messages, iteration, 1)
    for attempt in attempts:
        if attempt.child is not None:
            scorer.evaluate(attempt.child)
    return attempts


if __name__ == "__main__":
    process.main(body)
