"""Which checkpoint is taken up again, and which are deleted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from eft import manifest
from eft.errors import EftError
from eft.train import checkpoints, sft
from eft.train.asked import Asked

IDENTITY = {"learning_rate": 1e-3, "launch": "none x 1"}


def save(out: Path, step: int, *, keep: int = 2, mark: bool = True) -> Path:
    folder = out / f"checkpoint-{step}"
    (folder / "global_step").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "global_step" / "shard").write_bytes(b"state")
    if mark:
        callback = checkpoints.Checkpoints(out, IDENTITY, keep, lambda: None)
        callback.on_save(None, SimpleNamespace(global_step=step, is_world_process_zero=True), None)
    return folder


def test_the_newest_complete_one_is_taken(tmp_path: Path) -> None:
    save(tmp_path, 2)
    good = save(tmp_path, 10)
    save(tmp_path, 12, mark=False)
    torn = save(tmp_path, 14)
    (torn / "global_step" / "shard").write_bytes(b"sta")
    assert checkpoints.resume_point(tmp_path, IDENTITY) == good
    (good / "model.safetensors").unlink()
    assert checkpoints.resume_point(tmp_path, IDENTITY) is None, "14 deleted 2 when it was whole: keep is 2"


def test_old_ones_go_only_when_the_new_one_is_whole(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert [f.name for f in checkpoints.checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3"]
    save(tmp_path, 4, mark=False)
    assert [f.name for f in checkpoints.checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]
    save(tmp_path, 5, keep=1)
    assert [f.name for f in checkpoints.checkpoints(tmp_path)] == ["checkpoint-5"], "torn ones go too"


def test_another_trainings_checkpoint_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 2)
    with pytest.raises(EftError, match="of another training") as e:
        checkpoints.resume_point(tmp_path, {**IDENTITY, "learning_rate": 2e-3})
    assert "learning_rate: 0.001 → 0.002" in str(e.value)


def test_a_model_that_was_made_again_is_another_training(tmp_path: Path) -> None:
    """An adapter's checkpoint holds no weights of its base: on another base it would go on in silence."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.parquet").write_bytes(b"rows")
    stage = tmp_path / "sft"
    (stage / "final").mkdir(parents=True)
    recipe = sft.Config(root=tmp_path, dataset=Path("rows"), model="sft/final", output=Path("out"))
    seen = []
    for weights in (b"first", b"second"):
        (stage / "final" / "model.safetensors").write_bytes(weights)
        manifest.write(stage, "sft", {}, [], [stage / "final" / "model.safetensors"], {}, 0.0)
        seen.append(checkpoints.identity(recipe, Asked("cpu")))
    assert seen[0] != seen[1] and checkpoints.identity(recipe, Asked("cpu")) == seen[1]
