"""eft evaluate: held-out searches with a tuned mutator and with its controls, paired by task and seed.

    eft evaluate --config recipes/smollm2_135m/evaluate.yaml

Contract. Every mutator runs the same searches (tasks x seeds x scaffolds) through the real scaffold, every reply goes
through the recording gateway, and every search is a file when it is done. Served mutators come one server at a time,
with all their searches (and best-of-N of the same replies) in flight. Killed at any moment, the same command goes on:
finished searches are skipped, and so is a server that has nothing left to do; unfinished ones replay their journal, so
no reply and no evaluation is paid for twice. A search that fails, or a server that does not start, is written into the
results and takes no other along; the exit code is 1 then. `--force` starts over: results go, journals are put aside.

`loops:` adds other loops than programs (docs/loops.md): their task folders are made under loops/<name>/, what their
evaluations need runs as long as searches do, and their controls and confirmations are computed after the searches.

Writes <mutator>/<task>/seed<k>/ (one folder a search), journal/, logs/ (servers), loops/, results.json, and
manifest.json when nothing failed.

Honest limits: one server of ours at a time, on this machine; wall times of searches in flight together do not compare
mutators. With `--executor ray` the output folder must be one that all machines see, and so must the gateway's address.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import platform
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eft import __version__, manifest
from eft import config as configs
from eft.errors import EftError
from eft.evaluate import inprocess, loops, parts, servers, summary
from eft.evaluate import plan as plans
from eft.evaluate import results as tables
from eft.evaluate.compare import compare
from eft.evaluate.foresee import dry_run
from eft.evaluate.plan import Group, Plan
from eft.evaluate.results import Results, Search
from eft.evaluate.settings import Config
from eft.evaluate.terminal import show
from eft.evaluate.text import duration, plural
from eft.models.load import locate
from eft.mutators import metrics
from eft.search.executor import opened, run_all
from eft.search.process import holding
from eft.search.spec import finished
from eft.tasks import sandbox
from eft.tasks.evaluate import check_seed
from eft.tasks.task import Task

__all__ = ["Config", "dry_run", "inputs", "run"]


def say(text: str) -> None:
    print(f"evaluate: {text}", file=sys.stderr, flush=True)


def inputs(config: Config) -> list[Path]:
    """The models, the policies and the tasks. Raises UsageError where the options name none that exist."""
    models = [Path(locate(m.model, config.root)) for m in config.mutators.values() if m.model and not m.servers]
    models = [m for m in models if m.is_dir()]
    policies = [config.path(m.policy) for m in config.mutators.values() if m.policy]
    return models + policies + [t.folder for t in plans.chosen_tasks(config).values()]


def discard(config: Config) -> None:
    """Make ready for a repetition from the start (`--force`): results go, journals are put aside under `replaced/`,
    since their replies were paid for. Raises EftError where another evaluation runs in the folder."""
    out = config.out()
    if not out.is_dir():
        return
    with holding(out, "another evaluation", wait_s=0.5), manifest.clear_disk_errors(out):
        (out / manifest.NAME).unlink(missing_ok=True)
        (out / tables.NAME).unlink(missing_ok=True)
        for name in (*config.mutators, loops.FOLDER):
            shutil.rmtree(out / name, ignore_errors=True)
        if (out / "journal").is_dir():
            aside = out / "replaced" / f"journal-{len(list((out / 'replaced').glob('journal-*'))) + 1}"
            aside.parent.mkdir(exist_ok=True)
            (out / "journal").rename(aside)
            say(f"starting over; the journals so far are in {aside}")


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that servers and searches are stopped and not left behind."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: whoever called us handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_group(config: Config, plan: Plan, group: Group, title: str, starter: Any) -> tuple[dict[str, str], str]:
    """Run what is left of one group. Returns (reasons of the failed searches by search id, the server's version).

    Never raises for a server or a search that fails: the reason is every affected search's.
    """
    from eft.mutators.gateway import Gateway, running

    pending = group.pending()
    if not pending:
        say(f"{title}: all {plural(len(group.specs), 'search')} stand already")
        return {}, ""
    say(f"{title}: {len(pending)} of {plural(len(group.specs), 'search')} to run")
    version, cached = "", None
    try:
        with contextlib.ExitStack() as stack:
            server, mutators = None, {}
            if group.server is not None:
                server = stack.enter_context(servers.served(config, plan, group.server))
                mutators, version = {group.server: server.upstream}, server.version
                cached = metrics.prefix_cache(server.upstream.urls)
            mutators |= stack.enter_context(inprocess.mutators(config, plan, group, server))
            gateway = stack.enter_context(running(
                Gateway(config.out() / "journal", mutators, threads=config.workers, host=config.gateway_host)
            ))  # fmt: skip
            specs = [dataclasses.replace(s, base_url=gateway.url(s.name, s.model)) for s in pending]
            outcomes = run_all(
                specs, config.workers, timeout_s=config.search_timeout_s, title=title, starter=starter
            )
            if server is not None and (words := metrics.shared(cached, metrics.prefix_cache(server.upstream.urls))):
                say(f"{title}: {words}")
            failed = {o.spec.name: _cause(o.error) for o in outcomes if o.status == "failed"}
            if failed and server is not None:
                server.check()  # where it is gone, that is the reason, and not that nobody answers
    except EftError as e:
        say(f"{title}: {e}")
        return {s.name: _cause(str(e)) for s in pending if finished(s) is None}, version
    return failed, version


def _cause(error: str | None) -> str:
    """What failed, why and where to read on, on one line; without the way out, which is ours to say."""
    head = (error or "no reason given").splitlines()[0]
    found = dict(re.findall(r"^  (why|where): (.*)$", error or "", re.MULTILINE))
    if head.startswith("the search '"):  # that is known from the row it stands in
        text = found.get("why", head)
    else:
        text = f"{head}: {found['why']}" if "why" in found else head
    return f"{text} ({found['where']})" if "where" in found else text


def gather(
    config: Config, plan: Plan, reasons: dict[str, str], versions: dict[str, str], started: float, seconds: float,
    aside: dict[str, loops.Beside] | None = None,
) -> Results:  # fmt: skip
    """The results as they stand on disk now; `reasons`: why searches failed, by id; `aside`: what stands beside the
    searches, by loop."""
    by_folder = {str(t.folder): t for t in plan.tasks.values()}
    searches: list[Search] = []
    starts: dict[str, set[float]] = {}
    for spec in plan.specs:
        task = by_folder[spec.task]
        result = finished(spec)
        if result is not None:
            searches.append(summary.of(spec, result, task))
            if result.seed_raw is not None:
                starts.setdefault(task.name, set()).add(result.seed_raw)
        elif spec.name in reasons:
            searches.append(summary.failed(spec, task, reasons[spec.name]))
    order = {name: i for i, name in enumerate(plan.mutators)}
    infos = []
    for info in plan.infos:
        own = [s for s in searches if s.mutator == info.name]
        same = {s.reason for s in own} if own and all(s.status == "failed" for s in own) else set()
        infos.append(dataclasses.replace(info, error=same.pop().splitlines()[0] if len(same) == 1 else ""))
    stands, places = (aside or {}).values(), list(plan.tasks)
    return Results(
        tasks=tuple(_measured(t, loop.name, starts.get(t.name, set())) for loop in plan.loops for t in loop.tasks),
        mutators=tuple(infos),
        searches=tuple(sorted(searches, key=lambda s: (order[s.mutator], places.index(s.task), s.seed))),
        planned=len(plan.specs), seeds=plan.seeds,
        config=config.model_dump(mode="json"), versions=versions,
        command=_command(config), started=started, seconds=round(seconds, 1),
        planned_of={x.name: sum(s.task in {str(t.folder) for t in x.tasks} for s in plan.specs) for x in plan.loops},
        methods=tuple(m for b in stands for m in b.methods), confirmed=tuple(c for b in stands for c in b.confirmed),
        troubles={name: b.trouble for name, b in (aside or {}).items() if b.trouble},
    )  # fmt: skip


def _measured(task: Task, loop: str, starts: set[float]) -> tables.TaskInfo:
    """The task's card, with its start value as these searches measured it, where they agree."""
    info = plans.task_info(task, loop)
    return dataclasses.replace(info, start_raw=next(iter(starts))) if len(starts) == 1 else info


def _command(config: Config) -> str:
    """How to do it again: the command as it was given, or with the resolved options where it was not given by hand."""
    if sys.argv[1:2] == ["evaluate"]:
        return shlex.join(["eft", *sys.argv[1:]])
    return shlex.join(["eft", "evaluate", "--config", str(config.out() / "config.yaml")])


def _versions(before: dict[str, str]) -> dict[str, str]:
    found = {
        "eft": __version__,
        "python": platform.python_version(),
        "openevolve": importlib.metadata.version("openevolve"),
    }
    return {**before, **found}


def _say_time_left(plan: Plan, groups_done: int, done_before: int, started: float) -> None:
    """How long the other groups will take if their searches take as long as this run's have."""
    left = sum(len(g.pending()) for g in plan.groups[groups_done:])
    ran = sum(finished(s) is not None for s in plan.specs) - done_before
    if left and ran:
        seconds = (time.time() - started) / ran * left
        say(f"{plural(left, 'search')} left, about {duration(seconds)}")


def run(config: Config) -> Path:
    """Run the evaluation, or what is left of it. Returns the output folder.

    Raises UsageError for options that cannot work, before anything is started; EftError at the end where searches
    failed (the results are written all the same).
    """
    plan = plans.make(config)
    sandbox.choose(config.sandbox)
    servers.check(config, plan)
    loops.check(config, _pending_loops(plan))
    with manifest.clear_disk_errors(config.out()):
        config.out().mkdir(parents=True, exist_ok=True)
    with holding(config.out(), "another evaluation", wait_s=0.5):
        return _run(config, plan)


def _pending_loops(plan: Plan) -> list[loops.Loop]:
    """The loops with searches that have no result yet."""
    waiting = {s.task for g in plan.groups for s in g.pending()}
    return [loop for loop in plan.loops if waiting & {str(t.folder) for t in loop.tasks}]


def _run(config: Config, plan: Plan) -> Path:
    """`run`, once the folder is ours."""
    started = time.time()
    out = config.out()
    with manifest.clear_disk_errors(out):
        (out / manifest.NAME).unlink(missing_ok=True)  # it stands for a finished evaluation
        manifest.write_text(out / "config.yaml", configs.dump(config))
        plans.drop_stale(plan)
    done = sum(finished(s) is not None for s in plan.specs)
    versions, first, spent = _versions({}), started, 0.0
    if done and (out / tables.NAME).exists():
        with contextlib.suppress(EftError):
            old = tables.load(out)
            versions, first, spent = _versions(old.versions), old.started or started, old.seconds
    size = (
        plural(len(n), noun) for n, noun in ((plan.mutators, "mutator"), (plan.tasks, "task"), (plan.seeds, "seed"))
    )
    searches = plural(len(plan.specs), "search")
    say(f"{' x '.join(size)}, {plural(config.iterations, 'proposal')} each: {searches}, {done} done already")
    reasons: dict[str, str] = {}
    aside: dict[str, loops.Beside] = {}
    pending = [s for g in plan.groups for s in g.pending()]

    def record() -> Results:
        """Write what stands by now; a report can be made of it at any moment."""
        found = gather(config, plan, reasons, versions, first, spent + time.time() - started, aside)
        manifest.write_json(out / tables.NAME, tables.to_json(found))
        return found

    most = max((len(g.pending()) for g in plan.groups), default=0)
    with _ended_by_signal(), contextlib.ExitStack() as stack:
        starter = None
        if pending:  # it loads while the tasks are looked at
            starter = stack.enter_context(opened(config.executor, min(config.workers, most)))
        held = loops.Held(config, stack)
        for loop in _pending_loops(plan):
            held.hold(loop)
        waiting = {s.task for s in pending}
        for task in plan.tasks.values():
            if str(task.folder) in waiting:
                check_seed(task)
        results = record()
        # The comparison needs it, and loading it takes a second: while searches run there is time for that.
        threading.Thread(target=importlib.import_module, args=("scipy.stats",), daemon=True).start()
        for number, group in enumerate(plan.groups, 1):
            title = f"[{number}/{len(plan.groups)}] {group.server or 'without a model'}"
            failed, version = run_group(config, plan, group, title, starter)
            reasons |= failed
            versions |= {"vllm": version} if version else {}
            results = record()
            _say_time_left(plan, number, done, started)
        for loop in plan.loops:
            aside[loop.name] = loops.beside(config, plan, loop, held)
        results = record()
    found = {name: parts.part(results, name) for name in parts.loops(results)}
    compared = {name: compare(own) for name, own in found.items()}
    for name in found:
        show(found[name], compared[name], title=name if len(found) > 1 else "")
    say(
        f"{len(results.searches) - len(reasons)} of {searches} stand, {duration(time.time() - started)}; "
        f"results in {out / tables.NAME}"
    )
    if reasons:
        name, why = next(iter(reasons.items()))
        raise EftError(f"{len(reasons)} of {searches} failed", where=out / tables.NAME, why=f"{name}: {why}",
                       way_out="mend the cause and run the same command again: finished searches are kept")  # fmt: skip
    if results.troubles:
        name, why = next(iter(results.troubles.items()))
        raise EftError(f"the controls of the loop '{name}' could not all be had", where=out / tables.NAME, why=why,
                       way_out="mend the cause and run the same command again: all searches are kept")  # fmt: skip
    rows = {name: c.rows for name, c in compared.items()}
    closed = {n: {r.mutator.name: round(r.gap.point, 4) if r.gap else None for r in own} for n, own in rows.items()}
    main = parts.headliner(results)
    counts = {
        "searches": len(results.searches), "proposals": sum(s.proposals for s in results.searches),
        "completion_tokens": sum(s.completion_tokens or 0 for s in results.searches),
        "gap_closed": closed[main],
        "valid_edit_rate": {
            r.mutator.name: round(r.behaviour.valid.point, 4) if r.behaviour.valid else None for r in rows[main]
        },
        **({"loops": {n: own for n, own in closed.items() if n != main}} if len(closed) > 1 else {}),
    }  # fmt: skip
    manifest.write(
        out, "evaluate", config.model_dump(mode="json"), inputs(config), [out / tables.NAME], counts, started
    )
    return out
