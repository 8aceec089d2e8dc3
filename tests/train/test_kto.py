"""KTO: row by row what TRL computes, for less work; and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import training_rows

from eft.errors import EftError, UsageError

MICRO = 4
WEIGHTS = {"desirable_weight": 1.0, "undesirable_weight": 1.3}


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """Twelve rows with prompts of very different lengths, one token ids column each."""
    from eft import tokenizers
    from eft.train.tokens import tokenize

    tokenizer = tokenizers.load("random:qwen3")
    found = [training_rows.row(i, i % 3 != 1, lines=2 + 7 * (i % 4)) for i in range(12)]
    ids = tokenize(found, tokenizer, {}, Path("x"))
    return [{**r, "prompt_ids": list(p), "completion_ids": list(c)} for r, (p, c) in zip(found, ids, strict=True)]


def models(name: str) -> tuple[Any, Any]:
    """(policy, reference), some way apart. The policy finds the rows likelier, so that the KL term is above zero."""
    from eft.models.load import load_model

    policy, other = load_model(name), load_model(name)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in other.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator)
    return policy, other


def arguments(folder: Path, **changes: Any) -> Any:
    from trl import KTOConfig

    values = {
        "output_dir": str(folder), "per_device_train_batch_size": MICRO, "per_device_eval_batch_size": MICRO, "bf16": False,
        "gradient_checkpointing": False, "max_length": None, "use_cpu": True, "report_to": "none",
        "train_sampling_strategy": "sequential", "dataloader_pin_memory": False, **WEIGHTS, **changes,
    }  # fmt: skip
    return KTOConfig(**values)


def plain(folder: Path, rows: list[dict], policy: Any, reference: Any, tokenizer: Any) -> Any:
    """TRL's own trainer, as it comes."""
    from datasets import Dataset
    from trl import KTOTrainer

    table = Dataset.from_list([{k: r[k] for k in ("prompt", "completion", "label")} for r in rows])
    return KTOTrainer(
        model=policy, ref_model=reference, args=arguments(folder), processing_class=tokenizer, train_dataset=table
    )


def ours(folder: Path, rows: list[dict], policy: Any, tokenizer: Any, share: bool, **changes: Any) -> Any:
    from datasets import Dataset

    from eft.train.kto_trainer import PairedTrainer, pair_completions

    table = Dataset.from_list([{k: r[k] for k in ("prompt_ids", "completion_ids", "label")} for r in rows])
    return PairedTrainer(
        model=policy, args=arguments(folder, **changes), processing_class=tokenizer, train_dataset=table, share=share,
        data_collator=pair_completions(tokenizer.pad_token_id),
    )  # fmt: skip


def batch_of(trainer: Any, start: int) -> dict[str, Any]:
    return trainer.data_collator([trainer.train_dataset[i] for i in range(start, start + MICRO)])


def gradients(model: Any) -> dict[str, Any]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.integration
@pytest.mark.parametrize("name", ["random:qwen3", "random:llama"])
@pytest.mark.parametrize("share", [True, False], ids=["prompts' states", "whole pass"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_every_row_is_trls(name: str, share: bool, checkpointing: bool, rows: list[dict], tmp_path: Path) -> None:
    from eft import tokenizers
    from eft.train.kto_trainer import bits

    tokenizer = tokenizers.load(name)
    policy, reference = models(name)
    trl = plain(tmp_path / "trl", rows, policy, reference, tokenizer)
    copy, _ = models(name)
    mine = ours(tmp_path / "eft", rows, copy, tokenizer, share, gradient_checkpointing=checkpointing)
    assert mine.share == share and mine.ref_model is None
    if checkpointing:
        copy.gradient_checkpointing_enable()
    divergences = []
    for start in range(0, len(rows), MICRO):
        theirs = batch_of(mine, start)  # that ids and pairs are TRL's is shown in test_data.py
        expected = trl.compute_ref_log_probs(policy, theirs)
        references = trl.compute_ref_log_probs(reference, theirs)
        policy.train(), copy.train()
        found = mine.log_probs(copy, batch_of(mine, start))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
        stored = {k: bits(v.tolist()) for k, v in zip(("ref_logps", "ref_KL_logps"), references, strict=True)}
        batch = {**batch_of(mine, start), **stored}
        policy.zero_grad(), copy.zero_grad()
        trl._metrics["train"].clear()
        (theirs_loss := trl.compute_loss(policy, theirs)).backward()
        (our_loss := mine.compute_loss(copy, batch)).backward()
        torch.testing.assert_close(our_loss, theirs_loss, atol=1e-4, rtol=0)
        metrics = mine._averages("train", mine._sums.pop("train").tolist())
        for key in ("kl", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"):
            assert metrics[key] == pytest.approx(trl._metrics["train"][key][0], abs=1e-4), key
        divergences.append(metrics["kl"])
        a, b = gradients(policy), gradients(copy)
        assert a.keys() == b.keys()
        for key in a:
            torch.testing.assert_close(a[key], b[key], atol=1e-5, rtol=1e-4)
    assert max(divergences) > 0.1, "the KL term matters"


def test_nothing_of_a_batch_can_be_rounded(rows: list[dict]) -> None:
    """DeepSpeed's launches round the floats of a batch to the model's dtype; the reference must arrive as stored."""
    from eft.train import reference
    from eft.train.kto_trainer import keys, pair_completions

    collate = pair_completions(0)
    matched, mismatched = keys(rows[:MICRO])
    values = {k: -150.121 - i / 7 for i, k in enumerate(matched + mismatched)}
    collate.store = SimpleNamespace(values=values)
    batch = collate(rows[:MICRO])
    assert not any(t.is_floating_point() for t in batch.values())
    assert batch["ref_KL_logps"].view(torch.float32).tolist() == pytest.approx([values[k] for k in mismatched], abs=1e-5)
    assert matched[0] == reference.row_key(rows[0]["prompt_ids"], rows[0]["completion_ids"])
    assert mismatched[0] == reference.row_key(rows[0]["prompt_ids"], rows[MICRO - 1]["completion_ids"])


@pytest.mark.integration
def test_the_prompt_is_computed_once(rows: list[dict], tmp_path: Path) -> None:
    """The KL pass has as many tokens as the mismatched completions, and no gradient of it reaches the prompt."""
    from eft import tokenizers

    policy, _ = models("random:qwen3")
    trainer = ours(tmp_path, rows, policy, tokenizers.load("random:qwen3"), True)
    widths = []
    policy.get_input_embeddings().register_forward_hook(lambda m, i, o: widths.append(o.shape[1]))
    batch = batch_of(trainer, 0)
    trainer.log_probs(policy, batch)
    assert widths == [batch["input_ids"].shape[1], max(len(r["completion_ids"]) for r in rows[:MICRO]) + 1]


def test_models_without_plain_attention_get_a_whole_pass() -> None:
    from eft.models.load import load_model
    from eft.train.kto_trainer import shares_prompts

    model = load_model("random:qwen3")
    assert shares_prompts(model)
    model.config.layer_types = ["linear_attention", "full_attention"]
    assert not shares_prompts(model) and not shares_prompts(load_model("random:qwen3_5"))
    model.config.layer_types, model.config.sliding_window = None, 128
    assert not shares_prompts(model)


@pytest.mark.integration
@pytest.mark.parametrize(
    "changes",
    [{}, {"lora": {"rank": 4}, "precision": "bf16"}, {"precision": "bf16_weights"},
     {"model": "random:qwen3_5", "thinking": "off"}],
    ids=["fp32", "lora in bf16", "bf16_weights", "linear attention"],
)  # fmt: skip
def test_the_first_loss_is_a_half_and_kl_zero(changes: dict, here) -> None:
    """Half of the mean weight of the first step's rows, whatever the precision: the reference is the policy."""
    done = here("kto", steps=2, epochs=1, learning_rate=1e-6, **changes)
    lines = [json.loads(x) for x in (done.out / "losses.jsonl").read_text().splitlines()]
    first = next(x for x in lines if "loss" in x)
    expected = (first["desirable"] * 1.0 + first["undesirable"] * 1.2) / 8 / 2
    assert first["loss"] == pytest.approx(expected, abs=1e-6) and abs(first["kl"]) < 1e-6
    assert abs(first["rewards/chosen"]) < 1e-6 and abs(first["rewards/rejected"]) < 1e-6


@pytest.mark.integration
def test_a_second_training_reads_the_reference(here, root: Path) -> None:
    (root / "build").unlink()  # data that no other test has trained on
    training_rows.sets(root, 24)
    one = here("kto", steps=2, output="one")
    assert one.counts["kl_from_prompts"] is True
    two = here("kto", steps=2, output="two")
    assert two.counts["reference_computed"] == 0 and two.losses == one.losses
    other = here("kto", steps=2, output="other", precision="bf16")
    assert other.counts["reference_computed"] > 0, "another dtype is another reference"
    whole = here("kto", steps=2, output="whole", share_prompts=False)
    assert whole.losses == pytest.approx(one.losses, abs=1e-5) and whole.counts["kl_from_prompts"] is False


def test_one_class_is_refused_before_anything_is_loaded(root: Path, tmp_path: Path) -> None:
    from eft.train import kto

    for label, missing in ((True, "undesirable"), (False, "desirable")):
        folder = tmp_path / f"{label}"
        training_rows.write(folder, [training_rows.row(i, label) for i in range(8)], labelled=True)
        config = kto.Config(root=root, dataset=folder, model="random:qwen3", output="out")
        with pytest.raises(EftError, match=f"no {missing} row"):
            config.check()
    with pytest.raises(UsageError, match="micro_batch ≥ 2"):
        kto.Config(root=root, dataset="build/kto", model="random:qwen3", output="out", micro_batch=1).check()


def test_completions_without_a_token_are_refused(root: Path, tmp_path: Path, here) -> None:
    rows = [training_rows.row(i, i % 2 == 0) for i in range(8)]
    rows[5]["completion"][0]["content"] = "\n"
    training_rows.write(tmp_path / "empty", rows, labelled=True)
    with pytest.raises(EftError, match="empty response") as e:
        here("kto", dataset=str(tmp_path / "empty"))
    assert "row5" in str(e.value)


def test_weights_come_from_the_data(root: Path, tmp_path: Path) -> None:
    from eft.train import kto

    def of(**changes: Any) -> dict[str, float]:
        return kto.weights(kto.Config(root=root, model="random:qwen3", output="out", **{"dataset": "build/kto", **changes}))

    assert of() == {"desirable_weight": 1.0, "undesirable_weight": 1.2}
    assert of(desirable_weight=2.0)["desirable_weight"] == 2.0
    (tmp_path / "plain").mkdir()
    assert of(dataset=tmp_path / "plain") == {"desirable_weight": 1.0, "undesirable_weight": 1.0}
    (tmp_path / "plain" / "weights.json").write_text('{"desirable_weight": "much"}')
    with pytest.raises(EftError, match="weights of the classes"):
        of(dataset=tmp_path / "plain")
