"""`eft evaluate` with several scaffolds, a replayed mutator, repetition from the start, and two runs in one folder."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from endpoint import Endpoint

from eft import stages
from eft.errors import EftError, UsageError
from eft.evaluate import plan as plans
from eft.evaluate import results as tables
from eft.evaluate import run as evaluate
from eft.evaluate.settings import Config
from eft.search.process import holding
from eft.search.spec import RESULT, SearchResult

TASK = "control/pid"


@pytest.fixture
def endpoint():
    server = Endpoint()
    yield server
    server.close()


def options(root: Path, **change) -> dict:
    return {"root": str(root), "iterations": 3, "seeds": [4], "prompt_format": "eft@1", "tasks": [TASK], "workers": 2,
            "mutators": {"ast": {"kind": "ast"}}, **change}  # fmt: skip


def essence(out: Path, *without: str) -> list:
    """The results of all searches, but for how long they took and who answered."""
    found = []
    for file in sorted(out.glob(f"*/*/*/{RESULT}")):
        r = dataclasses.asdict(SearchResult.load(file))
        for c in r["candidates"]:
            c.pop("seconds")
        found.append({k: v for k, v in r.items() if k not in ("seconds", "name", "spec", *without)})
    return found


@pytest.mark.integration
def test_the_same_plan_with_several_scaffolds(tmp_path, endpoint):
    served = {"model": "toy", "base_url": [endpoint.base_url]}
    mutators = {"served": served, "best": {"kind": "best_of_n", "of": "served"}, "again": {**served, "edit": "rewrite"}}
    out = evaluate.run(Config(**options(tmp_path, mutators=mutators, scaffold=["openevolve", "tournament"])))
    found = tables.load(out)
    assert sorted((s.mutator, s.scaffold, s.status) for s in found.searches) == [
        ("again", "openevolve", "done"), ("again", "tournament", "done"), ("best", "best_of_n", "done"),
        ("served", "openevolve", "done"), ("served", "tournament", "done"),
    ]  # fmt: skip
    assert all(s.proposals == 3 and s.sandbox for s in found.searches)
    assert {m.name: m.edit for m in found.mutators} == {"served": "", "best": "", "again": "rewrite"}
    assert endpoint.asked == 15 and len({p.name for p in (out / "journal").glob("*.jsonl")}) == 5
    evaluate.run(Config(**options(tmp_path, mutators=mutators, scaffold="tournament")))
    assert endpoint.asked == 15  # each stands already


@pytest.mark.integration
def test_replay_gives_the_same_results_however_often_it_is_killed(tmp_path, endpoint):
    """Tournament, answered from the journals of an earlier evaluation: bit-equal to it, kill -9 in between or not."""
    served = {"served": {"model": "toy", "base_url": endpoint.base_url}}
    change = {"iterations": 24, "scaffold": "tournament", "tasks": [TASK, "routing/tsp_insertion"]}
    first = evaluate.run(Config(**options(tmp_path / "first", mutators=served, **change)))
    paid = endpoint.asked
    again = {"again": {"kind": "replay", "journal": str(first / "journal"), "of": "served"}}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(options(tmp_path / "second", mutators=again, **change)))
    command = [sys.executable, "-m", "eft.cli", "evaluate", "--config", tmp_path / "e.yaml"]
    second = tmp_path / "second" / "evaluate"
    ends = []
    for wanted in (5, 29):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and lines(second / "journal") < wanted:
            time.sleep(0.01)
        process.kill()  # that process alone: what it started must see to itself
        ends.append(process.wait())
    assert -signal.SIGKILL in ends, "a fast machine may be through before the second kill"
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own = ("mutator", "model", "prompt_tokens", "completion_tokens", "candidates")  # a replay bills no tokens
    assert essence(first, *own) == essence(second, *own) != []
    fates = [[(c["status"], c["score"], c["code_hash"]) for c in r["candidates"]] for r in essence(first)]
    assert fates == [[(c["status"], c["score"], c["code_hash"]) for c in r["candidates"]] for r in essence(second)]
    assert endpoint.asked == paid


def lines(folder: Path) -> int:
    return sum(f.read_bytes().count(b"\n") for f in folder.glob("*.jsonl")) if folder.is_dir() else 0


@pytest.mark.integration
def test_force_repeats_from_the_start_and_keeps_what_was_paid_for(tmp_path, endpoint):
    config = Config(**options(tmp_path, mutators={"served": {"model": "toy", "base_url": endpoint.base_url}}))
    assert not stages.execute("evaluate", config)["skipped"] and endpoint.asked == 3
    assert stages.execute("evaluate", config)["skipped"] and endpoint.asked == 3
    stages.execute("evaluate", config, force=True)
    assert endpoint.asked == 6
    assert lines(config.out() / "replaced" / "journal-1") == lines(config.out() / "journal") == 3
    stages.execute("evaluate", config, force=True)
    assert endpoint.asked == 9 and (config.out() / "replaced" / "journal-2").is_dir()


@pytest.mark.integration
def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    config = Config(**options(tmp_path))
    out = evaluate.run(config)
    before = (out / "manifest.json").read_bytes()
    with holding(out):
        for refused in (lambda: evaluate.run(config), lambda: evaluate.discard(config)):
            with pytest.raises(EftError, match="another evaluation is running in this folder"):
                refused()
    assert (out / "manifest.json").read_bytes() == before


@pytest.mark.integration
def test_a_used_up_budget_is_the_reason_and_more_of_it_goes_on(tmp_path, endpoint):
    def config(**budget) -> Config:
        served = {"model": "toy", "base_url": endpoint.base_url, "budget": budget}
        return Config(**options(tmp_path, mutators={"served": served}, iterations=8, scaffold="tournament"))

    with pytest.raises(EftError, match="1 of 1 search failed") as e:
        evaluate.run(config(replies=5))
    assert "the budget of mutator 'served' is used up (5 of 5 replies)" in str(e.value)
    assert endpoint.asked == 5
    (search,) = tables.load(evaluate.run(config(replies=8))).searches
    assert endpoint.asked == 8 and search.status == "done" and search.proposals == 8


def test_what_cannot_be_is_said(tmp_path):
    for change, why in (
        ({"scaffold": "tournamnt"}, "did you mean 'tournament'"), ({"scaffold": ["shinka", "shinka"]}, "named twice"),
        ({"scaffold": "best_of_n"}, "no scaffold 'best_of_n'"), ({"sandbox": "docker"}, "sandbox"),
        ({"mutators": {"r": {"kind": "replay", "of": "x"}}}, "replay needs `journal`"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            Config(**options(tmp_path, **change))
    gone = {"r": {"kind": "replay", "of": "x", "journal": "none"}}
    with pytest.raises(UsageError, match="no journals to replay"):
        plans.make(Config(**options(tmp_path, mutators=gone)))


def test_scaffolds_do_not_share_folders_or_journals(tmp_path):
    made = plans.make(Config(**options(tmp_path, scaffold=["openevolve", "tournament", "shinka"], seeds=2)))
    assert len({s.out for s in made.specs}) == len({s.name for s in made.specs}) == 6
    assert {Path(s.out).name for s in made.specs} == {
        "seed0", "seed1", "tournament-seed0", "tournament-seed1", "shinka-seed0", "shinka-seed1",
    }  # fmt: skip
    info = plans.task_info(next(iter(made.tasks.values())))
    assert len(info.fingerprint) == 64 and json.dumps(dataclasses.asdict(info))
