"""SFT's loss is plain TRL's, row by row and step by step; weights, packing and quantized weights change what they say and
nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import training
import training_rows

from eft.errors import EftError, UsageError
from eft.train import pack

pytestmark = pytest.mark.integration


@pytest.fixture
def here(here):
    """Without validation rows, which nothing below asks for."""
    return lambda verb, **changes: here(verb, **{"eval_rows": 0, **changes})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory):
    """TRL's own SFTTrainer on token ids, with everything at its defaults but precision and device."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from eft import tokenizers
    from eft.models.load import load_model

    def make(model: str, rows: list[dict], **changes):
        table = Dataset.from_list([
            {"input_ids": r["prompt_ids"] + r["completion_ids"],
             "labels": [-100] * len(r["prompt_ids"]) + r["completion_ids"]} for r in rows
        ])  # fmt: skip
        values = {"max_length": None, "report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False,
                  "gradient_checkpointing": False, "per_device_train_batch_size": 4, "save_strategy": "no"}  # fmt: skip
        args = SFTConfig(str(tmp_path_factory.mktemp("plain")), **{**values, **changes})
        return SFTTrainer(
            model=load_model(model), args=args, train_dataset=table, processing_class=tokenizers.load(model)
        )

    return make


def rows(count: int, model: str = "random:qwen3") -> list[dict]:
    from eft import tokenizers
    from eft.train import tokens

    made = [{**training_rows.row(i, True), "weight": 0.5 + i / count} for i in range(count)]
    ids = tokens.tokenize(made, tokenizers.load(model), {}, Path("x"), "off")
    return [
        {"id": r["id"], "prompt_ids": p, "completion_ids": c, "weight": r["weight"], "length": len(p) + len(c)}
        for r, (p, c) in zip(made, ids, strict=True)
    ]


@pytest.mark.parametrize("model", ["random:qwen3", "random:llama", "random:qwen3_5"])
def test_losses_of_rows_are_those_of_plain_trl(model: str, plain) -> None:
    """Padded together without a mask, and packed, against each row alone in TRL's hands."""
    import torch
    from datasets import Dataset

    from eft.models.load import load_model
    from eft.train.sft_trainer import Batches

    pack.register()
    made = rows(6, model)
    trl = plain(model, made)
    trl.model.eval()
    with torch.no_grad():
        for p in trl.model.parameters():
            p.mul_(2)
        theirs = [float(trl.compute_loss(trl.model, trl.data_collator([trl.train_dataset[i]]))) for i in range(6)]
    packs = "qwen3_5" not in model
    ours = load_model(model, attention=pack.SEGMENTS if packs else "sdpa")
    ours.load_state_dict(trl.model.state_dict())
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(ours)
    padded = Batches(0)(made)
    assert "attention_mask" not in padded
    lengths = [len(r["completion_ids"]) for r in made]
    with torch.no_grad():
        found = -ours(**padded, fused_lm_head=True, use_cache=False).log_probs.sum(1) / torch.tensor(lengths)
        assert found.tolist() == pytest.approx(theirs, abs=1e-4)
        if packs:
            batch = Batches(0, table=Dataset.from_list(made))([{"rows": [3, 0, 5, 1, 2, 4]}])
            each = -ours(**batch, fused_lm_head=True, use_cache=False).log_probs[0]
            scored = each[batch["labels"][0, 1:] != -100].split([lengths[i] for i in (3, 0, 5, 1, 2, 4)])
            assert [float(s.mean()) for s in scored] == pytest.approx([theirs[i] for i in (3, 0, 5, 1, 2, 4)], abs=1e-4)


def test_training_is_that_of_plain_trl(here, plain, root: Path) -> None:
    """The same rows in the same order: the same losses and the same weights, packed or not."""
    from datasets import Dataset

    from eft import tokenizers
    from eft.train import data, sft

    ours = here("sft", steps=4, micro_batch=2)
    packed = here("sft", steps=4, micro_batch=2, packing=True, output="packed")
    assert packed.counts["packs_per_step"] < 4, "eight rows in fewer micro batches than four pairs"
    assert packed.losses == pytest.approx(ours.losses, abs=1e-5)
    assert training.largest_difference(ours.out / "final", packed.out / "final") < 1e-5
    assert packed.counts["tokens"] == ours.counts["tokens"]
    config = sft.Config(root=root, **{**training.SFT, "steps": 4, "micro_batch": 2})
    found = data.prepare(config, tokenizers.load(config.model), labelled=False, group=True, main=True,
                         wait=lambda: None, ranks=1)  # fmt: skip
    assert isinstance(found.train, Dataset)
    trl = plain(
        "random:qwen3", found.train.to_list(), per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=4,
        learning_rate=1e-3, lr_scheduler_type="cosine", logging_steps=1, train_sampling_strategy="sequential",
        shuffle_dataset=False,
    )  # fmt: skip
    trl.train()
    theirs = [line["loss"] for line in trl.state.log_history if "loss" in line]
    assert ours.losses == pytest.approx(theirs, abs=1e-4)
    gap = max(
        (p - training.weights(ours.out / "final")[n]).abs().max().item()
        for n, p in trl.model.named_parameters()
    )
    assert gap < 1e-4


def test_weights_of_one_are_no_weights(here, root: Path) -> None:
    made = [training_rows.row(i, True) for i in range(24)]
    folders = {"none": made, "ones": [{**r, "weight": 1.0} for r in made], "twos": [{**r, "weight": 2.0} for r in made]}
    for name, table in folders.items():
        training_rows.write(root / name, table, labelled=False)
    done = {name: here("sft", dataset=name, output=f"sft_{name}", steps=3, micro_batch=2) for name in folders}
    for name in ("ones", "twos"):
        assert done[name].losses == pytest.approx(done["none"].losses, abs=1e-6), "a mean, whatever the unit"
        assert training.largest_difference(done[name].out / "final", done["none"].out / "final") < 1e-6


def test_a_weighted_loss_is_the_weighted_mean_over_the_whole_batch(here, root: Path) -> None:
    """Over accumulated micro batches of unlike weight, against the losses of single rows."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    from eft.models.load import load_model
    from eft.train.sft_trainer import Batches

    made = [{**training_rows.row(i, True), "weight": [0.1, 3.0][i % 2]} for i in range(8)]
    training_rows.write(root / "w", made, labelled=False)
    training_rows.write(root / "w", [training_rows.row(99, True)], "validation", labelled=False)  # has no weights
    weighted = here("sft", dataset="w", steps=1, micro_batch=2, output="weighted", eval_rows=1)
    unweighted = here("sft", dataset="w", steps=1, micro_batch=2, output="unweighted", weights=False)
    model = load_model("random:qwen3")
    add_fused_lm_head(model)
    ids = rows(8)
    with torch.no_grad():
        each = -model(**Batches(0)(ids), fused_lm_head=True, use_cache=False).log_probs.sum(1)
    w = torch.tensor([r["weight"] for r in made])
    n = torch.tensor([float(len(r["completion_ids"])) for r in ids])
    assert weighted.losses[0] == pytest.approx(float((w * each).sum() / (w * n).sum()), abs=1e-5)
    assert unweighted.losses[0] == pytest.approx(float(each.sum() / n.sum()), abs=1e-5)
    assert abs(weighted.losses[0] - unweighted.losses[0]) > 1e-4


@pytest.mark.multirank
@pytest.mark.parametrize("name", ["cpu_ddp", "cpu_zero2", "cpu_zero3"])
def test_two_ranks_of_packed_and_weighted_rows_are_one_of_neither(name: str, launched: dict[str, Path], here, root) -> None:
    from eft import manifest
    from eft.train.callbacks import read_journal

    training_rows.weighted(root)
    one = here("sft", dataset="build/weighted", steps=3, output="one", micro_batch=8)
    two = launched[name] / "packed"
    losses = [line["loss"] for line in read_journal(two) if "loss" in line]
    assert losses == pytest.approx(one.losses, rel=2e-4)
    assert training.largest_difference(two / "final", one.out / "final") < 2e-5
    assert manifest.read(two)["counts"]["packs_per_step"] == 2, "one pack for each rank"


def test_hybrid_models_train_and_are_not_packed(here, root: Path) -> None:
    done = here("sft", model="random:qwen3_5", thinking="off", steps=3)
    assert done.losses[-1] < done.losses[0]
    with pytest.raises(UsageError, match="leaks from one row of a pack into the next"):
        here("sft", model="random:qwen3_5", thinking="off", packing=True, output="packed")


def test_what_was_learned_is_what_the_saved_model_asks(here, root: Path) -> None:
    """SFT, then SFT from its model, without saying `thinking` again."""
    from eft import tokenizers

    done = here("sft", model="random:qwen3_5", thinking="off", steps=1)
    text = tokenizers.prompt_text(tokenizers.load(str(done.out / "final")), [{"role": "user", "content": "?"}])
    assert text.endswith("<think>\n\n</think>\n\n")
    again = here("sft", model="sft/final", steps=1, output="again")
    assert again.counts["tokens"] == done.counts["tokens"]


def test_activation_checkpointing_changes_nothing(here) -> None:
    plain, saved = (here("sft", steps=2, output=str(v), activation_checkpointing=v) for v in (False, True))
    assert saved.losses == pytest.approx(plain.losses, abs=1e-6)


@pytest.mark.parametrize("verb", ["sft", "kto"])
def test_adapters_on_quantized_weights(verb: str, here, root: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="QLoRA is not tested: bitsandbytes is not installed")
    import torch

    from eft.models.load import load_model

    done = here(verb, lora={"rank": 4, "bits": 4}, steps=4)
    assert done.losses[-1] < done.losses[0]
    if verb == "sft":
        exact = here("sft", lora={"rank": 4}, steps=4, output="exact")
        assert done.losses == pytest.approx(exact.losses, abs=0.05), "near what 32 bits give, and not the same"
        assert done.losses != exact.losses
    adapter = training.weights(done.out / "final")
    assert all(t.dtype == torch.float32 for t in adapter.values()) and len(adapter) == 2 * 2 * 7
    assert json.loads((done.out / "final" / "base.json").read_text())["base"] == "random:qwen3"
    merged, base = load_model(str(done.out / "final")), load_model("random:qwen3")
    assert not any(getattr(p, "quant_state", None) for p in merged.parameters())
    assert any(not p.equal(base.get_parameter(n)) for n, p in merged.named_parameters())


def test_quantized_weights_that_cannot_be(here, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.train import arguments
    from eft.train.config import TrainConfig

    lora = {"rank": 4, "bits": 4}
    config = TrainConfig(dataset="d", model="random:qwen3", output="o", lora=lora)
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match="for one process or DDP"):
        arguments.check_bits(config, "deepspeed")
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs bitsandbytes, which is not installed"):
        here("sft", lora=lora)
    with pytest.raises(EftError):
        here("sft", lora={"rank": 4, "bits": 3})


@pytest.mark.parametrize(
    "targets, words",
    [
        (["q_prj"], "did you mean 'q_proj'?"),
        (["q_proj", "nope"], "no module of the model is called 'nope'"),
        (["lm_head"], "'lm_head' cannot be adapted"),
        (r".*\.mlp\.(gate", "not a regular expression"),
    ],
)
def test_targets_that_match_nothing(targets, words: str, here, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.models import load

    monkeypatch.setattr(load, "load_model", lambda *a, **k: pytest.fail("loaded before it was refused"))
    with pytest.raises(UsageError) as e:
        here("sft", lora={"targets": targets})
    assert words in str(e.value)


@pytest.mark.parametrize(
    "key",
    ["packing", "padding_free", "completion_only_loss", "average_tokens_across_devices", "warmup_ratio", "eval_steps",
     "save_only_model", "ignore_data_skip", "load_best_model_at_end", "accelerator_config", "chat_template_path"],
)  # fmt: skip
def test_what_eft_decides_is_not_given_to_trl(key: str, here) -> None:
    with pytest.raises(UsageError, match="is decided by eft"):
        here("sft", trainer={key: True})


def test_what_sees_is_left_alone(seeing: Path) -> None:
    """A hub's Qwen3.5 has eyes: text gives them no gradient, and adapters no place."""
    from peft import get_peft_model

    from eft.models import load
    from eft.train import arguments, sft

    model = load.load_model(str(seeing))
    idle = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert load.vision(model) == ["model.visual"]
    assert idle == {n for n, _ in model.named_parameters() if n.startswith("model.visual.")} != set()
    assert idle == {n for n, p in load.skeleton(str(seeing)).named_parameters() if not p.requires_grad}
    config = sft.Config(dataset="d", model=str(seeing), lora={"rank": 2})
    adapted = get_peft_model(model, arguments.lora(config, model))
    names = [n for n, p in adapted.named_parameters() if p.requires_grad]
    assert names and not any("visual" in n for n in names)
