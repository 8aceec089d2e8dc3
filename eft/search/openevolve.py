"""Search with OpenEvolve: the library, untouched, in a process of its own, one candidate at a time.

    python -m eft.search.openevolve SPEC.json

Writes into the search's folder what anybody's OpenEvolve run leaves (checkpoints/, best/, logs/, evolution_trace.jsonl,
evolution_trace_failures.jsonl, config.yaml), and beside it run.json (what the search was about), evaluations.jsonl (the
cache) and, last, result.json.

Killed at any moment and started again with the same gateway journal, the search replays: every prompt comes out the
same (see determinism.py), the gateway answers from its journal and the scores come from the cache, so no reply is paid
for and no candidate evaluated twice. A mutator that stops answering ends the search early, as failed, after `PATIENCE`
requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from eft.errors import EftError
from eft.manifest import write_json, write_text
from eft.search import process
from eft.search.evaluator import EVALUATOR_PY, Scorer
from eft.search.sampling import PATIENCE
from eft.search.settings import PROMPT_SETTINGS, openevolve_config  # noqa: F401  PROMPT_SETTINGS: part of the interface
from eft.search.spec import RESULT, RUN, SearchResult, SearchSpec
from eft.search.tally import FAILURES, TRACE, no_answer, read_journal, read_openevolve, tally


def run_search(spec: SearchSpec, timeout_s: float | None = None) -> SearchResult:
    """Run one search in a process of its own. Raises EftError (with the log's path) where it fails."""
    return process.wait(spec, process.start(spec), timeout_s)


# ------------------------------------------------------------------------------------------ inside the search's process


def body(spec: SearchSpec) -> None:
    """The search itself: OpenEvolve from start to end, then the tally of what came of it."""
    started = time.time()
    from eft.search.determinism import settle

    settle(spec.seed)
    if os.environ.get(process.PARENT):
        os.register_at_fork(after_in_child=process.die_with_parent)  # not inherited over a fork

    scorer = Scorer.of(spec)
    release = openevolve_release()
    write_run(spec, scorer.task, release)
    note = _evolve(spec, scorer.task)

    attempts = read_openevolve(spec.folder)
    result = tally(spec, attempts, read_journal(spec.journal), scorer, release, time.time() - started, note)
    result.save(spec.folder / RESULT)


def openevolve_release() -> str:
    """The installed OpenEvolve's version. Raises EftError where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("openevolve")
    except PackageNotFoundError:
        raise EftError("OpenEvolve is not installed", way_out="pip install openevolve") from None


def write_run(spec: SearchSpec, task: Any, release: str) -> None:
    """`run.json`: what OpenEvolve's own logs do not tell, for whoever harvests them."""
    write_json(spec.folder / RUN, {
        "search": spec.name, "task": task.name, "domain": spec.domain or task.domain, "role": spec.role,
        "prompt_format": spec.prompt_format, "edit": spec.edit, "mutator": spec.mutator, "model": spec.model,
        "seed": spec.seed, "iterations": spec.iterations, "scaffold": spec.scaffold, "scaffold_release": release,
    })  # fmt: skip


def _evolve(spec: SearchSpec, task: Any) -> str:
    """Run OpenEvolve. Returns what must be said about the result, "" mostly. Raises EftError where it did not end."""
    import yaml
    from openevolve import Config, EvolutionFailedError, OpenEvolve

    os.chdir(spec.folder)
    settings = openevolve_config(spec, task)
    write_text(spec.folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    (spec.folder / "evaluator.py").write_text(EVALUATOR_PY, encoding="utf-8")
    if spec.api_key_env:
        settings["llm"]["api_key"] = f"${{{spec.api_key_env}}}"  # resolved by OpenEvolve, never written down

    engine = OpenEvolve(
        str(task.initial_program), str(spec.folder / "evaluator.py"), Config.from_dict(settings), str(spec.folder)
    )
    _quieten()
    note, watch = "", Watch(spec.folder)

    async def evolve() -> None:
        watching = asyncio.create_task(watch.until_gone(lambda: engine.parallel_controller))
        try:
            await engine.run(iterations=spec.iterations)
        finally:
            watching.cancel()

    try:
        asyncio.run(evolve())
    except EvolutionFailedError:
        # OpenEvolve raises where no iteration gave a program. That is a result (the seed) if the mutator did answer.
        note = "no reply could be used: the result is the seed program"
    if watch.error or watch.look():
        raise EftError("the mutator does not answer", where=spec.base_url, why=watch.error,
                       way_out="see that its server runs, then run the same command again")  # fmt: skip
    return note


def _quieten() -> None:
    """Keep OpenEvolve's log file; drop its copy on the console and the HTTP client's line for every request."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    for name in ("httpx", "httpx2", "httpcore", "openai", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


class Watch:
    """Ends a search whose mutator is gone: OpenEvolve would fail one iteration after the other up to the last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error = ""  # the last failure, once the mutator counts as gone
        self._offsets = {TRACE: 0, FAILURES: 0}
        self._answered, self._unanswered = 0, {}  # last iteration with an answer; iteration -> error without one

    def look(self) -> bool:
        """Read what is new in the logs. True once the last `PATIENCE` requests went unanswered."""
        for name in self._offsets:
            for record in self._new(name):
                iteration, error = int(record.get("iteration", 0)), str(record.get("error", ""))
                if no_answer(error):
                    self._unanswered[iteration] = error
                else:
                    self._answered = max(self._answered, iteration)
        since = sorted(i for i in self._unanswered if i > self._answered)
        if len(since) >= PATIENCE:
            self.error = self._unanswered[since[-1]]
        return bool(self.error)

    def _new(self, name: str) -> list[dict[str, Any]]:
        try:
            with open(self.folder / name, "rb") as f:
                f.seek(self._offsets[name])
                data = f.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[name] += len(whole)
        return [json.loads(line) for line in whole.splitlines() if line.strip()]

    async def until_gone(self, controller: Any) -> None:
        """Look five times a second; ask `controller()` to stop once the mutator is gone."""
        while True:
            await asyncio.sleep(0.2)
            if self.look() and controller() is not None:
                controller().request_shutdown()
                return


if __name__ == "__main__":
    process.main(body)
