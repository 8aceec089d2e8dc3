"""From the options to the searches: what has to be run, in which order, and which of it stands already.

A search is `evaluate/<mutator>/<task>/seed<k>/`; under another scaffold than OpenEvolve, `<scaffold>-seed<k>`. Its id
carries a fingerprint of the model's weights and of the task, so that a retrained model or a changed evaluator never
inherits an old search's result or replies. The id names the journal too: with more iterations than before, replies that
were paid for are replayed, not asked again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft import __version__, manifest
from eft.errors import EftError, UsageError, nearest
from eft.evaluate import provenance
from eft.evaluate.results import MutatorInfo, TaskInfo
from eft.evaluate.settings import Config, Mutator
from eft.models.load import locate
from eft.search.spec import RESULT, SearchResult, SearchSpec, finished
from eft.tasks.suite import ROLES, load_suite, suite_names
from eft.tasks.task import Task, find_task

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,39}")
RESERVED = ("journal", "models", "logs", "replaced")  # folders of the evaluation's own


@dataclass(frozen=True)
class Group:
    """Searches in flight together: a served mutator's and the best-of-N of its replies, or all that need no model."""

    server: str | None  # name of the served mutator
    specs: tuple[SearchSpec, ...]

    def pending(self) -> list[SearchSpec]:
        """The searches that have no result yet."""
        return [s for s in self.specs if finished(s) is None]


@dataclass(frozen=True)
class Plan:
    """All of an evaluation. `tasks` by name; `fingerprints` of the mutators' models by name."""

    tasks: dict[str, Task]
    mutators: dict[str, Mutator]
    infos: tuple[MutatorInfo, ...]
    groups: tuple[Group, ...]
    seeds: tuple[int, ...]
    fingerprints: dict[str, str]
    role: str

    @property
    def specs(self) -> list[SearchSpec]:
        return [s for g in self.groups for s in g.specs]


def slug(name: str) -> str:
    """A task's name as part of a path and of a search id."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "task"


def chosen_tasks(config: Config) -> dict[str, Task]:
    """The tasks of an evaluation by name. Raises UsageError for an unknown suite, role or task, and for none at all."""
    if config.tasks:
        # a path is relative to root, a name is a shipped task's
        found = [find_task(str(config.path(t)) if config.path(t).is_dir() else t) for t in config.tasks]
    else:
        if config.role not in ROLES:
            raise UsageError(f"a suite has no role '{config.role}'", way_out=nearest(config.role, ROLES))
        found = load_suite(config.suite if config.suite in suite_names() else config.path(config.suite)).tasks(
            config.role
        )
    if not found:
        raise UsageError(
            f"the suite '{config.suite}' has no task of role '{config.role}'", way_out="give `tasks`, or another role"
        )
    tasks = {t.name: t for t in found}
    if len(tasks) != len(found) or len({slug(n) for n in tasks}) != len(found):
        raise UsageError("two tasks have the same name", why=", ".join(t.name for t in found))
    return tasks


def task_info(task: Task) -> TaskInfo:
    return TaskInfo(
        task.name, task.domain, task.direction, task.raw_metric, task.seed_raw, task.seed_score, task.best_known,
        task.best_known_source, task.isolation, task.has_hidden, task.hidden_seed_raw, task.hidden_best_known,
        task_fingerprint(task),
    )  # fmt: skip


def task_fingerprint(task: Task) -> str:
    """A hash of everything in a task's folder that decides a score."""
    digest = hashlib.sha256()
    for f in sorted(p for p in task.folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(f"{f.relative_to(task.folder)}\0".encode() + hashlib.sha256(f.read_bytes()).digest())
    return digest.hexdigest()


def model_fingerprint(config: Config, mutator: Mutator) -> str:
    """What tells one set of weights from the next: a folder's files, or the name where the weights are elsewhere.

    Raises UsageError for a name that is no model (a stage that has not run yet, say).
    """
    model = mutator.model or ""
    if mutator.servers:
        return f"{' '.join(mutator.servers)} {model}"
    place = locate(model, config.root)
    return manifest.fingerprint(Path(place)) if Path(place).is_dir() else f"{place} {__version__}"


def _trained_on(config: Config, mutator: Mutator) -> tuple[str, ...]:
    """The domains of a model's training data, as the provenance beside it tells; none where it does not."""
    if mutator.kind != "served" or mutator.servers:
        return ()
    folder = Path(locate(mutator.model or "", config.root))
    return provenance.training_domains(folder) if folder.is_dir() else ()


def role_of(name: str, mutator: Mutator, baseline: str) -> str:
    if mutator.role:
        return mutator.role
    return "baseline" if name == baseline else "tuned" if mutator.kind == "served" else "control"


def check(config: Config) -> None:
    """Raises UsageError for contenders that cannot be told apart or do not fit together."""
    if not config.mutators:
        raise UsageError("there is nothing to evaluate", way_out="name contenders under `mutators:` in the config file")
    for name, m in config.mutators.items():
        if not NAME.fullmatch(name) or name in RESERVED:
            rule = f"a name is at most 40 letters, digits, '.', '_' or '-', and none of {', '.join(RESERVED)}"
            raise UsageError(f"'{name}' cannot name a mutator", why=rule)
        if m.kind == "best_of_n":
            served = [n for n, o in config.mutators.items() if o.kind == "served"]
            if m.of not in served:
                raise UsageError(
                    f"'{name}' is best_of_n of '{m.of}', which is no served mutator", way_out=nearest(m.of, served)
                )
        if m.journal is not None and not config.path(m.journal).is_dir():
            raise UsageError(f"'{name}' has no journals to replay", where=config.path(m.journal),
                             way_out="give the folder `journal` of an earlier evaluation")  # fmt: skip


def make(config: Config) -> Plan:
    """The plan of an evaluation. Everything that a user can have got wrong surfaces here, before anything is started.

    Raises UsageError (see `check`, `chosen_tasks`, `model_fingerprint`) and EftError for a task that cannot be read.
    """
    check(config)
    tasks = chosen_tasks(config)
    hashes = {name: task_fingerprint(t) for name, t in tasks.items()}
    fingerprints = {n: model_fingerprint(config, m) for n, m in config.mutators.items() if m.kind == "served"}
    infos = tuple(
        MutatorInfo(
            n, m.kind, role_of(n, m, config.baseline), m.model or "", m.of or "", m.lookahead, edit=m.edit,
            trained_on=_trained_on(config, m),
        )
        for n, m in config.mutators.items()
    )
    seeds = config.seed_list()
    out = config.out().resolve()
    journal = out / "journal"

    def specs(name: str, m: Mutator) -> list[SearchSpec]:
        """One mutator's searches. Seeds are the outer loop: a run that is cut short has whole seeds."""
        answers = m.of if m.kind == "best_of_n" else name  # whose replies
        weights = fingerprints.get(answers, f"{m.kind} {m.lookahead} {m.journal or ''} {__version__}")
        shared: dict[str, Any] = {
            "base_url": "", "mutator": name, "model": answers, "iterations": config.iterations,
            "edit": m.edit or config.edit, "prompt_format": config.prompt_format, "temperature": config.temperature,
            "top_p": config.top_p, "max_tokens": config.max_tokens, "request_timeout_s": config.request_timeout_s,
            "role": config.role,
        }  # fmt: skip
        found = []
        for seed in seeds:
            for scaffold in ["best_of_n"] if m.kind == "best_of_n" else config.scaffold:
                for task in tasks.values():
                    identity = hashlib.sha256(f"{weights}\0{hashes[task.name]}".encode()).hexdigest()[:8]
                    own = f"seed{seed}" if scaffold in ("openevolve", "best_of_n") else f"{scaffold}-seed{seed}"
                    search = f"{name}--{slug(task.name)}--{own}--{identity}"
                    found.append(SearchSpec(
                        task=str(task.folder), out=str(out / name / slug(task.name) / own), name=search, seed=seed,
                        domain=task.domain, journal=str(journal / f"{search}.jsonl"), scaffold=scaffold, **shared,
                    ))  # fmt: skip
        return found

    of = {n: specs(n, m) for n, m in config.mutators.items()}
    without = [s for n, m in config.mutators.items() if m.kind in ("ast", "replay") for s in of[n]]
    groups = [Group(None, tuple(without))] if without else []
    for n, m in config.mutators.items():
        if m.kind == "served":
            sampled = [s for k, o in config.mutators.items() if o.kind == "best_of_n" and o.of == n for s in of[k]]
            groups.append(Group(n, tuple(of[n] + sampled)))
    return Plan(tasks, dict(config.mutators), infos, tuple(groups), tuple(seeds), fingerprints, config.role)


def recorded(config: Config, mutator: Mutator, spec: SearchSpec, task: Task) -> Path:
    """The journal of the search of the same task, seed and scaffold that a `replay` mutator answers from.

    Raises EftError where the earlier evaluation has no such search, or several (of different weights).
    """
    folder = config.path(mutator.journal or "")
    own = Path(spec.out).name
    found = sorted(folder.glob(f"{mutator.of}--{slug(task.name)}--{own}--*.jsonl"))
    if len(found) != 1:
        why = f"{len(found)} journals of '{mutator.of}' are about {task.name}, {own}"
        raise EftError("there is nothing to replay", where=folder, why=why)
    return found[0]


def drop_stale(plan: Plan) -> int:
    """Remove results of other weights or of another version of a task, which would not be replaced but mixed with.

    Their journals stay (they are named by fingerprint). Returns how many searches were dropped.
    """
    dropped = 0
    for spec in plan.specs:
        if not spec.folder.exists():
            continue
        known = None
        for file, kind in ((spec.folder / "spec.json", SearchSpec), (spec.folder / RESULT, SearchResult)):
            try:
                known = known or kind.load(file).name
            except EftError:
                continue
        if known is not None and known != spec.name:
            shutil.rmtree(spec.folder)
            dropped += 1
    if dropped:
        print(f"evaluate: {dropped} searches were of other weights or other tasks and are run again", file=sys.stderr)
    return dropped
