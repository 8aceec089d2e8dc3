"""What cannot be trained is one message, before the model is loaded."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import training
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import config as configs
from eft import tokenizers
from eft.errors import EftError
from eft.models import load
from eft.train import checks, kto, sft
from eft.train.asked import Asked


@pytest.fixture
def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading weights is an error in itself."""

    def loaded(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(load, "load_model", loaded)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A model folder with random weights: Llama, which lacks what a Qwen3 adapter may name."""
    folder = tmp_path / "llama"
    load.load_model("random:llama").save_pretrained(folder)
    tokenizers.load("random:llama").save_pretrained(folder)
    return folder


@pytest.mark.integration
def test_data_sets_of_the_other_stage(here, never_loaded: None) -> None:
    with pytest.raises(EftError, match="this is a data set for KTO, not for SFT"):
        here("sft", dataset="build/kto")
    with pytest.raises(EftError, match="this is a data set for SFT, not for KTO") as e:
        here("kto", dataset="build/sft")
    assert "missing columns: label" in str(e.value)


def test_a_label_in_words_is_no_class(tmp_path: Path) -> None:
    """`eft build` says in words what a row of an SFT set is."""
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table({"prompt": ["x"], "label": ["improved"]}), file)
    checks.stage(file, labelled=False)
    with pytest.raises(EftError, match="for SFT, not for KTO"):
        checks.stage(file, labelled=True)


@pytest.mark.integration
def test_a_tokenizer_of_another_model(here, llama: Path, never_loaded: None) -> None:
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    with pytest.raises(EftError, match="tokenizer and model have different vocabularies") as e:
        here("sft", model=str(llama))
    assert "the model 100 embeddings" in str(e.value)
    (llama / "config.json").write_text(json.dumps({**config, "eos_token_id": 300}))
    with pytest.raises(EftError, match="different vocabularies") as e:
        here("kto", model=str(llama))
    assert "the model's end token is 300, which the tokenizer reads as" in str(e.value)


@settings(max_examples=30, deadline=None)
@given(st.integers(-600, 5000), st.sampled_from([None, 2, [2, 0]]))
def test_room_for_more_words_is_no_mismatch(room: int, ends: Any) -> None:
    tokenizer = tokenizers.load("random:qwen3")
    config = SimpleNamespace(vocab_size=len(tokenizer) + room, eos_token_id=ends)
    if room >= 0:
        checks.vocabulary(tokenizer, config, "m")
    else:
        with pytest.raises(EftError):
            checks.vocabulary(tokenizer, config, "m")


@pytest.mark.integration
def test_an_adapter_on_another_base(here, root: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = here("sft", lora={"rank": 4}, steps=1, eval_rows=0).out / "final"
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "hidden_size": 96}))
    (final / "base.json").write_text(json.dumps({"base": str(llama), "relative": None}))
    monkeypatch.setattr(load, "load_model", None)
    with pytest.raises(EftError, match="the adapter belongs on another base model") as e:
        here("kto", model=str(final))
    assert "64 wide; the base's is 96" in str(e.value)


@pytest.mark.integration
def test_no_space(here, never_loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**5, 10**5))
    with pytest.raises(EftError, match="not enough space for the checkpoints"):
        here("sft")


def test_more_ranks_than_rows(root: Path) -> None:
    config = SimpleNamespace(file=lambda split: root / split)
    checks.rows(8, Asked("x", "ddp", 8), config)
    checks.rows(4, Asked("x", "deepspeed", 8, 3, sequence=2), config)
    with pytest.raises(EftError, match="8 ranks for 7 rows"):
        checks.rows(7, Asked("x", "ddp", 8), config)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"learning_rte": 1}, "did you mean 'learning_rate'?"),
        ({"lora": {"rnk": 4}}, "did you mean 'rank'?"),
        ({"device": "rtx 4091"}, "did you mean 'RTX 4090'?"),
        ({"launch": "zerro3"}, "did you mean 'zero3'?"),
        ({"global_batch": 9}, "global_batch 9 is not a multiple of"),
        ({"dataset": "build/kto"}, "this is a data set for KTO"),
    ],
)
def test_misspelt_keys_and_bad_values_end_the_command(changes: dict, words: str, eft, root: Path) -> None:
    done = eft("sft", "--config", training.recipe(root, "sft", **changes))
    assert done.returncode in (1, 2) and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (root / "sft" / "train.log").exists(), "nothing was launched"


@pytest.mark.integration
def test_the_dry_run_tells_the_plan_and_loads_nothing(eft, root: Path) -> None:
    file = training.recipe(root, "sft", launch="zero3", precision="bf16", micro_batch=1, steps=None, global_batch=16)
    done = eft("sft", "--config", file, "--dry-run", "--json", "--device", "a100")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout.splitlines()[-1])["plan"]
    wanted = {"world_size": 8, "zero_stage": 3, "global_batch": 16, "accumulation": 2, "rows": 39, "device": "A100"}
    assert {k: plan[k] for k in wanted} == wanted
    assert plan["dropped_over_max_tokens"] == 1 and plan["steps"] == 3 and plan["parameters"] == 136_960
    assert plan["memory_total"] == sum(plan["memory"].values())
    for words in ("world size 8, DeepSpeed ZeRO-3", "estimated memory per rank", "of 80.0 GiB on A100", "(2.5% of the rows)"):
        assert words in done.stderr
    assert sorted(f.name for f in (root / "sft").iterdir()) == ["config.yaml"]
    again = eft("sft", "--config", file, "--dry-run")
    assert again.stdout.count("\n# ") >= 6 and "estimated time" in again.stdout
    bad = eft("sft", "--config", file, "--dry-run", "--set", "global_batch=12")
    assert bad.returncode == 2 and "is not a multiple of micro_batch × ranks" in bad.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    "verb, changes, words",
    [
        ("sft", {"trainer": {"adam_bet1": 1}}, "did you mean 'adam_beta1'?"),
        ("sft", {"packing": True, "model": "random:qwen3_5"}, "packing is refused"),
        ("kto", {"max_rows": 1}, "desirable row is left to train on"),
    ],
)
def test_the_dry_run_refuses_what_the_run_would(verb: str, changes: dict, words: str, root: Path) -> None:
    module = {"sft": sft, "kto": kto}[verb]
    with pytest.raises(EftError) as e:
        module.dry_run(configs.load(module.Config, training.recipe(root, verb, **changes)))
    assert words in str(e.value)


@pytest.mark.integration
def test_a_run_prints_what_the_dry_run_said(eft, here, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = training.recipe(root, "sft", steps=2, eval_rows=0)
    told = [x[2:] for x in eft("sft", "--config", file, "--dry-run").stdout.splitlines() if x.startswith("# ")]
    here("sft", steps=2, eval_rows=0)
    printed = capsys.readouterr().err
    same = [line for line in told if "time" not in line and "launch" not in line]  # a CPU's peak is measured each time
    assert len(same) >= 4
    for line in same:
        assert f"sft: {line}\n" in printed, line
