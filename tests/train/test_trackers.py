"""W&B, really run offline: one run per training, the same one again after an interruption. trackio likewise."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from eft.errors import UsageError
from eft.train import trackers


def test_names_are_checked() -> None:
    trackers.check([])
    with pytest.raises(UsageError, match="did you mean 'wandb'"):
        trackers.check(["wandbb"])


def test_a_tracker_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install trackio"):
        trackers.check(["trackio"])


def test_the_id_stays_where_a_training_continues(tmp_path: Path) -> None:
    first = trackers.run_id(tmp_path, resumed=False)
    assert trackers.run_id(tmp_path, resumed=True) == first
    again = trackers.run_id(tmp_path, resumed=False)
    assert again != first == first and trackers.run_id(tmp_path, resumed=True) == again
    (tmp_path / trackers.FILE).write_text("torn")
    assert trackers.run_id(tmp_path, resumed=True) not in (first, again)


def records(file: Path) -> Iterator[bytes]:
    """The records of a .wandb file: blocks of 32 kB (the log format of LevelDB) behind seven bytes of header."""
    data, at, part = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0 or at + 7 + size > len(data):  # the torn end of a run that was killed
            return
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of several
            yield part
            part = b""


def history(folder: Path) -> tuple[str, list[dict]]:
    """(run id, logged lines) of an offline run, from the file that `wandb sync` would send."""
    from wandb.proto import wandb_internal_pb2

    run, lines = "", []
    for data in records(next(folder.glob("run-*.wandb"))):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("run"):
            run = record.run.run_id
        if record.HasField("history"):
            lines.append({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item})
    return run, lines


@pytest.mark.integration
def test_wandb_offline_and_its_run_taken_up_again(here, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.train.checkpoints import Checkpoints

    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in [n for n in os.environ if n.startswith("WANDB_") and n != "WANDB_MODE"]:
        monkeypatch.delenv(name)
    whole = Checkpoints.on_save

    def on_save(self, args, state, control, **kwargs):
        whole(self, args, state, control, **kwargs)
        if state.global_step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(Checkpoints, "on_save", on_save)
        here("sft", report_to=["wandb"], watch={"rows": 4})
    done = here("sft", report_to=["wandb"], watch={"rows": 4})
    assert done.counts["resumed_from_step"] == 4

    runs = [history(f) for f in sorted((done.out / "wandb").glob("offline-run-*"))]
    assert len(runs) == 2 and runs[0][0] == runs[1][0] == json.loads((done.out / trackers.FILE).read_text())["id"]
    steps = [[line["train/global_step"] for line in lines if "train/loss" in line] for _, lines in runs]
    assert steps == [[1, 2, 3, 4], [5, 6]], "nothing twice, nothing missing"
    first = next(line for line in runs[0][1] if "train/loss" in line)
    assert {"train/grad_norm", "train/tokens_per_second", "train/mfu", "train/memory_gb"} <= set(first)
    assert any("eval/auc" in line and "eval/nll_regressed" in line for line in runs[0][1])


@pytest.mark.integration
@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed (pip install trackio)")
def test_trackio(here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sqlite3

    import trackio

    for module in (trackio, trackio.utils, trackio.sqlite_storage):  # TRACKIO_DIR is read when it is imported
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setenv("TRACKIO_PROJECT", "small")
    done = here("sft", report_to=["trackio"], steps=2, watch={"rows": 0})
    base = next((tmp_path / "trackio").rglob("*.db"))
    with sqlite3.connect(base) as opened:
        rows = opened.execute("select run_name, metrics from metrics").fetchall()
    key = json.loads((done.out / trackers.FILE).read_text())["id"]
    assert {name for name, _ in rows} == {f"sft sft {key}"}
    assert any("tokens_per_second" in str(m) for _, m in rows)
