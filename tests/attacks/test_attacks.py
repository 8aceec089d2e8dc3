"""The attack suite (eft/tasks/attacks.py) against every isolation and level, and against every shipped task.

Economical: all acts are one program, so that every shipped task runs all of them; what depends on a task's scorer (odd
values) runs on every task too; what depends on the sandbox alone (each act by itself, the attacks that run into a
limit, values that only meet the sandbox) runs on one task of each kind and level.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path

import pytest

from eft.records import Validity
from eft.tasks import attacks, sandbox
from eft.tasks.attack_list import ACTS, CPP_ACTS, CPP_ENDS, CPP_VALUES, ENDS, SCORER, VALUES
from eft.tasks.evaluate import evaluate
from eft.tasks.task import Task, find_task, load_task, shipped

EXAMPLE = Path(__file__).parent.parent / "tasks" / "function_minimization"
CPP = sorted(n for n, f in shipped().items() if (f / "initial_program.cpp").exists())
ISOLATED = "heuristics/knapsack"
THOROUGH = (ISOLATED, "mathematics/circle_packing", "simulators/inventory")  # a driver, none, one apart


@contextlib.contextmanager
def chosen(level: str):
    before = sandbox.level()
    if level == "bubblewrap" and sandbox.bubblewrap_fails():
        pytest.skip("bubblewrap does not work on this machine: the bubblewrap level was NOT attacked")
    yield sandbox.choose(level)
    sandbox.choose(before)


@pytest.fixture(params=["bubblewrap", "rlimits"])
def level(request):
    with chosen(request.param) as level:
        yield level


@pytest.fixture
def bubblewrap():
    with chosen("bubblewrap"):
        yield


@pytest.fixture
def rlimits():
    with chosen("rlimits"):
        yield


@pytest.fixture(scope="module")
def watch():
    with attacks.watched(EXAMPLE) as watch:
        yield watch


@functools.cache
def seed_of(task: Task):
    found = evaluate(task, task.seed())
    assert found.validity is Validity.VALID
    return found


def test_there_are_enough():
    assert len({*(a.name for a in ACTS), *VALUES, *ENDS}) >= 120 and len({*CPP_ACTS, *CPP_VALUES, *CPP_ENDS}) >= 35


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_task_withstands_acts_and_values(name):
    task = find_task(name)
    values = None if name in THOROUGH else SCORER
    count, failed = attacks.attack(task, seed_of(task), ends=False, values=values)
    assert not failed and count >= (30 if task.language == "cpp" else 95)


@pytest.mark.integration
@pytest.mark.parametrize("act", [a.name for a in ACTS])
def test_acts_one_by_one(bubblewrap, watch, act):
    """As one program some acts could hide others (the first to break something ends the rest)."""
    task = find_task(ISOLATED)
    found = evaluate(task, attacks.act_program(task, watch, [act]))
    assert not attacks.judge_act(act, found, seed_of(task), watch)


@pytest.mark.parametrize("name", [ISOLATED, *CPP[:1]])
def test_acts_at_once(level, watch, name):
    task = find_task(name)
    found = evaluate(task, attacks.act_program(task, watch))
    assert not attacks.judge_act("acts", found, seed_of(task), watch)


@pytest.mark.parametrize("act", ["reads the environment", "opens a socket", "forks"])
def test_an_act_that_gets_through_is_found(watch, act, monkeypatch):
    """The judge itself: at a level that stops nothing, the same acts are breaches."""
    before = sandbox.level()
    sandbox.choose("none")
    try:
        task = find_task(ISOLATED)
        program = attacks.act_program(task, watch, [act])
        if act == "reads the environment":
            program = program.replace(repr(watch.canary), "''")  # what every environment contains
            assert watch.canary not in program or "''" in program
            program = program.replace(f"'{watch.canary}' in", "'PATH' in")
        failed = attacks.judge_act(act, evaluate(task, program), seed_of(task), watch)
        assert [f.attack.partition(":")[0] for f in failed] == [act]
    finally:
        sandbox.choose(before)


@pytest.mark.integration
@pytest.mark.parametrize("end", ENDS)
def test_ends(bubblewrap, watch, end):
    _end(watch, end)


@pytest.mark.integration
@pytest.mark.parametrize("end", ["spins deaf to signals", "forks without end", "allocates", "fills the disk"])
def test_ends_without_namespaces(rlimits, watch, end):
    _end(watch, end)


def _end(watch, end: str) -> None:
    task = find_task(ISOLATED)
    seed = seed_of(task)
    with attacks.capped(attacks.WALL_S):
        found = evaluate(task, attacks.end_programs(task, watch)[end])
    assert not attacks.judge_end(end, found, seed, task, watch)
    assert evaluate(task, task.seed()).score == seed.score, "the next evaluation is not touched"


@pytest.mark.integration
@pytest.mark.parametrize("end", CPP_ENDS)
def test_ends_of_compiled_programs(bubblewrap, watch, end):
    assert CPP, "C++ tasks are shipped, and one of them takes the ends"
    task = find_task(CPP[0])
    with attacks.capped(attacks.WALL_S):
        found = evaluate(task, CPP_ENDS[end])
    assert found.validity is not Validity.VALID
    assert not attacks.judge_end(end, found, seed_of(task), task, watch)


# ---- contained: OpenEvolve's example, evaluator and program together -----------------------------------------------

CHEAP = """def evaluate(path):
    program = {}
    exec(open(path).read(), program)
    return {"combined_score": program["run"]()}
"""


@pytest.fixture
def contained(tmp_path: Path) -> Task:
    """A contained task that starts fast: its evaluator imports nothing."""
    (tmp_path / "evaluator.py").write_text(CHEAP)
    (tmp_path / "initial_program.py").write_text("def run():\n    return 1.0\n")
    return dataclasses.replace(load_task(tmp_path), timeout_s=30.0)


@pytest.mark.integration
def test_acts_against_a_contained_task(level, watch, contained):
    found = evaluate(contained, attacks.act_program(contained, watch))
    assert not attacks.judge_act("acts", found, seed_of(contained), watch, contained=True)
    assert found.score == 1.0


@pytest.mark.integration
@pytest.mark.parametrize("end", ["allocates", "forks without end", "fills the disk", "fills shared memory"])
def test_ends_against_a_contained_task(level, watch, contained, end):
    programs = attacks.end_programs(contained, watch)
    if end not in programs:
        pytest.skip("without bubblewrap a contained evaluation may fill a disk: docs/sandbox.md says so")
    task = dataclasses.replace(contained, timeout_s=2.0)
    found = evaluate(task, programs[end])
    assert not attacks.judge_end(end, found, seed_of(contained), task, watch)
    assert evaluate(contained, contained.seed()).score == 1.0


@pytest.mark.integration
def test_openevolves_example_under_attack(watch):
    task = load_task(EXAMPLE)
    found = evaluate(task, attacks.act_program(task, watch))
    assert found.validity is Validity.VALID
    assert not attacks.judge_act("acts", found, found, watch, contained=True)
