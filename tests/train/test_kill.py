"""kill -9 in the middle, then the same command: the run continues and ends with the weights of an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import training

from eft import manifest
from eft.train import checkpoints, interrupt
from eft.train.callbacks import read_journal

pytestmark = pytest.mark.integration


def eft_sft(file: Path) -> list[str]:
    return [sys.executable, "-m", "eft.cli", "sft", "--config", str(file), "--json"]


def steps(out: Path) -> int:
    return max((line["step"] for line in read_journal(out)), default=0)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_killed_and_told_to_end_it_is_the_undisturbed_run(root: Path) -> None:
    undisturbed = training.accelerate(
        "cpu", "eft.train.sft", training.recipe(root, "sft", output="whole", steps=80, save_every=5)
    )
    assert undisturbed.returncode == 0, undisturbed.stderr[-3000:]

    file, out = training.recipe(root, "sft", output="killed", steps=80, save_every=5), root / "killed"
    process = subprocess.Popen(eft_sft(file), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.time() + 400
    while steps(out) < 12 and process.poll() is None and time.time() < deadline:
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(family) >= 2, "launcher and rank"
    deadline = time.time() + 60
    while not all(gone(p.pid) for p in family) and time.time() < deadline:
        time.sleep(0.05)
    assert all(gone(p.pid) for p in family), "no rank goes on writing when its command is killed"
    assert not (out / manifest.NAME).exists()

    # the usual rest of a kill: a newest checkpoint that is not complete
    newest = [f for f in checkpoints.checkpoints(out) if checkpoints.complete(f)][-1]
    torn = out / f"checkpoint-{checkpoints.step_of(newest) + 5}"
    torn.mkdir(exist_ok=True)
    (torn / "trainer_state.json").write_text("{")

    # continued, and then told to end as a cluster tells it: to the command, which knows its ranks
    process = subprocess.Popen(eft_sft(file), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    reached, deadline = steps(out), time.time() + 400  # by the one that was killed: beyond its newest checkpoint
    while steps(out) < reached + 3 and process.poll() is None and time.time() < deadline:
        time.sleep(0.02)
    process.terminate()
    said = process.communicate(timeout=400)[1]
    assert process.returncode == 75 and "Traceback" not in said, said[-3000:]
    assert f"continuing from {newest}" in said and "was interrupted and has saved step" in said
    noted = json.loads((out / interrupt.MARK).read_text())
    saved = out / noted["checkpoint"]
    assert checkpoints.complete(saved)["step"] == noted["step"] > checkpoints.step_of(newest)

    done = subprocess.run(eft_sft(file), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = manifest.require(out, "sft")["counts"]
    assert counts["resumed_from_step"] == noted["step"] and not (out / interrupt.MARK).exists()
    assert f"continuing from {saved}" in done.stderr
    assert training.largest_difference(root / "whole" / "final", out / "final") == 0.0
    journals = [
        [(x["step"], x["loss"], x["grad_norm"]) for x in read_journal(root / name) if "loss" in x]
        for name in ("whole", "killed")
    ]
    assert journals[0] == journals[1], "no step is missing, none is there twice"

    again = subprocess.run(eft_sft(file), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and "up to date" in again.stderr and '"skipped": true' in again.stdout


class Crash(Exception):
    pass


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch):
    """Make the training of this process die after its second checkpoint."""
    from eft.train.checkpoints import Checkpoints

    whole = Checkpoints.on_save

    def on_save(self, args, state, control, **kwargs):
        whole(self, args, state, control, **kwargs)
        if state.global_step == 4:
            raise Crash

    monkeypatch.setattr(Checkpoints, "on_save", on_save)
    return monkeypatch


@pytest.mark.parametrize(
    "verb, changes",
    [("sft", {"precision": "bf16_weights"}), ("sft", {"lora": {"rank": 4, "dropout": 0.2}}), ("kto", {"steps": 6})],
    ids=["bf16 weights", "LoRA with dropout", "KTO"],
)
def test_every_kind_of_training_continues_exactly(verb: str, changes: dict, here, crashing) -> None:
    with pytest.raises(Crash):
        here(verb, output="broken", **changes)
    crashing.undo()
    continued = here(verb, output="broken", **changes)
    assert continued.counts["resumed_from_step"] == 4
    whole = here(verb, output="whole", **changes)
    assert continued.losses == whole.losses
    assert training.largest_difference(continued.out / "final", whole.out / "final") == 0.0


def test_killed_after_the_last_step_only_finishes(here, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.train import loop

    def killed(*args) -> None:
        raise Crash

    monkeypatch.setattr(loop, "finish", killed)
    with pytest.raises(Crash):
        here("sft", output="broken", steps=3)
    monkeypatch.undo()
    continued, whole = here("sft", output="broken", steps=3), here("sft", output="whole", steps=3)
    assert continued.counts["resumed_from_step"] == 3 and continued.losses == whole.losses
    assert continued.counts["eval_loss"] == whole.counts["eval_loss"]
    assert training.largest_difference(continued.out / "final", whole.out / "final") == 0.0
