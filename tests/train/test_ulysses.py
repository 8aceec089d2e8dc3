"""Two ranks that share every row are the same training as one, and what cannot share rows is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import training

from eft.errors import UsageError
from eft.models.load import config_of
from eft.train import asked, checks
from eft.train.asked import Asked
from eft.train.callbacks import read_journal
from eft.train.sft import Config

SHARED = Asked("cpu_ulysses", "deepspeed", 2, 3, cpu=True, sequence=2)


@pytest.mark.slow
@pytest.mark.multirank
@pytest.mark.integration
def test_two_ranks_that_share_rows_train_as_one(root: Path, here) -> None:
    recipe = training.recipe(root, "sft", output="shared", launch="cpu_ulysses", eval_rows=0, steps=4, max_tokens=192)
    done = training.accelerate("cpu_ulysses", "eft.train.sft", recipe)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Ulysses: 2 ranks share a row" in done.stderr
    assert "4 per rank × 2 accumulated × 1 groups of 2 ranks" in done.stderr
    alone = here("sft", eval_rows=0, steps=4, max_tokens=192)
    shared = [x["loss"] for x in read_journal(root / "shared") if "loss" in x]
    assert shared[0] == pytest.approx(alone.losses[0], rel=1e-4)
    assert shared == pytest.approx(alone.losses, rel=2e-3)


@pytest.mark.parametrize(
    "model, verb, changes, words",
    [
        ("random:qwen3", "kto", {}, "KTO compares whole rows"),
        ("random:qwen3_5", "sft", {}, "linear attention carries a state"),
        ("random:qwen3", "sft", {"attention": "eager"}, "needs a mask"),
        ("random:qwen3", "sft", {"packing": True}, "packed rows"),
    ],
)
def test_what_cannot_share_rows_is_refused(model: str, verb: str, changes: dict, words: str) -> None:
    config = Config(model=model, dataset=Path("x"), output=Path("y"), **changes)
    with pytest.raises(UsageError, match=words):
        checks.sequence(SHARED, config_of(model), verb, config)
    checks.sequence(Asked("cpu_zero3", "deepspeed", 2, 3), config_of(model), verb, config)


def test_heads_that_cannot_be_divided_are_refused() -> None:
    config = Config(model="random:qwen3", dataset=Path("x"), output=Path("y"))
    with pytest.raises(UsageError, match="2 attention heads"):
        checks.sequence(Asked("x", "deepspeed", 4, 3, sequence=4), config_of("random:qwen3"), "sft", config)


def test_fsdp_on_cpus_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cpu_fsdp2.yaml"
    file.write_text("distributed_type: FSDP\nnum_processes: 2\nuse_cpu: false\n")
    with pytest.raises(UsageError, match="FSDP runs on GPUs only"):
        asked.read(file)


def test_groups_must_divide_the_ranks(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 3\nparallelism_config: {parallelism_config_sp_size: 2}\n"
        "deepspeed_config: {zero_stage: 3}\n"
    )
    with pytest.raises(UsageError, match="cannot share rows in groups of 2"):
        asked.read(file)
