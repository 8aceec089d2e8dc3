"""`eft collect`: searches on the training tasks, recorded, for `eft harvest` to read like anybody's logs.

    eft collect -o OUT --suite standard --teacher MODEL@http://HOST/v1 --set budget.tokens=2000000

The teacher is `ast` (no model needed; with lookahead it evaluates several edits of each parent and goes on with the
best, so it knows more than whoever learns from it), or any OpenAI-compatible endpoint, asked for one reply a prompt or
for several (`mutator.samples`). OpenEvolve is the scaffold; the gateway stands between the two and keeps every reply.
Half of a task's searches ask for diffs, half for whole programs (`forms`). Leaves OUT/<task>-<form>-s<seed>/
(OpenEvolve's output and run.json) and OUT/journal/*.jsonl.

Killed in whatever way, the same command continues: finished searches are kept, unfinished ones replay from the journal,
and nothing is paid for twice. A search that fails is reported and the others go on. A budget that is used up (tokens,
money, replies, hours) ends the collection in good order: what was collected can be harvested, and a larger budget goes
on from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from eft import manifest
from eft.config import StageConfig
from eft.errors import EftError, UsageError
from eft.search import executor, teacher
from eft.search.executor import Outcome
from eft.search.settings import settings_for
from eft.search.spec import RESULT, RUN, SearchSpec, finished
from eft.search.tally import FAILURES, TRACE
from eft.search.teacher import BudgetConfig, MutatorConfig

SPENT = "spent.json"  # seconds of collecting, over all runs
TICK_S = 0.5  # how often budgets are looked at


class Config(StageConfig):
    """Options of `eft collect`."""

    positional: ClassVar[str] = "tasks"

    tasks: list[str] = Field(default_factory=list, description="tasks to search, instead of the suite's")
    suite: str = Field("embedded", description="a shipped suite's name, or the path of a suite file")
    role: str = Field("train", description="the role in the suite whose tasks are searched")
    teacher: str = Field("", description="short for mutator: ast, or MODEL@BASE_URL of an OpenAI-compatible endpoint")
    mutator: MutatorConfig = MutatorConfig()
    budget: BudgetConfig = BudgetConfig()
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
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = Field(
        "auto", description="how candidate programs are confined"
    )
    executor: Literal["local", "ray"] = Field("local", description="where searches run: processes here, or a cluster's")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, values: Any) -> Any:
        """`teacher` fills the two fields of `mutator` that name a model."""
        if isinstance(values, dict) and values.get("teacher"):
            given = values.get("mutator") or {}
            given = given if isinstance(given, dict) else given.model_dump()
            values = {**values, "mutator": {**given, **teacher.parse_teacher(str(values["teacher"]))}}
        return values


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


def _sources(config: Config, found: list[tuple[SearchSpec, Any]], url: Any) -> dict[str, Any]:
    """What the gateway serves, by name: the endpoint; with several samples, one mutator a search that asks it; or an
    `ast` mutator for every search. `url(search)`: the gateway's base URL of the endpoint itself."""
    m, by_name = config.mutator, {spec.name: (spec, task) for spec, task in found}
    if m.base_url is not None:
        endpoint = teacher.upstream(m, config.budget)
        if m.samples == 1:
            return {m.label: endpoint}
        params = {"temperature": config.temperature, "top_p": config.top_p, "max_tokens": config.max_tokens}

        def sampler(search: str) -> teacher.Sampler:
            _, task = by_name[search]
            return teacher.Sampler(lambda: url(search), m.model, task, m.samples, params, 2 * m.timeout)

        return {m.label: sampler, teacher.SAMPLES: endpoint}
    from eft.mutators.ast import AstMutator

    def make(search: str) -> AstMutator:
        spec, task = by_name[search]
        return AstMutator(spec.seed, lookahead=m.lookahead, task=task, kinds=m.kinds, guided=m.guided)

    return {m.label: make}


def _estimate(config: Config, found: list[tuple[SearchSpec, Any]]) -> float:
    """Seconds that the searches will take, from one evaluation of every task's seed program.

    Raises EftError for a task whose seed program is not valid: a search from there has nothing to improve.
    """
    from eft.tasks.evaluate import check_seed

    seconds = {}
    for _, task in found:
        if task.name not in seconds:
            seconds[task.name] = check_seed(task).seconds
    ahead = config.mutator.lookahead if config.mutator.base_url is None else config.mutator.samples - 1
    evaluations = 1 + ahead
    # 0.05 s: what OpenEvolve, gateway and journal take per candidate on one core; 1 s: a search's start and end
    each = [1.0 + config.iterations * (0.05 + evaluations * seconds[task.name]) for _, task in found]
    return sum(each) / min(config.workers, os.cpu_count() or 1)


def run(config: Config) -> Path:
    """Run all searches. Returns the output folder. Raises EftError where none succeeded, or, `strict`, any failed."""
    from eft.mutators.gateway import Gateway, running
    from eft.tasks import sandbox

    started = time.time()
    settings_for(config.prompt_format)
    sandbox.choose(config.sandbox)
    out = config.out().resolve()
    found = searches(config)
    if config.mutator.label == teacher.SAMPLES:
        raise UsageError(f"a mutator cannot be called '{teacher.SAMPLES}'", way_out="give another --set mutator.name=…")
    label = config.mutator.label
    sources = _sources(config, found, lambda search: gateway.url(search, teacher.SAMPLES))
    left = sum(finished(spec) is None for spec, _ in found)
    seconds = _estimate(config, found) * left / len(found)
    m = config.mutator
    what = "the teacher's own time comes on top" if m.base_url else f"lookahead {m.lookahead}"
    print(f"collect: {len(found)} searches of {config.iterations} candidates on {len(_tasks(config))} tasks, "
          f"{left} to do, {config.workers} at once, about {seconds:.0f} s ({what})", file=sys.stderr)  # fmt: skip
    with running(Gateway(out / "journal", sources, threads=config.workers)) as gateway:
        specs = [spec.replace(base_url=gateway.url(spec.name, label)) for spec, _ in found]
        watch = Watch(config, out, lambda: gateway.stats().get("used", {}))
        with watch.keeping(left):
            try:
                outcomes = executor.run_all(specs, config.workers, timeout_s=config.timeout_s, title="collect",
                                            executor=config.executor)  # fmt: skip
            except BudgetUsedUp as e:
                outcomes = [_standing(spec, str(e)) for spec in specs]
        stopped = watch.over or watch.used_up()  # a search that met the end of the budget is not one that failed
    failed = [] if stopped else executor.failures(outcomes)
    if (failed and len(failed) == len(outcomes)) or (failed and config.strict):
        raise EftError(f"{len(failed)} of {len(outcomes)} searches failed", where=out, why=failed[0].error)
    report = counts(outcomes) | {"stopped": stopped, "unfinished": sum(o.result is None for o in outcomes)}
    if stopped:
        report["failed_searches"] = 0
        print(f"collect: stopped, {stopped}; {report['unfinished']} of {len(outcomes)} searches are not finished, what "
              "they have can be harvested; a larger budget goes on from here", file=sys.stderr)  # fmt: skip
    manifest.write(out, "collect", config.model_dump(mode="json"), inputs(config), _outputs(outcomes), report, started)
    return out


class BudgetUsedUp(Exception):
    """Raised in the main thread when the budget ends, so that the running searches are ended in good order."""


def _standing(spec: SearchSpec, why: str) -> Outcome:
    result = finished(spec)
    return Outcome(spec, "skipped", result) if result is not None else Outcome(spec, "failed", None, why)


class Watch:
    """Looks at the budgets while the searches run, and keeps book of the time. `over`: which one has ended, "" so far.

    used: what the gateway counts, by mutator, the journals of earlier runs included.
    """

    def __init__(self, config: Config, out: Path, used: Any) -> None:
        self.budget, self.file, self.used, self.over = config.budget, out / SPENT, used, ""
        self.label = teacher.SAMPLES if config.mutator.samples > 1 else config.mutator.label
        self.before = self._read()
        self.started = time.monotonic()

    def _read(self) -> float:
        try:
            return max(0.0, float(json.loads(self.file.read_text(encoding="utf-8"))["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0

    @property
    def seconds(self) -> float:
        """Of collecting, earlier runs included."""
        return self.before + time.monotonic() - self.started

    def used_up(self) -> str:
        """Which budget is used up, and how; "" for none."""
        b, used = self.budget, self.used().get(self.label, {})
        tokens = used.get("prompt_tokens", 0) + used.get("completion_tokens", 0)
        dollars, hours = used.get("dollars", 0.0), self.seconds / 3600
        limits = ((b.replies, used.get("replies", 0), "replies"), (b.tokens, tokens, "tokens"),
                  (b.dollars, dollars, "dollars"), (b.hours, hours, "hours"))  # fmt: skip
        for limit, now, noun in limits:
            if limit is not None and now >= limit:
                return f"the budget is used up ({now:.6g} of {limit:g} {noun})"
        return ""

    @contextlib.contextmanager
    def keeping(self, left: int) -> Iterator[None]:
        """Watch while the block runs. Where it is the main thread that runs it, BudgetUsedUp is raised in it."""
        if not left:
            yield
            return
        main = threading.current_thread() is threading.main_thread()
        done = threading.Event()

        def raise_it(*_: Any) -> None:
            if not done.is_set():
                raise BudgetUsedUp(self.over)

        def look() -> None:
            while not done.wait(TICK_S):
                self._save()
                self.over = self.over or self.used_up()
                if self.over and main:
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                    return

        old = signal.signal(signal.SIGUSR1, raise_it) if main else None
        thread = threading.Thread(target=look, name="budget", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            if main:
                signal.signal(signal.SIGUSR1, old)
            self._save()

    def _save(self) -> None:
        with contextlib.suppress(EftError):
            manifest.write_json(self.file, {"seconds": round(self.seconds, 3)})


def _outputs(outcomes: list[Outcome]) -> list[Path]:
    """The files that harvest reads: an unfinished search has some, too."""
    files = []
    for o in outcomes:
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
