"""`eft evaluate` from end to end with mutators that need no vLLM: whole, killed, failing, changed, asked wrongly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from endpoint import Endpoint

from eft.errors import EftError
from eft.evaluate import plan as plans
from eft.evaluate import results as tables
from eft.evaluate import run as evaluate
from eft.evaluate.settings import Config
from eft.search.spec import RESULT

TASK = "control/pid"


@pytest.fixture
def endpoint():
    server = Endpoint()
    yield server
    server.close()


def options(root: Path, endpoint: Endpoint | None, **change) -> dict:
    served = {"served": {"model": "toy", "base_url": endpoint.base_url}} if endpoint else {}
    sampled = {"best_of_served": {"kind": "best_of_n", "of": "served"}} if endpoint else {}
    return {
        "root": str(root), "iterations": 3, "seeds": [4], "prompt_format": "eft@1", "tasks": [TASK], "workers": 2,
        "mutators": {**served, "ast": {"kind": "ast"}, **sampled}, **change,
    }  # fmt: skip


def replies(out: Path) -> int:
    """How many replies the journals hold."""
    # Whole lines only: a kill may come in the middle of one.
    lines = [json.loads(line) for f in out.glob("journal/*.jsonl") for line in f.read_bytes().split(b"\n")[:-1]]
    return sum(r["kind"] == "reply" and r["mutator"] == "served" for r in lines)


def essence(out: Path) -> list:
    """What must not depend on when a run was killed."""
    return [(s.mutator, s.task, s.seed, s.curve, s.outcomes, s.completion_tokens) for s in tables.load(out).searches]


@pytest.mark.integration
def test_whole_resumed_and_extended(tmp_path, endpoint):
    config = Config(**options(tmp_path, endpoint))
    out = evaluate.run(config)
    found = tables.load(out)
    assert [(s.mutator, s.status) for s in found.searches] == [
        ("served", "done"),
        ("ast", "done"),
        ("best_of_served", "done"),
    ]
    assert all(s.proposals == 3 == sum(s.outcomes.values()) and len(s.curve) == 4 for s in found.searches)
    assert found.searches[0].completion_tokens == 30 and found.searches[1].completion_tokens is None
    assert [m.role for m in found.mutators] == ["tuned", "control", "control"]
    assert json.loads((out / "manifest.json").read_text())["counts"]["searches"] == 3
    assert (out / "served" / plans.slug(TASK) / "seed4" / RESULT).is_file()
    paid = endpoint.asked
    assert paid == 6  # three of the search, three of best-of-N

    # A second run has nothing to do: not even the server is asked whether it is there.
    endpoint.broken = 500
    before = essence(out)
    evaluate.run(config)
    assert endpoint.asked == paid and essence(out) == before
    endpoint.broken = 0

    # More iterations: what was paid for is replayed.
    served = {"served": config.mutators["served"].model_dump()}
    evaluate.run(Config(**options(tmp_path, endpoint, iterations=4, mutators=served)))
    longer = tables.load(out)
    assert endpoint.asked == paid + 1
    assert [s.curve[:4] for s in longer.searches if s.mutator == "served"] == [before[0][3]]


@pytest.mark.integration
def test_killed_in_the_middle(tmp_path):
    """kill -9, then the same command: nothing is paid for twice, and the result is that of an undisturbed run."""
    endpoint = Endpoint(seconds=0.4)
    try:
        mutators = {"served": {"model": "toy", "base_url": endpoint.base_url}}
        change = {"mutators": mutators, "iterations": 4, "seeds": 2}
        for name in ("whole", "killed"):
            (tmp_path / name).mkdir()
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(options(tmp_path / name, endpoint, **change)))
        command = [sys.executable, "-m", "eft.cli", "evaluate", "--config"]
        process = subprocess.Popen(
            [*command, tmp_path / "killed.yaml"], stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.time() + 300
        while endpoint.asked < 3 and time.time() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)  # that process alone: what it started must see to itself
        process.wait()
        time.sleep(0.5)
        while endpoint.under_way:
            time.sleep(0.02)
        assert 3 <= endpoint.asked < 8 and not (tmp_path / "killed" / "evaluate" / "manifest.json").exists()
        lost = endpoint.asked - replies(tmp_path / "killed" / "evaluate")  # asked, and killed before it was on disk
        assert 0 <= lost <= 2
        assert subprocess.run([*command, tmp_path / "killed.yaml"]).returncode == 0
        assert endpoint.asked == 8 + lost
        assert subprocess.run([*command, tmp_path / "whole.yaml"]).returncode == 0
        assert essence(tmp_path / "killed" / "evaluate") == essence(tmp_path / "whole" / "evaluate")
    finally:
        endpoint.close()


@pytest.mark.integration
def test_a_server_that_fails_takes_nobody_along(tmp_path, endpoint):
    endpoint.broken = 401
    config = Config(**options(tmp_path, endpoint))
    with pytest.raises(EftError, match="2 of 3 searches failed") as e:
        evaluate.run(config)
    assert e.value.exit_code == 1
    out = config.out()
    found = tables.load(out)
    assert {s.mutator: s.status for s in found.searches} == {
        "served": "failed",
        "ast": "done",
        "best_of_served": "failed",
    }
    assert "out of order" in found.searches[0].reason
    assert not (out / "manifest.json").exists()

    endpoint.broken = 0
    evaluate.run(config)  # the same command, once the cause is mended
    assert {s.status for s in tables.load(out).searches} == {"done"}


@pytest.mark.integration
def test_a_changed_task_is_searched_anew(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "initial_program.py").write_text("# EVOLVE-BLOCK-START\nX = 3.0\n# EVOLVE-BLOCK-END\n")
    body = (
        "def evaluate(path):\n    import runpy\n    x = runpy.run_path(path)['X']\n"
        "    return {'combined_score': %s / (1 + abs(x)), 'validity': 1.0}\n"
    )
    (folder / "evaluator.py").write_text(body % 1)
    config = Config(**options(tmp_path, None, tasks=["mine"]))
    first = tables.load(evaluate.run(config)).searches[0]
    (folder / "evaluator.py").write_text(body % 2)
    second = tables.load(evaluate.run(config)).searches[0]
    assert first.curve[0] == 0.25 and second.curve[0] == 0.5


def wrong(root: Path, **change) -> str:
    """The message of a configuration that cannot work."""
    with pytest.raises(EftError) as e:
        config = Config(**options(root, None, **change))
        evaluate.run(config)
    assert not (root / "evaluate").exists()  # said before anything was started
    return str(e.value)


def test_what_cannot_work_is_said_first(tmp_path):
    assert "there is no task 'control/pd'" in wrong(tmp_path, tasks=["control/pd"])
    assert "did you mean 'control/pid'?" in wrong(tmp_path, tasks=["control/pd"])
    assert "no role 'helout'" in wrong(tmp_path, tasks=[], role="helout")
    assert "nothing to evaluate" in wrong(tmp_path, mutators={})
    assert "cannot name a mutator" in wrong(tmp_path, mutators={"journal": {"kind": "ast"}})
    assert "no served mutator" in wrong(tmp_path, mutators={"b": {"kind": "best_of_n", "of": "sft"}})
    assert "run 'eft sft' first" in wrong(tmp_path, mutators={"sft": {"model": "sft/final"}})
    gone = {"model": "x", "base_url": "http://127.0.0.1:9/v1"}
    assert "server of 'gone' does not answer" in wrong(tmp_path, mutators={"gone": gone})
    keyed = {**gone, "api_key_env": "EFT_NO_SUCH_KEY"}
    assert "EFT_NO_SUCH_KEY is not set" in wrong(tmp_path, mutators={"gone": keyed})
    assert "the same name" in wrong(tmp_path, tasks=[TASK, TASK])


@pytest.mark.integration
def test_a_task_whose_evaluator_is_broken_is_said_first(tmp_path):
    task = tmp_path / "task"
    task.mkdir()
    (task / "initial_program.py").write_text("x = 1\n")
    (task / "evaluator.py").write_text("def evaluate(path:\n")
    with pytest.raises(EftError, match="does not evaluate"):
        evaluate.run(Config(**options(tmp_path, None, tasks=[str(task)])))


def test_a_server_of_other_models(tmp_path, endpoint):
    message = wrong(tmp_path, mutators={"m": {"model": "other", "base_url": endpoint.base_url}})
    assert "does not serve 'other'" in message and "it serves: toy" in message


def test_command_line_names_the_nearest_key(tmp_path, eft):
    (tmp_path / "e.yaml").write_text("mutators: {ast: {kind: ast, lookahed: 3}}\n")
    done = eft("evaluate", "--config", tmp_path / "e.yaml")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "lookahed" in done.stderr and "did you mean 'lookahead'?" in done.stderr


def test_seeds():
    assert Config(seeds=3).seed_list() == [0, 1, 2] and Config(seeds=[7, 9]).seed_list() == [7, 9]
    for bad in (0, [], [1, 1]):
        with pytest.raises(ValueError):
            Config(seeds=bad)


def test_the_plan_pairs_searches_and_groups_them_by_server(tmp_path):
    mutators = {
        "base": {"model": "random:qwen3"}, "ast": {"kind": "ast"}, "sft": {"model": "random:llama"},
        "n": {"kind": "best_of_n", "of": "sft"},
    }  # fmt: skip
    config = Config(root=tmp_path, mutators=mutators, seeds=2, tasks=[TASK, "routing/tsp_insertion"])
    made = plans.make(config)
    assert [g.server for g in made.groups] == [None, "base", "sft"]
    assert {s.mutator for s in made.groups[2].specs} == {"sft", "n"}
    runs = {m: {(s.task, s.seed) for s in made.specs if s.mutator == m} for m in mutators}
    assert len(set(map(frozenset, runs.values()))) == 1  # the same tasks and seeds for everybody
    assert len({s.name for s in made.specs}) == len({s.out for s in made.specs}) == 16
    assert all(s.model == "sft" for s in made.groups[2].specs)


def test_weights_decide_the_identity(tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    config = Config(root=tmp_path, mutators={"m": {"model": "m"}}, seeds=1, tasks=[TASK])
    before = plans.make(config).specs[0]
    (model / "model.safetensors").write_bytes(b"new")
    after = plans.make(config).specs[0]
    assert before.name != after.name and before.out == after.out and before.journal != after.journal


def test_causes_are_one_line():
    why = str(EftError("the search 'a' failed", where="a/search.log", why="the mutator is gone", way_out="again"))
    assert evaluate._cause(why) == "the mutator is gone (a/search.log)"
    died = str(EftError("the vLLM server ended with exit status 1", where="kto.log", way_out="read\nthis"))
    assert evaluate._cause(died) == "the vLLM server ended with exit status 1 (kto.log)"
    assert evaluate._cause("not finished after 3 s") == "not finished after 3 s" and evaluate._cause(None)
