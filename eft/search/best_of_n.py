"""The control without a search: N independent samples from the seed program, at a search's budget.

    python -m eft.search.best_of_n SPEC.json

Every sample is asked with the prompt that OpenEvolve's first iteration would send (same format, same templates), and
evaluated the same way, so the difference to a search is the search alone. Same spec, same result, same resumption.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import Any

from eft import edits
from eft.errors import EftError
from eft.mutators.client import chat
from eft.search import process
from eft.search.evaluator import Scorer
from eft.search.openevolve import PATIENCE, openevolve_release, write_run
from eft.search.settings import openevolve_config
from eft.search.spec import RESULT, SearchResult, SearchSpec
from eft.search.tally import DIALECT, NO_ANSWER, Attempt, no_answer, read_journal, tally

SAMPLES = "samples.jsonl"


def run_search(spec: SearchSpec, timeout_s: float | None = None) -> SearchResult:
    """Draw the samples in a process of its own. Raises EftError (with the log's path) where that fails."""
    return process.wait(spec, process.start(spec), timeout_s)


# ------------------------------------------------------------------------------------------ inside the search's process


def first_prompt(spec: SearchSpec, scorer: Scorer) -> list[dict[str, str]]:
    """The messages of OpenEvolve's first iteration: the seed is the current program and all of the history."""
    from openevolve import Config
    from openevolve.prompt.sampler import PromptSampler

    task, evaluation = scorer.task, scorer.evaluate(scorer.task.seed())
    config = Config.from_dict(openevolve_config(spec, task))
    seed = {"id": "seed", "code": task.seed(), "metrics": scorer.told(evaluation), "metadata": {"island": 0},
            "changes_description": config.prompt.initial_changes_description}  # fmt: skip
    prompt = PromptSampler(config.prompt).build_prompt(
        current_program=seed["code"], parent_program=seed["code"], program_metrics=seed["metrics"],
        previous_programs=[seed][: config.prompt.num_top_programs], top_programs=[seed], inspirations=[],
        language=config.language, evolution_round=1, diff_based_evolution=spec.edit == "diff",
        program_artifacts=dict(evaluation.artifacts or {}) or None,
        feature_dimensions=config.database.feature_dimensions,
    )  # fmt: skip
    return [{"role": "system", "content": prompt["system"]}, {"role": "user", "content": prompt["user"]}]


def body(spec: SearchSpec) -> None:
    """Ask, apply, evaluate, N times; then the tally."""
    started = time.time()
    scorer = Scorer.of(spec)
    release = openevolve_release()
    write_run(spec, scorer.task, release)
    messages = first_prompt(spec, scorer)
    attempts: list[Attempt] = []
    unanswered = 0
    with open(spec.folder / SAMPLES, "a", encoding="utf-8") as log:
        for iteration in range(1, spec.iterations + 1):
            attempt = _sample(spec, scorer, messages, iteration)
            attempts.append(attempt)
            log.write(json.dumps({"iteration": iteration, "prompt": messages, "response": attempt.response,
                                  "child_code": attempt.child, "error": attempt.error}) + "\n")  # fmt: skip
            log.flush()
            unanswered = unanswered + 1 if no_answer(attempt.error) else 0
            if unanswered == PATIENCE:
                raise EftError("the mutator does not answer", where=spec.base_url, why=attempt.error,
                               way_out="see that its server runs, then run the same command again")  # fmt: skip
    result = tally(spec, attempts, read_journal(spec.journal), scorer, release, time.time() - started)
    result.save(spec.folder / RESULT)


def _sample(spec: SearchSpec, scorer: Scorer, messages: list[dict[str, str]], iteration: int) -> Attempt:
    """One reply, applied to the seed and evaluated; a failed request is an attempt too."""
    user = messages[-1]["content"]
    digest = hashlib.sha256(f"{spec.seed}:{iteration}".encode()).digest()
    params: dict[str, Any] = {"temperature": spec.temperature, "top_p": spec.top_p, "max_tokens": spec.max_tokens,
                              "seed": int.from_bytes(digest[:4], "big") >> 1}  # fmt: skip
    try:
        reply = chat(spec.base_url, spec.model, messages, timeout=spec.request_timeout_s, retries=0,
                     api_key=os.environ.get(spec.api_key_env) if spec.api_key_env else None, **params)  # fmt: skip
    except EftError as e:
        why = e.why or e.what
        code = "Error code: " if re.match(r"\d{3}: ", why) else ""  # as OpenEvolve's log words it
        return Attempt(iteration, user, None, error=f"{NO_ANSWER}: {code}{why}")
    task = scorer.task
    edit = edits.apply(task.seed(), reply["content"], kind=spec.edit, dialect=DIALECT, language=task.language)
    if not edit:
        return Attempt(iteration, user, reply["content"], error=str(edit), usage=reply["usage"] or {})
    scorer.evaluate(edit.child)
    return Attempt(iteration, user, reply["content"], edit.child, usage=reply["usage"] or {})


if __name__ == "__main__":
    process.main(body)
