"""Real searches: OpenEvolve through the gateway, with all that a mutator, a server or a `kill -9` can do to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from toy import PROGRAM, Clumsy, trail

from eft import prompts
from eft.errors import EftError, UsageError
from eft.mutators.ast import AstMutator
from eft.mutators.gateway import Gateway, running
from eft.mutators.upstream import Upstream
from eft.search import executor
from eft.search.nursery import Nursery
from eft.search.openevolve import run_search
from eft.search.spec import RESULT, SearchResult, SearchSpec

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def behind_gateway(folder: Path, specs: list[SearchSpec], **mutators) -> Iterator[list[SearchSpec]]:
    """The specs with base URLs, each at the mutator of its name; journals in `folder`."""
    with running(Gateway(folder, mutators)) as gateway:
        yield [s.replace(base_url=gateway.url(s.name, s.mutator), journal=str(folder / f"{s.name}.jsonl"))
               for s in specs]  # fmt: skip


def replies(folder: Path, name: str) -> list[dict]:
    records = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [r for r in records if r["kind"] == "reply"]


def test_every_kind_of_reply_in_both_forms_and_formats(spec, tmp_path) -> None:
    """Nine calls, nine fates, in diff and in rewrite mode, in our format and the stock one; all at once."""
    specs = [spec(f"{edit}-{fmt[0]}", edit=edit, prompt_format=fmt, mutator="clumsy", iterations=9)
             for edit in ("diff", "rewrite") for fmt in ("eft@1", "openevolve@0.4")]  # fmt: skip
    with behind_gateway(tmp_path / "journal", specs, clumsy=lambda search: Clumsy()) as ready:
        outcomes = executor.run_all(ready, workers=2, quiet=True)
        assert [o.status for o in outcomes] == ["done"] * 4, [o.error for o in outcomes]
        again = executor.run_all(ready, workers=2, quiet=True)
    assert [o.status for o in again] == ["skipped"] * 4
    assert [o.result for o in again] == [o.result for o in outcomes]
    for o in outcomes:
        r, s = o.result, o.spec
        assert [c.status for c in r.candidates] == list(Clumsy.STATUS[s.edit]), s.name
        assert (r.replies, r.valid_edits, r.distinct_valid_edits) == (9, 3, 2)
        assert sum(r.failures.values()) == 6 and r.iterations_done == 9 and len(r.best_curve) == 9
        assert r.best_score > r.seed_score and r.best_code != PROGRAM
        assert r.scaffold_release and r.seconds > 0
        assert len(replies(tmp_path / "journal", s.name)) == 9
        _logs_are_like_anybodys(s)


def _logs_are_like_anybodys(spec: SearchSpec) -> None:
    """What harvest reads: the trace, the failures, a last checkpoint, and what run.json says beside them."""
    folder = spec.folder
    rows = trail(folder)
    assert [r[0] for r in rows] == list(range(1, 10))
    for _, user, _ in rows:
        assert prompts.current_program(user) and prompts.edit_kind(user) == spec.edit
        assert prompts.detect_format("", user, release="0.4.1") == spec.prompt_format
    assert (folder / "checkpoints/checkpoint_9" / "metadata.json").exists() or not rows[-1][2]
    run = json.loads((folder / "run.json").read_text())
    assert run["task"] == "toys/toy" and run["domain"] == "toys" and run["scaffold"] == "openevolve"
    assert (run["prompt_format"], run["edit"], run["mutator"]) == (spec.prompt_format, spec.edit, "clumsy")
    assert yaml.safe_load((folder / "config.yaml").read_text())["llm"]["api_key"] == "none"
    assert not (folder / ".tmp").exists()


def test_the_same_seed_gives_the_same_search_and_another_one_does_not(spec, toy, tmp_path) -> None:
    from eft.tasks.task import load_task

    task = load_task(toy)
    stock = "openevolve@0.4"
    specs = [spec(f"{k}", mutator="ast", iterations=16, seed=seed, prompt_format=fmt)
             for k, (seed, fmt) in enumerate([(1, "eft@1"), (1, "eft@1"), (2, "eft@1"), (1, stock), (1, stock)])
             ]  # fmt: skip
    seeds = {s.name: s.seed for s in specs}
    with behind_gateway(tmp_path / "journal", specs, ast=lambda search: AstMutator(seeds[search], task=task)) as ready:
        outcomes = executor.run_all(ready, workers=2, quiet=True)
    assert [o.status for o in outcomes] == ["done"] * 5, [o.error for o in outcomes]
    trails = [trail(s.folder) for s in specs]
    assert trails[0] == trails[1] and trails[3] == trails[4]
    assert trails[0] != trails[2]
    assert all(o.result.valid_edit_rate > 0.7 for o in outcomes)


def test_best_of_n_asks_what_the_first_iteration_asks(spec, tmp_path) -> None:
    specs = [spec(f"{scaffold}-{i}", scaffold=scaffold, prompt_format=fmt, edit=edit, iterations=9, mutator="clumsy")
             for i, (fmt, edit) in enumerate([("eft@1", "diff"), ("openevolve@0.4", "rewrite")])
             for scaffold in ("openevolve", "best_of_n")]  # fmt: skip
    with behind_gateway(tmp_path / "journal", specs, clumsy=lambda search: Clumsy()) as ready:
        outcomes = executor.run_all(ready, workers=2, quiet=True)
    assert [o.status for o in outcomes] == ["done"] * 4, [o.error for o in outcomes]
    for search, samples in zip(specs[::2], specs[1::2], strict=True):
        asked = replies(tmp_path / "journal", samples.name)
        first = replies(tmp_path / "journal", search.name)[0]
        assert len(asked) == 9 and all(r["messages"] == first["messages"] for r in asked)
        assert len({r["params"]["seed"] for r in asked}) == 9
        result = SearchResult.load(samples.folder / RESULT)
        assert [c.status for c in result.candidates] == list(Clumsy.STATUS[samples.edit])
        assert {c.parent_hash for c in result.candidates} == {result.candidates[0].parent_hash}


def test_an_unreachable_server_fails_its_search_and_no_other(spec, tmp_path) -> None:
    dead = Upstream("http://127.0.0.1:9/v1", "none", retries=0)
    specs = [spec("dead", mutator="dead", iterations=1000), spec("dead-samples", mutator="dead", scaffold="best_of_n"),
             spec("short", mutator="dead", iterations=2), spec("good", mutator="clumsy")]  # fmt: skip
    with behind_gateway(tmp_path / "journal", specs, dead=dead, clumsy=lambda search: Clumsy()) as ready:
        outcomes = executor.run_all(ready, workers=4, quiet=True)
    assert [o.status for o in outcomes] == ["failed", "failed", "failed", "done"]
    for o in outcomes[:2]:
        assert "does not answer" in o.error and "502" in o.error and "Traceback" not in o.error
    assert "2 of 2 requests had no answer" in outcomes[2].error
    assert not (specs[0].folder / RESULT).exists()
    assert len(replies(tmp_path / "journal", "dead")) < 1000  # it gave up early: it looks a few times a second


def test_a_mutator_that_never_yields_an_edit_leaves_the_seed(spec, tmp_path) -> None:
    class Prose:
        def propose(self, messages, call):
            from eft.mutators.reply import Reply

            return Reply("It looks fine to me.")

    with behind_gateway(tmp_path / "journal", [spec(mutator="prose")], prose=lambda search: Prose()) as ready:
        result = run_search(ready[0])
    assert result.failures == {"no_edit": 8} and result.valid_edit_rate == 0.0
    assert result.best_score == result.seed_score and result.best_code == PROGRAM and "seed" in result.note


def test_a_broken_task_is_named(spec, toy, tmp_path) -> None:
    (toy / "evaluator.py").unlink()
    with pytest.raises(EftError, match="'one' failed") as e:
        run_search(spec())
    assert "evaluator.py" in e.value.why and "Traceback" not in e.value.why


def test_two_searches_into_one_folder_are_refused(spec) -> None:
    with pytest.raises(UsageError, match="one folder"):
        executor.run_all([spec(), spec(seed=1)], quiet=True)


def test_a_search_that_takes_too_long_is_ended(spec, tmp_path) -> None:
    released = threading.Event()

    class Stuck(Clumsy):
        def propose(self, messages, call):
            released.wait(120)
            return super().propose(messages, call)

    with behind_gateway(tmp_path / "journal", [spec(mutator="stuck")], stuck=lambda s: Stuck()) as ready:
        (outcome,) = executor.run_all(ready, quiet=True, timeout_s=3.0)
        released.set()
    assert outcome.status == "failed" and "not finished after 3 s" in outcome.error
    _nothing_runs_in(ready[0].folder)


def test_killed_at_random_it_continues_and_pays_for_nothing_twice(spec, toy, tmp_path) -> None:
    """kill -9 for the nursery with its searches, twice; the third run ends like an undisturbed one."""
    from eft.tasks.task import load_task

    task, asked = load_task(toy), Counter()

    class Counted(AstMutator):
        def __init__(self, search: str) -> None:
            super().__init__(5, task=task)
            self.search = search

        def propose(self, messages, call):
            asked[self.search] += 1
            time.sleep(0.05)  # longer than the test needs to see how far it is
            # Not by `call`: a request that was under way when the gateway stopped has used up its number.
            return super().propose(messages, zlib.crc32(messages[-1]["content"].encode()))

    names = ("still", "shot")
    specs = [spec(n, mutator="ast", iterations=25, seed=5, prompt_format="openevolve@0.4") for n in names]
    for after in (6, 13):
        with behind_gateway(tmp_path / "journal", specs, ast=Counted) as (_, shot), Nursery() as nursery:
            child = nursery.start(shot)
            progress = executor.process.Progress(shot.folder)
            while progress.done() < after:
                assert child.poll() is None
                time.sleep(0.005)
            os.kill(nursery._process.pid, signal.SIGKILL)  # its searches die with it, OpenEvolve's worker too
            assert child.wait(120) == -signal.SIGKILL
            _nothing_runs_in(shot.folder)
    with behind_gateway(tmp_path / "journal", specs, ast=Counted) as (still, shot):
        calm, done = executor.run_all([still, shot], quiet=True)
    assert calm.status == done.status == "done", (calm.error, done.error)
    assert trail(still.folder) == trail(shot.folder)
    assert calm.result.best_curve == done.result.best_curve
    assert [c.code_hash for c in calm.result.candidates] == [c.code_hash for c in done.result.candidates]
    answered = [r for r in replies(tmp_path / "journal", "shot") if r["status"] == "ok"]
    assert asked["still"] == 25 == len(answered) == len({r["key"] for r in answered})
    # A reply that was under way, and not yet journaled, when the search died is asked for again.
    assert asked["shot"] <= 25 + 2
    keys = Counter(json.loads(line)["key"] for line in (shot.folder / "evaluations.jsonl").read_text().splitlines())
    assert max(keys.values()) == 1


def _nothing_runs_in(folder: Path) -> None:
    """No process works in the folder any more (a kill takes a moment to reach everybody)."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and Path(os.readlink(entry / "cwd")).is_relative_to(folder.resolve()):
                    left.append((entry / "cmdline").read_bytes())
        left = [c for c in left if b"worker.py" not in c]  # a sandbox ends by itself when its client is gone
        if not left:
            return
        time.sleep(0.05)
    pytest.fail(f"still running: {left}")


def test_a_killed_search_takes_no_other_along_and_a_dead_nursery_is_replaced(spec, tmp_path) -> None:
    class Slow(Clumsy):
        def propose(self, messages, call):
            time.sleep(0.3)
            return super().propose(messages, call)

    specs = [spec(n, mutator="clumsy") for n in ("shot", "good")]
    with behind_gateway(tmp_path / "journal", specs, clumsy=lambda s: Slow()) as ready:

        def shoot() -> None:
            progress = executor.process.Progress(specs[0].folder)
            while progress.done() < 2:
                time.sleep(0.01)
            os.killpg(_leader(specs[0].folder), signal.SIGKILL)

        gun = threading.Thread(target=shoot)
        gun.start()
        shot, good = executor.run_all(ready, workers=2, quiet=True)
        gun.join()
        assert (shot.status, good.status) == ("failed", "done") and "signal 9" in shot.error
        with Nursery() as nursery:
            nursery._process.kill()
            nursery._process.wait()
            assert nursery.start(ready[0]).wait(200) == 0


def _leader(folder: Path) -> int:
    """The session leader of the search that works in `folder`."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (entry.name.isdigit() and Path(os.readlink(entry / "cwd")) == folder.resolve()
                    and b"worker.py" not in (entry / "cmdline").read_bytes()):  # fmt: skip (a sandbox has a session of its own)
                return os.getsid(int(entry.name))
    raise AssertionError("no search runs there")
