"""Token ids, budgets, orders: what a model is shown, and in which sequence."""

from __future__ import annotations

from pathlib import Path

import pytest
import training_rows

from eft import tokenizers
from eft.errors import EftError
from eft.train import data, kto, sft


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.load("random:qwen3")


def config(root: Path, verb: str = "sft", **changes):
    kind = {"sft": sft, "kto": kto}[verb].Config
    values = {
        "root": root,
        "dataset": f"build/{verb}",
        "model": "random:qwen3",
        "output": "out",
        "global_batch": 4,
        "max_tokens": 512,
    }
    return kind(**{**values, **({"micro_batch": 2} if verb == "kto" else {}), **changes})


def prepared(config, tokenizer, *, ranks: int = 1) -> data.Prepared:
    labelled = isinstance(config, kto.Config)
    return data.prepare(config, tokenizer, labelled=labelled, group=False, main=True, wait=lambda: None, ranks=ranks)


def test_ids_are_what_a_server_shows_then_the_reply_and_the_end(root: Path, tokenizer) -> None:
    row = training_rows.row(0, True)
    ((prompt, completion),) = data.tokenize([row], tokenizer, {}, Path("x"))
    assert tokenizer.decode(prompt) == tokenizer.apply_chat_template(
        row["prompt"], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(completion) == row["completion"][0]["content"] + "<|im_end|>"
    whole = tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
    assert whole.startswith(tokenizer.decode(prompt + completion))


def test_loss_is_on_the_reply_only_and_rows_over_the_budget_go_whole(root: Path, tokenizer) -> None:
    found = prepared(config(root, epochs=2), tokenizer)
    assert found.counts["rows"] == 39 and found.counts["dropped_over_max_tokens"] == 1
    assert found.steps == 20 and len(found.train) == 80, "the last block is filled up"
    for row in found.train:
        assert len(row["prompt_ids"]) + len(row["completion_ids"]) == row["length"] <= 512
        assert len(row["completion_ids"]) == row["response"]
        assert tokenizer.decode(row["prompt_ids"]).endswith("<|im_start|>assistant\n")
        assert tokenizer.decode(row["completion_ids"]).endswith(">>>>>>> REPLACE<|im_end|>")
    assert found.counts["prompt_formats"] == ["eft@1"]


def test_ranks_and_restarts_see_the_same_rows(root: Path, tokenizer) -> None:
    one, again = prepared(config(root), tokenizer), prepared(config(root), tokenizer, ranks=2)
    assert one.train["id"][:] == again.train["id"][:]
    assert prepared(config(root, seed=1), tokenizer).train["id"][:] != one.train["id"][:]


def test_kto_blocks_are_whole(root: Path, tokenizer) -> None:
    found = prepared(config(root, "kto", micro_batch=4, global_batch=8, epochs=3), tokenizer)
    assert len(found.train) == found.steps * 8 and len(found.validation) % 4 == 0
    assert found.counts["desirable"] + found.counts["undesirable"] == 39


@pytest.mark.parametrize(
    "change, words",
    [
        ({"completion": [{"role": "assistant", "content": " \n"}]}, "empty response"),
        ({"completion": []}, "empty response"),
    ],
)
def test_a_row_without_a_reply_is_named(tokenizer, change: dict, words: str) -> None:
    with pytest.raises(EftError, match=words) as e:
        data.tokenize([{**training_rows.row(3, True), **change}], tokenizer, {}, Path("t.parquet"))
    assert "row3" in str(e.value)


def test_templates_that_would_be_served_differently_are_refused() -> None:
    tokenizer = tokenizers.load("random:qwen3")
    plain = tokenizer.chat_template
    row = training_rows.row(0, True)
    tokenizer.chat_template = plain.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    with pytest.raises(EftError, match="another way when an answer follows"):
        data.tokenize([row], tokenizer, {}, Path("x"))
    thinking = "{% if message['role'] == 'assistant' %}<think></think>{% endif %}"
    tokenizer.chat_template = plain.replace("+ message['content']", "}}" + thinking + "{{ message['content']")
    with pytest.raises(EftError, match="does not write the response as it is") as e:
        data.tokenize([row], tokenizer, {}, Path("x"))
    assert "thinking: off" in str(e.value)


def test_foreign_files_are_one_message(root: Path, tokenizer, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.parquet").write_text("not parquet")
    with pytest.raises(EftError, match="not a Parquet file"):
        prepared(config(root, dataset=tmp_path / "bad"), tokenizer)
    with pytest.raises(EftError, match="must hold true and false"):
        prepared(config(root, "kto", dataset="build/sft"), tokenizer)
    with pytest.raises(EftError, match="too few for 64 ranks"):
        prepared(config(root), tokenizer, ranks=64)
    with pytest.raises(EftError, match="all 40 rows have more than 9 tokens"):
        prepared(config(root, max_tokens=9), tokenizer)


def test_kto_pairs_are_those_of_trl(root: Path, tokenizer) -> None:
    """The same ids and the same mismatched completions as TRL's own preparation, rotated within micro batches."""
    from trl import KTOTrainer

    from eft.train.kto_trainer import pair_completions

    found = prepared(config(root, "kto", micro_batch=4, global_batch=4), tokenizer)
    raw = {r["id"]: r for batch in data.read(root / "build/kto/train.parquet", labelled=True) for r in batch}
    kept = [r for r in raw.values() if r["id"] != "row39"][:12]
    from datasets import Dataset

    class Arguments:
        dataset_num_proc, max_length, per_device_train_batch_size = None, None, 4

    trainer = KTOTrainer.__new__(KTOTrainer)
    trainer.calculate_KL, trainer._tokenizer, trainer.desirable_weight, trainer.undesirable_weight = (
        True,
        tokenizer,
        1.0,
        1.0,
    )
    theirs = trainer._prepare_dataset(Dataset.from_list(kept), tokenizer, Arguments, "train")
    ours = found.train.select(range(12))
    collate = pair_completions(tokenizer.pad_token_id)
    for start in range(0, 12, 4):
        batch = collate([ours[i] for i in range(start, start + 4)])
        for k, row in enumerate(theirs.select(range(start, start + 4))):
            newline = row["completion_ids"][-1:]  # TRL also learns the template's line break after the end token
            assert row["prompt_ids"] == ours[start + k]["prompt_ids"]
            assert row["completion_ids"] == ours[start + k]["completion_ids"] + newline
            ids = batch["KL_input_ids"][k][batch["KL_attention_mask"][k].bool()].tolist()
            assert ids + newline == row["prompt_ids"] + row["KL_completion_ids"]
