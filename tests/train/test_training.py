"""One rank, in this process: what training writes, and how it refuses what cannot be trained."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import training
import training_rows

from eft import config as configs
from eft import manifest
from eft.errors import EftError, UsageError
from eft.train import kto, launch, sft

pytestmark = pytest.mark.integration


def test_sft_learns_and_accounts(here) -> None:
    done = here("sft", precision="bf16_weights", epochs=4, steps=None)
    counts = done.counts
    assert done.losses[-1] < done.losses[0] - 1
    assert counts["eval_loss"] < counts["eval_loss_before"] - 1
    assert (counts["rows"], counts["dropped_over_max_tokens"], counts["steps"]) == (39, 1, 20)
    assert (
        counts["epochs"] == pytest.approx(20 * 8 / 39, abs=1e-3)
        and counts["tokens"] > 0
        and counts["validation_rows"] == 8
    )
    assert not list(done.out.glob("checkpoint-*")), "the checkpoints of a finished training go"
    assert set(manifest.read(done.out)["outputs"]) >= {
        "losses.jsonl",
        "final/model.safetensors",
        "final/tokenizer.json",
    }


def test_lora_trains_adapters_and_loads_as_a_whole_model(here) -> None:
    from eft.models.load import load_model

    done = here("sft", lora={"rank": 4})
    assert (done.out / "final" / "adapter_model.safetensors").stat().st_size < 200_000
    assert json.loads((done.out / "final" / "base.json").read_text())["base"] == "random:qwen3"
    base, merged = load_model("random:qwen3"), load_model(str(done.out / "final"))
    changed = {n for n, p in merged.named_parameters() if not p.equal(base.get_parameter(n))}
    assert changed and all("proj" in n for n in changed), "linear layers, not embeddings"
    again = here("kto", model="sft/final", lora={"rank": 4}, steps=2)
    assert again.losses[0] == pytest.approx(0.55, abs=1e-4), "the merged SFT model is the reference"
    second = load_model(str(again.out / "final"))
    assert any(not p.equal(merged.get_parameter(n)) for n, p in second.named_parameters())


def test_a_finished_training_is_redone_when_its_data_change(here, root: Path) -> None:
    first = here("sft", steps=2)
    stamp = (first.out / "manifest.json").stat().st_mtime_ns
    here("sft", steps=2)
    assert (first.out / "manifest.json").stat().st_mtime_ns == stamp, "up to date: nothing was done"
    (root / "build").unlink()
    training_rows.sets(root, 24)
    assert here("sft", steps=2).counts["rows"] == 23


def test_checkpoints_of_another_training_are_not_continued(here, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.train import loop

    monkeypatch.setattr(loop, "finish", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        here("sft", steps=2)
    monkeypatch.undo()
    with pytest.raises(EftError, match="of another training") as e:
        here("sft", steps=2, learning_rate=2e-3)
    assert "learning_rate: 0.001 → 0.002" in str(e.value)


@pytest.mark.parametrize(
    "verb, changes, words",
    [
        ("sft", {"max_tokens": 20}, "all 40 rows have more than 20 tokens"),
        ("sft", {"lora": {"targets": ["nothing_like_this"]}}, "nothing_like_this"),
        ("sft", {"trainer": {"learning_rat": 1}}, "unknown key 'trainer.learning_rat'"),
        ("sft", {"trainer": {"adam_bet1": 1}}, "did you mean 'adam_beta1'?"),
        ("sft", {"trainer": {"learning_rate": 1}}, "set `learning_rate`"),
        ("sft", {"model": "sft/final"}, "run 'eft sft' first"),
        ("sft", {"schedule": "cosin"}, "cosin"),
        ("sft", {"attention": "flsh"}, "flsh"),
        ("sft", {"trainer": {"use_liger_kernel": True}}, "is decided by eft"),
        ("kto", {"micro_batch": 1}, "KTO needs micro_batch ≥ 2"),
        ("kto", {"dataset": "build/sft"}, "missing columns: label"),
    ],
)
def test_what_cannot_be_trained_is_one_message(verb: str, changes: dict, words: str, here) -> None:
    with pytest.raises(EftError) as e:
        here(verb, **changes)
    assert words in str(e.value)


def test_kto_needs_both_classes_and_no_empty_reply(here, root: Path) -> None:
    (root / "build").unlink()
    training_rows.write(root / "build" / "kto", [training_rows.row(i, True) for i in range(12)], labelled=True)
    with pytest.raises(EftError, match="no undesirable row"):
        here("kto")
    made = [training_rows.row(i, i % 2 == 0) for i in range(12)]
    made[5]["completion"] = [{"role": "assistant", "content": ""}]
    training_rows.write(root / "build" / "kto", made, labelled=True)
    with pytest.raises(EftError, match="row5"):
        here("kto")


def test_a_training_that_diverges_saves_nothing_more(here, root: Path) -> None:
    with pytest.raises(EftError, match="the training has diverged") as e:
        here("sft", learning_rate=1e30, max_grad_norm=1e30, log_every=50, save_every=2, watch={"rows": 0})
    report = json.loads((root / "sft" / "stopped.json").read_text())
    assert report["step"] == 2 and report["rows"] and set(report["rows"]) <= {f"row{i}" for i in range(40)}
    assert report["rows"][0] in str(e.value), "the rows are named"
    assert not list((root / "sft").glob("checkpoint-*")), "the step was to be saved, and its loss was looked at first"


def test_indivisible_batches_and_too_many_ranks_are_refused_before_launching(eft, root: Path) -> None:
    file = training.recipe(root, "sft", global_batch=9)
    done = eft("sft", "--config", file)
    assert (
        done.returncode == 2 and "global_batch 9 is not a multiple of" in done.stderr and "Traceback" not in done.stderr
    )
    done = eft("sft", "--config", file, "--launch", "zero2")
    assert done.returncode == 2 and "starts 8 ranks" in done.stderr
    done = eft("sft", "--config", file, "--launch", "zerro2")
    assert done.returncode == 2 and "did you mean" in done.stderr


def test_an_error_in_a_rank_is_one_message(eft, root: Path) -> None:
    done = eft("sft", "--config", training.recipe(root, "sft", max_tokens=20))
    assert done.returncode == 1
    assert "error: there is nothing to train on" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_second_command_leaves_the_folder_of_a_training_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even its recipe, which a training that is starting has still to read."""
    hold = launch.hold
    monkeypatch.setattr(launch, "hold", lambda out: hold(out, patience=0.1))
    config = configs.load(sft.Config, training.recipe(root, "sft"))
    config.out().mkdir()
    with hold(config.out()), pytest.raises(EftError, match="another training writes into this folder"):
        launch.start("sft", config)
    assert [f.name for f in config.out().iterdir()] == [".lock"]


def test_a_training_that_another_command_has_finished_meanwhile_is_not_done_again(
    here, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(launch.AGAIN, f"{time.time():.3f}")
    finished = manifest.location(here("sft", steps=1, eval_rows=0, watch={"rows": 0}).out)
    before = finished.stat().st_mtime_ns
    here("sft", steps=1, eval_rows=0, watch={"rows": 0})
    assert finished.stat().st_mtime_ns == before
    hold = launch.hold

    def waited(out: Path) -> object:
        os.utime(finished, (time.time() + 5,) * 2)
        return hold(out)

    monkeypatch.setenv(launch.AGAIN, f"{time.time() + 1:.3f}")  # decided to train again
    monkeypatch.setattr(launch, "hold", waited)
    with pytest.raises(EftError, match="another training has just finished"):
        here("sft", steps=1, eval_rows=0, watch={"rows": 0})
    assert finished.exists()


@pytest.mark.parametrize("weight", [float("nan"), -1, "x"])
def test_bad_class_weights_are_told_before_anything_is_launched(weight: object, root: Path) -> None:
    (root / "bad").mkdir()
    (root / "bad/train.parquet").symlink_to(root / "build/kto/train.parquet")
    (root / "bad/weights.json").write_text(json.dumps({"desirable_weight": 1, "undesirable_weight": weight}))
    with pytest.raises(EftError, match="the weights of the classes cannot be read"):
        configs.load(kto.Config, training.recipe(root, "kto", dataset="bad")).check()


def test_usage_errors_are_usage_errors(here) -> None:
    with pytest.raises(UsageError):
        here("sft", trainer={"nope": 1})
