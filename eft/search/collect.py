"""`eft collect`: searches on the training tasks, recorded, for `eft harvest` to read like anybody's logs.

The mutator is `ast` (no model needed; with lookahead it evaluates several edits of each parent and goes on with the
best, so it knows more than whoever learns from it), or any endpoint named by `mutator.base_url`. OpenEvolve is the
scaffold; the gateway stands between the two and keeps every reply. Leaves OUT/<task>-<form>-s<seed>/ (OpenEvolve's
output and run.json) and OUT/journal/*.jsonl. Interrupted, the same command continues; a search that fails is reported
and the others go on.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from eft import manifest
from eft.config import Section, StageConfig
from eft.errors import EftError, UsageError
from eft.search import executor
from eft.search.executor import Outcome
from eft.search.settings import settings_for
from eft.search.spec import RESULT, RUN, SearchSpec
from eft.search.tally import FAILURES, TRACE


class MutatorConfig(Section):
    """Who proposes the edits: `ast`, or the model behind `base_url`."""

    name: str = Field("", description="its name in logs; default: ast, or the model's name")
    lookahead: int = Field(8, ge=0, description="ast: edits evaluated per parent before one is answered; 0: none")
    kinds: Literal["all", "numbers"] = Field("all", description="ast: which edits it makes")
    guided: float | None = Field(None, ge=0, le=1, description="ast: share of edits that follow the history")
    base_url: str | None = Field(None, description="an OpenAI-compatible endpoint, up to and including /v1")
    model: str | None = Field(None, description="the model's name there")
    api_key_env: str = Field("", description="environment variable that holds the endpoint's key")

    @model_validator(mode="after")
    def _complete(self) -> MutatorConfig:
        if (self.base_url is None) != (self.model is None):
            raise ValueError("an endpoint needs both base_url and model")
        return self

    @property
    def label(self) -> str:
        return self.name or (executor.folder_name(self.model) if self.model else "ast")


class Config(StageConfig):
    """Options of `eft collect`."""

    positional: ClassVar[str] = "tasks"

    tasks: list[str] = Field(default_factory=list, description="tasks to search, instead of the suite's")
    suite: str = Field("embedded", description="a shipped suite's name, or the path of a suite file")
    role: str = Field("train", description="the role in the suite whose tasks are searched")
    mutator: MutatorConfig = MutatorConfig()
    seeds: int = Field(2, ge=1, description="searches per task")
    first_seed: int = Field(0, ge=0, description="the first search's seed; the others follow")
    iterations: int = Field(30, ge=1, description="candidates per search")
    forms: list[Literal["diff", "rewrite"]] = Field(
        default_factory=lambda: ["diff", "rewrite"], min_length=1, description="forms of edit, in turn by seed"
    )
    prompt_format: str = Field("eft@1", description="eft@1 (compact) or openevolve@0.4 (stock)")
    temperature: float = Field(0.7, ge=0, description="of a model behind base_url")
    top_p: float = Field(0.95, gt=0, le=1, description="of a model behind base_url")
    max_tokens: int = Field(30_000, ge=1, description="longest reply, in tokens")
    workers: int = Field(2, ge=1, description="searches at once")
    timeout_s: float | None = Field(None, gt=0, description="seconds for one search; none by default")
    strict: bool = Field(False, description="fail where any search failed, instead of reporting it")


def _tasks(config: Config) -> list[tuple[Any, str]]:
    """(task, its role), in the suite's order. Raises UsageError for unknown names or a role without tasks."""
    from eft.tasks.suite import load_suite
    from eft.tasks.task import find_task

    suite = load_suite(config.suite)
    if config.tasks:
        found = [find_task(name) for name in config.tasks]
    else:
        if config.role not in ("train", "validation", "gate", "heldout"):
            raise UsageError(f"there is no role '{config.role}'", way_out="valid: train, validation, gate, heldout")
        found = suite.tasks(config.role)
    if not found:
        raise UsageError(f"the suite '{config.suite}' has no tasks in the role '{config.role}'")
    return [(task, suite.role(task.name)) for task in found]


def inputs(config: Config) -> list[Path]:
    """The files of the tasks (not their folders: Python leaves its caches there)."""
    tasks = [task for task, _ in _tasks(config)]
    return [f for t in tasks for f in (t.initial_program, t.evaluator, t.folder / "config.yaml")]


def searches(config: Config) -> list[tuple[SearchSpec, Any]]:
    """(spec, task) of every search, without base URLs yet: those are known once the gateway listens."""
    out = config.out().resolve()
    found = []
    for k in range(config.seeds):  # seeds outside: whatever is done when it is stopped covers all tasks evenly
        for task, role in _tasks(config):
            seed, form = config.first_seed + k, config.forms[k % len(config.forms)]
            name = executor.folder_name(task.name, form, f"s{seed}")
            found.append((SearchSpec(
                task=str(task.folder), base_url="", out=str(out / name), name=name, mutator=config.mutator.label,
                model=config.mutator.model or config.mutator.label, seed=seed, iterations=config.iterations, edit=form,
                prompt_format=config.prompt_format, temperature=config.temperature, top_p=config.top_p,
                max_tokens=config.max_tokens, journal=str(out / "journal" / f"{name}.jsonl"), domain=task.domain,
                role=role,
            ), task))  # fmt: skip
    return found


def _source(config: Config, found: list[tuple[SearchSpec, Any]]) -> Any:
    """What the gateway serves: the endpoint, or an `ast` mutator of its own for every search."""
    m = config.mutator
    if m.base_url is not None:
        from eft.mutators.upstream import Upstream

        key = os.environ.get(m.api_key_env) if m.api_key_env else None
        if m.api_key_env and not key:
            raise UsageError(f"the environment variable {m.api_key_env} is not set", way_out="export the key in it")
        return Upstream(m.base_url, m.model, key)
    from eft.mutators.ast import AstMutator

    by_name = {spec.name: (spec, task) for spec, task in found}

    def make(search: str) -> AstMutator:
        spec, task = by_name[search]
        return AstMutator(spec.seed, lookahead=m.lookahead, task=task, kinds=m.kinds, guided=m.guided)

    return make


def _estimate(config: Config, found: list[tuple[SearchSpec, Any]]) -> float:
    """Seconds that the searches will take, from one evaluation of every task's seed program.

    Raises EftError for a task whose seed program is not valid: a search from there has nothing to improve.
    """
    from eft.tasks.evaluate import check_seed

    seconds = {}
    for _, task in found:
        if task.name not in seconds:
            seconds[task.name] = check_seed(task).seconds
    evaluations = 1 + (config.mutator.lookahead if config.mutator.base_url is None else 0)
    # 0.05 s: what OpenEvolve, gateway and journal take per candidate on one core; 1 s: a search's start and end
    each = [1.0 + config.iterations * (0.05 + evaluations * seconds[task.name]) for _, task in found]
    return sum(each) / min(config.workers, os.cpu_count() or 1)


def run(config: Config) -> Path:
    """Run all searches. Returns the output folder. Raises EftError where none succeeded, or, `strict`, any failed."""
    from eft.mutators.gateway import Gateway, running

    started = time.time()
    settings_for(config.prompt_format)
    out = config.out().resolve()
    found = searches(config)
    source = _source(config, found)
    left = sum(executor.finished(spec) is None for spec, _ in found)
    seconds = _estimate(config, found) * left / len(found)
    what = "the mutator's own time comes on top" if config.mutator.base_url else f"lookahead {config.mutator.lookahead}"
    print(f"collect: {len(found)} searches of {config.iterations} candidates on {len(_tasks(config))} tasks, "
          f"{left} to do, {config.workers} at once, about {seconds:.0f} s ({what})", file=sys.stderr)  # fmt: skip
    label = config.mutator.label
    with running(Gateway(out / "journal", {label: source}, threads=config.workers)) as gateway:
        specs = [spec.replace(base_url=gateway.url(spec.name, label)) for spec, _ in found]
        outcomes = executor.run_all(specs, config.workers, timeout_s=config.timeout_s, title="collect")
    failed = executor.failures(outcomes)
    if len(failed) == len(outcomes) or (failed and config.strict):
        raise EftError(f"{len(failed)} of {len(outcomes)} searches failed", where=out, why=failed[0].error)
    manifest.write(out, "collect", config.model_dump(mode="json"), inputs(config), _outputs(outcomes), counts(outcomes),
                   started)  # fmt: skip
    return out


def _outputs(outcomes: list[Outcome]) -> list[Path]:
    """The files that harvest reads, of the searches that were finished."""
    files = []
    for o in outcomes:
        if o.result is not None:
            files += [o.spec.folder / name for name in (RESULT, RUN, TRACE, FAILURES)] + [Path(o.spec.journal)]
    return [f for f in files if f.is_file()]


def counts(outcomes: list[Outcome]) -> dict[str, Any]:
    """What was collected, over all finished searches."""
    results = [o.result for o in outcomes if o.result is not None]
    reasons: Counter[str] = Counter()
    for r in results:
        reasons.update(r.failures)
    return {
        "searches": len(outcomes),
        "failed_searches": len(executor.failures(outcomes)),
        "tasks": len({r.task for r in results}),
        "replies": sum(r.replies for r in results),
        "valid_edits": sum(r.valid_edits for r in results),
        "distinct_valid_edits": sum(r.distinct_valid_edits for r in results),
        "improved_searches": sum(r.best_score is not None and r.seed_score is not None and r.best_score > r.seed_score
                                 for r in results),
        "not_usable": dict(sorted(reasons.items())),
        "prompt_tokens": sum(r.prompt_tokens for r in results),
        "completion_tokens": sum(r.completion_tokens for r in results),
    }  # fmt: skip
