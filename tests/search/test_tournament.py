"""The tournament: real searches through the gateway, killed at random moments, and its population on its own."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import PROGRAM, Clumsy, block

from eft.mutators.ast import AstMutator
from eft.mutators.gateway import Gateway, running
from eft.mutators.replay import Replay
from eft.mutators.reply import Reply
from eft.search import executor, tournament
from eft.search.nursery import Nursery
from eft.search.prompting import Shown
from eft.search.spec import SearchResult, SearchSpec
from eft.search.tournament import Member, Population, brood


def essence(result: SearchResult) -> dict:
    """Everything of a result that must not depend on how often it was interrupted."""
    return {k: v for k, v in dataclasses.asdict(result).items() if k not in ("seconds",)}


def ready(gateway: Gateway, folder: Path, spec: SearchSpec) -> SearchSpec:
    return spec.replace(base_url=gateway.url(spec.name, spec.mutator), journal=str(folder / f"{spec.name}.jsonl"))


@pytest.mark.integration
def test_every_kind_of_reply(spec, tmp_path) -> None:
    """The budget is exact, also where it is no multiple of a generation; every failure has its name."""
    one = spec("one", scaffold="tournament", iterations=52, mutator="clumsy")
    with running(Gateway(tmp_path / "journal", {"clumsy": lambda search: Clumsy()})) as gateway:
        (outcome,) = executor.run_all([ready(gateway, tmp_path / "journal", one)], quiet=True)
    assert outcome.status == "done", outcome.error
    r = outcome.result
    assert (r.scaffold, r.replies, r.iterations_done, len(r.best_curve)) == ("tournament", 52, 52, 52)
    assert [c.iteration for c in r.candidates] == list(range(1, 53)) and brood(52) == 2
    assert set(r.failures) >= {"no_edit", "unmatched", "no_op", "malformed", "invalid"}
    assert r.best_score > r.seed_score and list(r.best_curve) == sorted(r.best_curve)
    assert (r.final_score, r.final_raw, r.seed_final_raw) == (r.best_score, r.best_raw, r.seed_raw)
    assert r.sandbox and r.isolation == "isolated" and r.note == ""
    lines = [json.loads(line) for line in (one.folder / "samples.jsonl").read_text().splitlines()]
    assert len(lines) == 52 and all("# Current Program" in line["prompt"][-1]["content"] for line in lines)


@pytest.mark.integration
def test_killed_at_random_and_replayed_it_is_bit_equal(spec, toy, tmp_path) -> None:
    """kill -9 three times against a journal that is replayed: the result is the undisturbed one, and nothing was asked
    that was answered before."""
    from eft.tasks.task import load_task

    task, journal = load_task(toy), tmp_path / "journal"
    still = spec("still", scaffold="tournament", iterations=60, mutator="ast", seed=3)
    with running(Gateway(journal, {"ast": lambda search: AstMutator(3, task=task)})) as gateway:
        (calm,) = executor.run_all([ready(gateway, journal, still)], quiet=True)
    assert calm.status == "done", calm.error

    asked: list[int] = []

    class Recorded(Replay):
        def propose(self, messages, call):
            asked.append(call)
            time.sleep(0.03)  # longer than the test needs to see how far it is
            return super().propose(messages, call)

    shot = still.replace(name="shot", out=str(tmp_path / "shot"))
    again = tmp_path / "again"
    for after in (7, 19, 44):
        with running(Gateway(again, {"ast": lambda s: Recorded(journal / "still.jsonl")})) as gateway, Nursery() as n:
            child = n.start(ready(gateway, again, shot))
            progress = executor.process.Progress(shot.folder)
            while progress.done() < after:
                assert child.poll() is None
                time.sleep(0.002)
            os.kill(n._process.pid, signal.SIGKILL)
            child.wait(120)
    with running(Gateway(again, {"ast": lambda s: Recorded(journal / "still.jsonl")})) as gateway:
        (done,) = executor.run_all([ready(gateway, again, shot)], quiet=True)
    assert done.status == "done", done.error
    a, b = essence(calm.result), essence(done.result)
    for key in ("name", "spec", "candidates"):  # names differ; a request's seconds are those of its own asking
        a.pop(key), b.pop(key)
    assert a == b

    def plain(r: SearchResult) -> list[dict]:
        return [dataclasses.asdict(dataclasses.replace(c, seconds=None)) for c in r.candidates]

    assert plain(calm.result) == plain(done.result)
    # A request that was under way when its gateway stopped got no reply: with its search's next start it is made again.
    assert len(set(asked)) == 60 and len(asked) <= 60 + 3 * brood(60)
    lines = [json.loads(line) for line in (again / "shot.jsonl").read_text().splitlines()]
    assert sorted(r["call"] for r in lines if r["kind"] == "reply" and r["status"] == "ok") == list(range(60))


@pytest.mark.integration
def test_a_power_cut_between_any_two_writes_changes_nothing(spec, toy, tmp_path) -> None:
    """Journal and cache end at any byte, independently: the search goes on from there to the same result."""
    from eft.tasks.task import load_task

    task, journal, rng = load_task(toy), tmp_path / "journal", random.Random(11)
    names = ["whole", *(f"cut{k}" for k in range(4))]
    specs = {n: spec(n, scaffold="tournament", iterations=60, mutator="ast", seed=3) for n in names}
    with running(Gateway(journal, {"ast": lambda search: AstMutator(3, task=task)})) as gateway:
        (whole,) = executor.run_all([ready(gateway, journal, specs["whole"])], quiet=True)
    for name in names[1:]:
        specs[name].folder.mkdir()
        for file, target in ((journal / "whole.jsonl", journal / f"{name}.jsonl"),
                             (specs["whole"].folder / "evaluations.jsonl", specs[name].folder / "evaluations.jsonl")):
            data = file.read_bytes()
            target.write_bytes(data[: rng.randrange(len(data))])
    with running(Gateway(journal, {"ast": lambda search: AstMutator(3, task=task)})) as gateway:
        outcomes = executor.run_all([ready(gateway, journal, specs[n]) for n in names[1:]], quiet=True)

    def plain(result: SearchResult) -> dict:
        rest = {k: v for k, v in essence(result).items() if k not in ("name", "spec", "candidates")}
        return rest | {"c": [dataclasses.replace(c, seconds=None) for c in result.candidates]}

    for o in outcomes:
        assert o.status == "done", o.error
        assert plain(o.result) == plain(whole.result), o.spec.name


@pytest.mark.integration
def test_a_mutator_that_never_yields_an_edit_leaves_the_seed(spec, tmp_path) -> None:
    class Prose:
        def propose(self, messages, call):
            return Reply("It looks fine to me.")

    one = spec("prose", scaffold="tournament", mutator="prose", iterations=5)
    with running(Gateway(tmp_path / "journal", {"prose": lambda search: Prose()})) as gateway:
        (outcome,) = executor.run_all([ready(gateway, tmp_path / "journal", one)], quiet=True)
    r = outcome.result
    assert r.failures == {"no_edit": 5} and r.best_code == PROGRAM and "seed" in r.note
    assert r.final_raw == r.seed_raw == r.best_raw


@pytest.mark.integration
def test_the_final_score_is_on_hidden_instances(spec, toy, tmp_path) -> None:
    """Evaluated once, after the search, and by nobody during it."""
    evaluator = toy / "evaluator.py"
    text = evaluator.read_text().replace("def evaluate(program_path):", "def evaluate(program_path, hidden=False):")
    text = text.replace("score=score)", "score=(lambda v: {**score(v), 'error_sq': 99.0}) if hidden else score)")
    evaluator.write_text(text)

    class Better:
        def propose(self, messages, call):
            assert "99" not in messages[-1]["content"]
            return Reply(block("STEP = 0.5", "STEP = 1.7"))

    specs = [spec(s, scaffold=s, mutator="better", iterations=3) for s in ("tournament", "openevolve", "best_of_n")]
    with running(Gateway(tmp_path / "journal", {"better": lambda search: Better()})) as gateway:
        outcomes = executor.run_all([ready(gateway, tmp_path / "journal", s) for s in specs], quiet=True)
    for o in outcomes:
        assert o.status == "done", o.error
        assert o.result.final_raw == o.result.seed_final_raw == 99.0 and o.result.best_raw < o.result.seed_raw
        lines = (o.spec.folder / "evaluations.jsonl").read_text().splitlines()
        assert sum("hidden" in json.loads(line)["key"] for line in lines) == 2
        assert "hidden" in json.loads(lines[-1])["key"] and "hidden" in json.loads(lines[-2])["key"]


def member(number: int, score: float, code: str | None = None) -> Member:
    return Member(number, 0, score, Shown(str(number), code or f"x = {number}", {"combined_score": score}))


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 20)), min_size=1, max_size=60))
def test_the_population_is_the_best_distinct_programs(children: list[tuple[float, int]]) -> None:
    population = Population()
    for i, (score, code) in enumerate(children):
        population.enter(member(i, score, f"x = {code}"))
    scores = [m.score for m in population.members]
    assert scores == sorted(scores, reverse=True) and len(scores) <= tournament.SIZE
    codes = [m.shown.code for m in population.members]
    assert len(set(codes)) == len(codes)
    first = {}  # a program counts with the score of its first evaluation
    for score, code in children:
        first.setdefault(code, score)
    assert scores == sorted(first.values(), reverse=True)[: tournament.SIZE]
    parent = population.choose(random.Random(1))
    assert parent in population.members and parent == population.choose(random.Random(1))
    assert all(s.id != parent.shown.id for s in population.about(parent))


@pytest.mark.parametrize("iterations, size", [(1, 1), (13, 1), (48, 2), (100, 4), (300, 8), (10_000, 8)])
def test_short_searches_learn_from_every_reply(iterations: int, size: int) -> None:
    assert brood(iterations) == size
