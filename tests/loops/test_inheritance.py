"""The inheritance loop on the tiny model: stages, trainings and log-likelihoods are the real ones."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

from eft.gate.confirm import replay
from eft.gate.evidence import Pool


def check(loop: Path, rounds: int) -> None:
    """Lineage, ledger and files agree; every decision comes out again, bit by bit."""
    pool = Pool(loop / "pool")
    names = [e["decision"] for e in pool.ledger() if e["kind"] == "decision"]
    assert len(names) == len(set(names)) and len([n for n in names if n.endswith("confirm")]) == rounds
    assert [replay(pool, n) for n in names] == [pool.decided(n) for n in names]
    spent = [i for e in pool.ledger() if e["kind"] == "claim" for i in e["items"]]
    assert len(spent) == len(set(spent)), "no item twice"
    shown = json.loads((loop / "lineage.json").read_text())
    committed = [n for n in shown["nodes"] if n["status"] == "committed"]
    verdicts = [pool.decided(f"inherit.r{k}.confirm")["verdict"] for k in range(rounds)]
    assert len(committed) == 1 + verdicts.count("COMMIT")
    assert json.loads((loop / "root.json").read_text())["fingerprint"] == committed[-1]["id"] == shown["root"]
    assert len({e["id"] for e in shown["archive"]}) == len(shown["archive"]) == rounds
    assert (loop / "lineage.svg").read_text().startswith("<svg")


@pytest.mark.integration
def test_one_round_and_the_same_command_again(eft, tmp_path: Path) -> None:
    # one branch: screening among several is in test_rounds.py and in the slow tests
    file = tiny.config(tmp_path, branches={"lora": tiny.LORA})
    done = eft("inherit", "--config", file, "--json", timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    check(tmp_path / "loop", 1)
    ledger = (tmp_path / "loop/pool/ledger.jsonl").read_bytes()
    again = eft("inherit", "--config", file, "--json", timeout=900)
    assert again.returncode == 0, again.stderr[-3000:]
    assert json.loads(again.stdout.splitlines()[-1]) == json.loads(done.stdout.splitlines()[-1])
    assert (tmp_path / "loop/pool/ledger.jsonl").read_bytes() == ledger
    other = eft("inherit", "--config", file, "--set", "budget=5")
    assert other.returncode == 2 and "another loop has begun" in other.stderr and "`budget` differs" in other.stderr


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_three_rounds_killed_ten_times(tmp_path: Path) -> None:
    file = tiny.config(
        tmp_path,
        rounds=3,
        margin=-0.99,
        record={"seeds": 12, "iterations": 8, "lookahead": 4, "shares": [0.4, 0.6, 0.0]},
    )
    command = [sys.executable, "-m", "eft.cli", "inherit", "--config", str(file)]
    rng = random.Random(0)
    kills = 0
    with open(tmp_path / "log", "ab") as log:
        while True:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                # longer and longer, so that ten kills hit every part of a round and something is left to kill
                process.wait(rng.uniform(2, 30) * (1 + kills / 4) if kills < 10 else 2400)
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)  # the loop alone: what it started must go by itself
                process.wait()
                kills += 1
                time.sleep(0.2)
                continue
            assert process.returncode == 0, (tmp_path / "log").read_text()[-5000:]
            if kills >= 10:
                break
            raise AssertionError(f"it was done after {kills} kills: make the waits shorter")
    check(tmp_path / "loop", 3)
    # tau with this margin commits nearly everything: later rounds train from what earlier ones inherited
    nodes = json.loads((tmp_path / "loop/lineage.json").read_text())["nodes"]
    assert nodes[-1]["parent"] != nodes[0]["id"]
    assert subprocess.run(["pgrep", "-f", str(file)], capture_output=True).returncode == 1, "nothing is left running"


@pytest.mark.slow
@pytest.mark.serve
@pytest.mark.timeout(1800)
def test_the_root_and_its_branches_drive_searches(eft, tmp_path: Path) -> None:
    """The first root and a branch are served and search; their replies, useless as they are, are archived with them."""
    little = {"tasks": ["numerics/quadrature"], "iterations": 2}
    file = tiny.config(tmp_path, searches=[{"by": "root", **little}, {"by": "ast", "iterations": 6, "lookahead": 4}],
                       branch_searches={"by": "root", **little}, serving={"max_tokens": 24, "max_model_len": 4096},
                       branches={"sft": {"kind": "sft", "train": {**tiny.TRAIN, "steps": 4}},
                                 "own": {"kind": "rejection", "train": tiny.TRAIN}})  # fmt: skip
    done = eft("inherit", "--config", file, timeout=1500)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "no data for branch 'own'" in done.stderr, "a random model's replies improve nothing"
    shown = json.loads((tmp_path / "loop/lineage.json").read_text())["archive"]
    assert [e["id"] for e in shown] == ["r0.0-root", "r0.1-ast", "r0.branch-r1-sft"]
    assert shown[0]["replies"] == 2 and shown[1]["status"] == "teacher"
    assert shown[2]["status"] in ("committed", "rejected")
