"""Two ranks for real: DDP, ZeRO-2 and ZeRO-3 are the same training, and each is what it says.

The CPU twins have the content of GPU launches (MULTI_GPU, use_cpu: false). Launched without eft's entry, such a file
starts two trainings of one rank each into one folder, or dies in a collective: that the launches below are one training
of two ranks is the test of the entry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import training

from eft import manifest
from eft.models.save import stored_parameters
from eft.train import checkpoints
from eft.train.callbacks import read_journal, read_lines

pytestmark = [pytest.mark.multirank, pytest.mark.integration]
NAMES = ("cpu_ddp", "cpu_zero2", "cpu_zero3")


def losses(root: Path, verb: str, key: str = "loss") -> list[float]:
    return [line[key] for line in read_journal(root / verb) if key in line]


@pytest.mark.parametrize("verb", ["sft", "kto"])
def test_losses_and_weights_agree(launched: dict[str, Path], verb: str) -> None:
    ddp = launched["cpu_ddp"]
    for name in NAMES[1:]:
        for key in ("loss", "eval_loss", "grad_norm"):
            assert losses(launched[name], verb, key) == pytest.approx(losses(ddp, verb, key), rel=2e-4), (name, key)
        assert training.largest_difference(launched[name] / verb / "final", ddp / verb / "final") < 2e-5, name


def test_training_trains(launched: dict[str, Path]) -> None:
    for root in launched.values():
        assert losses(root, "sft")[-1] < losses(root, "sft")[0] - 0.3
        assert losses(root, "kto")[0] == pytest.approx(0.5 * (1.0 + 1.2) / 2, abs=1e-4), (
            "the model starts at its reference"
        )
        assert losses(root, "kto")[-1] < losses(root, "kto")[0]


@pytest.mark.parametrize("verb", ["sft", "kto"])
def test_all_ranks_watch_together(launched: dict[str, Path], verb: str) -> None:
    for key in ("eval_nll_improved", "eval_nll_regressed", "eval_auc"):
        expected = losses(launched["cpu_ddp"], verb, key)
        assert len(expected) == 2, "before and after"
        for name in NAMES[1:]:
            assert losses(launched[name], verb, key) == pytest.approx(expected, rel=2e-4), (name, key)
    for root in launched.values():
        samples = read_lines(root / verb / "samples.jsonl")
        assert len(samples) == 6 and len({s["id"] for s in samples}) == 3, "three before, three after"
        assert losses(root, verb, "tokens_per_second") and losses(root, verb, "mfu")


@pytest.mark.parametrize("name, words", [("cpu_ddp", "DDP"), ("cpu_zero2", "ZeRO-2"), ("cpu_zero3", "ZeRO-3")])
def test_the_launch_is_printed_once(launched: dict[str, Path], name: str, words: str) -> None:
    text = (launched[name] / "output.txt").read_text()
    for verb in ("sft", "kto"):  # each trains twice in this launch
        assert text.count(f"{verb}: launch '{name}': world size 2, ") == 2 and words in text
    assert "sft: global batch 8 = 2 per rank × 2 accumulated × 2 ranks; 6 steps" in text
    assert "dropped: {'over_max_tokens': 1}" in text


def test_optimizer_and_weights_are_sharded(launched: dict[str, Path]) -> None:
    import torch

    for name, stage in (("cpu_zero2", 2), ("cpu_zero3", 3)):
        folder = launched[name] / "sft" / "checkpoint-6" / "global_step6"
        total = manifest.read(launched[name] / "sft")["counts"]["parameters"]
        shards = sorted(folder.glob("*_optim_states.pt"))
        assert len(shards) == 2
        for shard in shards:
            state = torch.load(shard, weights_only=False)["optimizer_state_dict"]
            assert state["zero_stage"] == stage
            flat = state["fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"]
            held = sum(t.numel() for t in flat)
            assert total / 2 <= held < total / 2 + 1000, "each rank holds half of the master weights"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_on_disk(launched: dict[str, Path], name: str) -> None:
    for verb in ("sft", "kto"):
        out = launched[name] / verb
        done = manifest.require(out, verb)
        assert stored_parameters(out / "final") >= done["counts"]["parameters"], "ZeRO-3 gathered its weights"
        assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(
            os.listdir(out / "final")
        )
        assert sorted(f.name for f in out.glob("checkpoint-*"))[-1].endswith(str(done["counts"]["steps"]))
        assert len(list(out.glob("checkpoint-*"))) == 2, "keep: 2"
        assert done["counts"]["dropped_over_max_tokens"] == 1 and done["counts"]["peak_memory_gb"] > 0


def test_one_rank_is_the_same_training(launched: dict[str, Path], here) -> None:
    one = here("sft")
    assert one.losses == pytest.approx(losses(launched["cpu_ddp"], "sft"), rel=1e-4)
    assert training.largest_difference(one.out / "final", launched["cpu_ddp"] / "sft" / "final") < 2e-5


def multi_cpu(tmp_path: Path) -> Path:
    file = tmp_path / "multi_cpu.yaml"
    file.write_text(
        "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\nnum_machines: 1\nmixed_precision: 'no'\n"
    )
    return file


@pytest.mark.parametrize("form", ["--num_processes 2 --cpu", "MULTI_CPU yaml", "ACCELERATE_USE_CPU and ZeRO-2"])
def test_launches_that_would_train_something_else_are_refused(form: str, root: Path) -> None:
    file = training.recipe(root, "sft", micro_batch=2)
    if form == "--num_processes 2 --cpu":
        done = training.accelerate("", "eft.train.sft", file, options=("--num_processes", "2", "--cpu"))
        words = "2 ranks were asked for, 1 was started"
    elif form == "MULTI_CPU yaml":
        done = training.accelerate(multi_cpu(root), "eft.train.sft", file)
        words = "2 ranks were asked for, 1 was started"
    else:
        done = training.accelerate("cpu_zero2", "eft.train.sft", file, env={"ACCELERATE_USE_CPU": "true"})
        words = "ACCELERATE_USE_CPU turns DeepSpeed off"
    assert done.returncode != 0
    assert "the launch is not what it says" in done.stderr and words in done.stderr, done.stderr[-3000:]
    assert not (root / "sft" / "final").exists() and not (root / "sft" / "losses.jsonl").exists()


def continues(root: Path, whole: Path, verb: str, name: str) -> None:
    """The training ROOT/VERB was interrupted: continued, it is the undisturbed `whole`."""
    done = training.accelerate(name, f"eft.train.{verb}", root / f"{verb}.yaml")
    assert done.returncode == 0 and "continuing from" in done.stderr, done.stderr[-3000:]
    for key in ("loss", "grad_norm", "eval_loss"):
        assert losses(root, verb, key) == losses(whole, verb, key), key
    assert training.largest_difference(whole / verb / "final", root / verb / "final") == 0.0


def test_killed_ranks_continue_exactly(launched: dict[str, Path], root: Path) -> None:
    """SFT under ZeRO-3 killed by SIGKILL; then KTO, of which one rank is told to end, and which is killed after that."""
    name = "cpu_zero3"
    whole, common = launched[name], {"launch": name, "micro_batch": 2, "keep_finished": True}
    sft = training.recipe(root, "sft", **common)
    kto = training.recipe(root, "kto", **common, model="sft/final")
    assert training.accelerate(name, "killed_ranks", "sft", "4", sft).returncode != 0
    assert not (root / "sft" / "final").exists()
    done = training.accelerate(name, "killed_ranks", "chain", sft, kto)
    assert done.returncode != 0 and "continuing from" in done.stderr, done.stderr[-3000:]
    assert losses(root, "sft") == losses(whole, "sft")
    assert training.largest_difference(whole / "sft" / "final", root / "sft" / "final") == 0.0
    assert done.stdout.count("INTERRUPTED") == 2, "one rank got the signal, both ended"
    assert "the training was interrupted and has saved step 1" in done.stderr
    assert [f.name for f in checkpoints.checkpoints(root / "kto") if checkpoints.complete(f)] == [
        "checkpoint-1",
        "checkpoint-2",
    ]
    continues(root, whole, "kto", name)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4, "dropout": 0.1}], ids=["full", "lora"])
@pytest.mark.parametrize("verb, step", [("sft", 4), ("kto", 2)], ids=["sft", "kto"])
@pytest.mark.parametrize("name", NAMES)
def test_every_killed_training_continues_exactly(name: str, verb: str, step: int, lora: dict | None, root: Path) -> None:
    whole = root / "whole"
    whole.mkdir()
    (whole / "build").symlink_to((root / "build").resolve())
    common = {"launch": name, "micro_batch": 2, "lora": lora, "keep_finished": True}
    recipes = [training.recipe(place, verb, **common) for place in (whole, root)]
    undisturbed = training.accelerate(name, f"eft.train.{verb}", recipes[0])
    assert undisturbed.returncode == 0, undisturbed.stderr[-3000:]
    assert training.accelerate(name, "killed_ranks", verb, str(step), recipes[1]).returncode != 0
    assert not (root / verb / "final").exists()
    continues(root, whole, verb, name)
