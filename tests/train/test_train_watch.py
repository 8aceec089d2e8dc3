"""Held-out rows and sampled mutations: chosen, measured, applied; and that looking changes nothing."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import training
import training_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import config as configs
from eft.errors import EftError, UsageError
from eft.train import sft, watch
from eft.train.asked import Asked
from eft.train.callbacks import read_journal, read_lines

numbers = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0]), min_size=1, max_size=8)


@settings(deadline=None)
@given(numbers, numbers)
def test_auc_is_the_share_of_pairs(good: list[float], bad: list[float]) -> None:
    pairs = sum((a > b) + (a == b) / 2 for a in good for b in bad)
    assert watch.auc(good, bad) == pytest.approx(pairs / (len(good) * len(bad)))
    assert watch.auc(good, []) is None


def test_a_look_by_label_and_domain() -> None:
    rows = [{"id": f"{d}{i}", "domain": d, "label": i % 2 == 0} for d in ("maths", "systems") for i in range(4)]
    start = {row["id"]: -2.0 for row in rows}
    now = {row["id"]: -1.0 if row["label"] == (row["domain"] == "maths") else -3.0 for row in rows}
    found = watch.summary(rows, now, start)
    assert found["eval_nll_improved"] == found["eval_nll_regressed"] == 2.0 and found["eval_auc"] == 0.5
    assert found["eval_nll_improved/maths"] == 1.0 and found["eval_nll_regressed/maths"] == 3.0
    assert found["eval_auc/maths"] == 1.0 and found["eval_auc_change/systems"] == 0.0
    assert "eval_auc_change" not in watch.summary(rows, now, {})


def test_rows_are_spread_over_labels_domains_and_tasks(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def row(i: int) -> dict:
        domain = "rare" if i % 20 == 0 else "common"
        return {**training_rows.row(i, i % 4 == 0), "domain": domain, "task": f"{domain}{i % 7}"}

    pq.write_table(pa.Table.from_pylist([row(i) for i in range(400)]), tmp_path / "v.parquet", row_group_size=50)
    found = watch.chosen(tmp_path / "v.parquet", 24, seed=3)
    assert len(found) == 24 and sum(r["label"] for r in found) == 12
    assert sum(r["domain"] == "rare" for r in found if r["label"]) == 6, "domains take turns, however many rows they have"
    assert len({r["task"] for r in found}) >= 10
    assert [r["id"] for r in watch.chosen(tmp_path / "v.parquet", 24, seed=3)] == [r["id"] for r in found]
    assert [r["id"] for r in watch.chosen(tmp_path / "v.parquet", 24, seed=4)] != [r["id"] for r in found]


@pytest.mark.parametrize(
    "reply, ended, became",
    [
        ("<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE", True, "valid"),
        ("<<<<<<< SEARCH\nx = 1\n=======\nx = 1\n>>>>>>> REPLACE", True, "no_op"),
        ("<<<<<<< SEARCH\nx = 7\n=======\nx = 2\n>>>>>>> REPLACE", True, "unmatched"),
        ("<<<<<<< SEARCH\nx = 1\n=======\nx = (\n>>>>>>> REPLACE", True, "syntax"),
        ("I would change x", True, "no_block"),
        ("<<<<<<< SEARCH\nx = 1\n====", False, "cut"),
        ("<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\nand", False, "valid"),
    ],
)
def test_replies_are_applied_as_the_scaffold_would(reply: str, ended: bool, became: str) -> None:
    user = "# Current Program\n```python\nx = 1\ny = 2\n```\n# Task\nUse the <<<<<<< SEARCH format"
    row = watch.shown({"prompt": [{"role": "user", "content": user}]})
    assert row == {"parent": "x = 1\ny = 2", "kind": "diff", "dialect": "openevolve@0.4", "language": "python"}
    assert watch.outcome(row, reply, ended) == became


@settings(deadline=None)
@given(st.text(max_size=400), st.booleans())
def test_no_reply_can_stop_a_training(reply: str, ended: bool) -> None:
    for kind in ("diff", "rewrite"):
        row = {"parent": "x = 1\n", "kind": kind, "dialect": "openevolve@0.4", "language": "python"}
        assert isinstance(watch.outcome(row, reply, ended), str)


def test_the_measure_is_the_models_loss() -> None:
    import torch

    from eft.models.load import load_model

    model = load_model("random:qwen3").eval()
    rng = random.Random(0)
    prompt, completion = ([rng.randrange(500) for _ in range(n)] for n in (40, 700))
    labels = torch.tensor([[-100] * 40 + completion])
    with torch.no_grad():
        loss = model(input_ids=torch.tensor([prompt + completion]), labels=labels).loss.item()
        ours = watch.mean_logprob(model, prompt, completion, "cpu")
    assert -ours == pytest.approx(loss, abs=1e-5)


# ----------------------------------------------------------------------------------------------------------- in training


@pytest.mark.integration
def test_a_watched_training_is_the_unwatched_one(here, root: Path) -> None:
    lora = {"rank": 4, "dropout": 0.2}  # dropout draws from the generator that looking must not touch
    seen = here("sft", lora=lora, output="seen", watch={"every": 2, "rows": 6, "samples": 3, "max_new_tokens": 12})
    blind = here("sft", lora=lora, output="blind", watch={"rows": 0}, eval_rows=0)
    assert seen.losses == blind.losses
    assert training.largest_difference(seen.out / "final", blind.out / "final") == 0.0

    looks = [x for x in read_journal(seen.out) if "eval_nll_improved" in x]
    assert [x["step"] for x in looks] == [0, 2, 4, 6]
    assert looks[-1]["eval_nll_improved"] < looks[0]["eval_nll_improved"] - 0.1
    assert all(0 <= x["eval_auc"] <= 1 and 0 <= x["eval_valid_edits"] <= 1 for x in looks)
    assert "eval_auc_change" in looks[1] and "eval_auc_change" not in looks[0]
    assert [x["step"] for x in read_journal(seen.out) if "eval_loss" in x] == [0, 2, 4, 6]
    samples = read_lines(seen.out / watch.SAMPLES)
    assert len(samples) == 12 and {"step", "id", "became", "response"} <= set(samples[0])
    first, last = ([s["id"] for s in samples if s["step"] == step] for step in (0, 6))
    assert first == last, "the same prompts every time"
    counts = seen.counts
    assert counts["tokens_per_second"] > 0 and 0 < counts["mfu"] < 2 and 0 < counts["callbacks_share"] < 1
    line = next(x for x in read_journal(seen.out) if "loss" in x)
    assert {"tokens_per_second", "mfu", "memory_gb", "step_seconds"} <= set(line)


@pytest.mark.integration
def test_kto_is_watched_on_its_own_rows(here) -> None:
    done = here("kto", steps=2, watch={"rows": 8})
    lines = read_journal(done.out)
    first = next(x for x in lines if "eval_nll_regressed" in x)
    assert first["step"] == 0 and math.isfinite(first["eval_auc"])
    stored = json.loads((done.out / watch.START).read_text())
    assert len(stored) == 8
    line = next(x for x in lines if "loss" in x)
    assert line["desirable_share"] == 0.5 and "rewards/margins" in line and "kl" in line


def test_what_cannot_be_watched_is_one_message(here, root: Path) -> None:
    with pytest.raises(UsageError, match="no table to watch"):
        here("sft", watch={"table": "nowhere.parquet"})
    bad = root / "bad.parquet"
    bad.write_text("no table")
    with pytest.raises(EftError, match="cannot be read"):
        here("sft", watch={"table": str(bad)})
    row = training_rows.row(1, True)
    row["prompt"] = [{"role": "user", "content": "Write a poem."}]
    training_rows.write(root / "poems", [row], "validation", labelled=True)
    with pytest.raises(EftError, match="no held-out prompt shows a program"):
        here("sft", watch={"table": "poems/validation.parquet", "samples": 2})


@pytest.mark.parametrize(
    "asked, validates, words",
    [
        (Asked("fsdp2", "fsdp", 8), True, "no mutations are sampled: FSDP"),
        (Asked("ulysses", "deepspeed", 8, 3, sequence=4), True, "nothing is watched beside the loss"),
        (Asked("cpu", "none", 1, cpu=True), False, "the data has no validation table"),
    ],
)
def test_what_a_launch_cannot_watch_is_said_and_left_out(asked: Asked, validates: bool, words: str, root: Path) -> None:
    """The shipped recipes ask for samples; another launch of theirs must not fail for it."""
    training_rows.write(root / "alone/sft", [training_rows.row(i, True) for i in range(4)], labelled=False)
    said: list[str] = []
    data = "build/sft" if validates else "alone/sft"
    config = configs.load(sft.Config, training.recipe(root, "sft", dataset=data, watch={"rows": 0, "samples": 2}))
    run = SimpleNamespace(config=config, asked=asked, args=SimpleNamespace(process_index=0, world_size=8), say=said.append)
    looked = watch.Watch(run, None, None, None)
    looked.prepare()
    assert not looked.rows and not looked.asked and words in said[0]
