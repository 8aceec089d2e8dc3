"""Trainings of a model with 130,000 weights: one rank in this process, or two ranks launched as users launch them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import training
import training_rows


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with build/sft and build/kto."""
    return training_rows.sets(tmp_path_factory.mktemp("data"))


@pytest.fixture
def root(table: Path, tmp_path: Path) -> Path:
    """A fresh root with the same data."""
    (tmp_path / "build").symlink_to(table / "build")
    return tmp_path


@pytest.fixture
def here(root: Path) -> Callable[..., SimpleNamespace]:
    """Train in this process, one rank: here("sft", steps=3) returns out, counts, losses. Raises what training
    raises."""
    from eft import config as configs
    from eft import manifest
    from eft.train import callbacks, kto, launch, sft

    modules = {"sft": sft, "kto": kto}

    def train(verb: str, **changes: Any) -> SimpleNamespace:
        config = configs.load(modules[verb].Config, training.recipe(root, verb, **changes))
        config.check()
        os.environ |= launch.environment(1)
        modules[verb].train(config, launch.Asked("cpu", cpu=True))
        out = config.out()
        losses = [x["loss"] for x in callbacks.read_journal(out) if "loss" in x]
        return SimpleNamespace(out=out, counts=(manifest.read(out) or {}).get("counts"), losses=losses)

    return train


@pytest.fixture(scope="session")
def launched(table: Path) -> dict[str, Path]:
    """Two ranks under DDP, ZeRO-2 and ZeRO-3: SFT, then KTO from its model, each launch one process group (imports are
    nearly all of the time). Roots by launch; what a launch printed is in ROOT/output.txt."""
    roots = {}
    for name in ("cpu_ddp", "cpu_zero2", "cpu_zero3"):
        roots[name] = table / name
        roots[name].mkdir()
        (roots[name] / "build").symlink_to(table / "build")
        common = {"launch": name, "micro_batch": 2, "keep_finished": True}
        sft = training.recipe(roots[name], "sft", **common)
        kto = training.recipe(roots[name], "kto", **common, model="sft/final")
        done = training.accelerate(name, "sft_then_kto", sft, kto)
        assert done.returncode == 0, f"{name}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        (roots[name] / "output.txt").write_text(done.stderr)
    return roots
