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
from eft.evaluate.loops import Loop, chosen, slug, task_fingerprint
from eft.evaluate.results import PROGRAMS, MutatorInfo, TaskInfo
from eft.evaluate.settings import Config, Mutator
from eft.models.load import locate
from eft.search.spec import RESULT, SearchResult, SearchSpec, finished
from eft.tasks.task import Task

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,39}")
RESERVED = ("journal", "models", "logs", "replaced", "loops", "arms")  # folders of the evaluation's own


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
    loops: tuple[Loop, ...]

    @property
    def specs(self) -> list[SearchSpec]:
        return [s for g in self.groups for s in g.specs]

    def loop_of(self, task: str) -> Loop:
        """The loop of a task, by the task's name."""
        return next(loop for loop in self.loops if any(t.name == task for t in loop.tasks))


def chosen_tasks(config: Config) -> dict[str, Task]:
    """The tasks of an evaluation by name, of all its loops. Raises what `eft.evaluate.loops.chosen` raises."""
    return {t.name: t for loop in chosen(config) for t in loop.tasks}


def task_info(task: Task, loop: str = PROGRAMS) -> TaskInfo:
    return TaskInfo(
        task.name, task.domain, task.direction, task.raw_metric, task.seed_raw, task.seed_score, task.best_known,
        task.best_known_source, task.isolation, task.has_hidden, task.hidden_seed_raw, task.hidden_best_known,
        task_fingerprint(task), loop, task.family,
    )  # fmt: skip


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
    return "baseline" if name == baseline else "tuned" if mutator.kind in ("served", "routed") else "control"


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
        if m.kind == "routed":
            _check_routed(name, m, config)
        if m.journal is not None and not config.path(m.journal).is_dir():
            raise UsageError(f"'{name}' has no journals to replay", where=config.path(m.journal),
                             way_out="give the folder `journal` of an earlier evaluation")  # fmt: skip


def _check_routed(name: str, m: Mutator, config: Config) -> None:
    arms = [n for n, o in config.mutators.items() if o.kind in ("served", "ast")]
    for arm in m.among:
        if arm not in arms:
            why = f"it chooses among served mutators and `ast` ones, and '{arm}' is none here"
            raise UsageError(f"'{name}' cannot route to '{arm}'", why=why, way_out=nearest(arm, arms))
    ours = [n for n in m.among if config.mutators[n].kind == "served" and not config.mutators[n].servers]
    if len(ours) > 1:
        raise UsageError(f"'{name}' routes among several models that would have to be served at once",
                         why=f"{', '.join(ours)}; one server of ours runs at a time",
                         way_out="serve all but one of them elsewhere, and give `base_url`")  # fmt: skip
    from eft.mutators import routed

    routed.check(config.path(m.policy or ""), list(m.among))


def host(m: Mutator, config: Config) -> str | None:
    """The served mutator in whose group a mutator's searches run: the one whose server a routed one needs."""
    served = [n for n in m.among if config.mutators[n].kind == "served"]
    return next((n for n in served if not config.mutators[n].servers), served[0] if served else None)


def _weights(config: Config, name: str, m: Mutator, fingerprints: dict[str, str]) -> str:
    """What a mutator's replies depend on, beside the request: its weights, its policy, its options."""
    if m.kind == "routed":
        policy = hashlib.sha256(config.path(m.policy or "").read_bytes()).hexdigest()
        arms = (f"{n}={_weights(config, n, config.mutators[n], fingerprints)}" for n in m.among)
        return f"routed {policy} {' '.join(arms)}"
    whose = m.of if m.kind == "best_of_n" else name
    return fingerprints.get(whose or "", f"{m.kind} {m.lookahead} {m.journal or ''} {__version__}")


def make(config: Config) -> Plan:
    """The plan of an evaluation. Everything that a user can have got wrong surfaces here, before anything is started.

    Raises UsageError (see `check`, `eft.evaluate.loops.chosen`, `model_fingerprint`) and EftError for a task that cannot be read.
    """
    check(config)
    loops = chosen(config)
    pairs = [(loop, t) for loop in loops for t in loop.tasks]
    tasks = {t.name: t for _, t in pairs}
    hashes = {name: task_fingerprint(t) for name, t in tasks.items()}
    fingerprints = {n: model_fingerprint(config, m) for n, m in config.mutators.items() if m.kind == "served"}
    infos = tuple(
        MutatorInfo(
            n, m.kind, role_of(n, m, config.baseline), m.model or "", m.of or ", ".join(m.among), m.lookahead,
            edit=m.edit,
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
        weights = _weights(config, name, m, fingerprints)
        shared: dict[str, Any] = {
            "base_url": "", "mutator": name, "model": answers,
            "edit": m.edit or config.edit, "prompt_format": config.prompt_format, "temperature": config.temperature,
            "top_p": config.top_p, "max_tokens": config.max_tokens, "request_timeout_s": config.request_timeout_s,
        }  # fmt: skip
        found = []
        for seed in seeds:
            for scaffold in ["best_of_n"] if m.kind == "best_of_n" else config.scaffold:
                for loop, task in pairs:
                    identity = hashlib.sha256(f"{weights}\0{hashes[task.name]}".encode()).hexdigest()[:8]
                    own = f"seed{seed}" if scaffold in ("openevolve", "best_of_n") else f"{scaffold}-seed{seed}"
                    search = f"{name}--{slug(task.name)}--{own}--{identity}"
                    found.append(SearchSpec(
                        task=str(task.folder), out=str(out / name / slug(task.name) / own), name=search, seed=seed,
                        domain=task.domain, journal=str(journal / f"{search}.jsonl"), scaffold=scaffold,
                        iterations=loop.iterations, role=loop.role, **shared,
                    ))  # fmt: skip
        return found

    of = {n: specs(n, m) for n, m in config.mutators.items()}
    hosts = {n: host(m, config) for n, m in config.mutators.items() if m.kind == "routed"}
    alone = [n for n, m in config.mutators.items() if m.kind in ("ast", "replay") or hosts.get(n, n) is None]
    without = [s for n in alone for s in of[n]]
    groups = [Group(None, tuple(without))] if without else []
    for n, m in config.mutators.items():
        if m.kind == "served":
            sampled = [s for k, o in config.mutators.items() if o.kind == "best_of_n" and o.of == n for s in of[k]]
            routed = [s for k, chosen_host in hosts.items() if chosen_host == n for s in of[k]]
            groups.append(Group(n, tuple(of[n] + sampled + routed)))
    return Plan(tasks, dict(config.mutators), infos, tuple(groups), tuple(seeds), fingerprints, tuple(loops))


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
