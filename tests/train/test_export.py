"""Export: a folder that loads elsewhere with the same answers, and a card that says where it came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import training
import yaml

from eft import manifest
from eft.errors import EftError, UsageError
from eft.train import export

pytestmark = pytest.mark.integration


def exported(root: Path, checkpoint: str, **changes) -> Path:
    return export.run(export.Config(root=root, checkpoint=checkpoint, output="exported", **changes))


def header(out: Path) -> dict:
    return yaml.safe_load((out / "README.md").read_text().split("---")[1])


def test_a_trained_model_with_its_card(here, root: Path) -> None:
    here("sft", steps=2)
    here("kto", steps=1, model="sft/final")
    out = exported(root, "kto/final", tags=["tiny"])
    assert training.largest_difference(out, root / "kto" / "final") == 0.0
    assert (
        header(out)["tags"] == ["evolution-finetuning", "code", "sft", "kto", "tiny"]
        and header(out)["license"] == "apache-2.0"
    )
    card = (out / "README.md").read_text()
    for words in (
        "random:qwen3",
        "| sft | 39 | 1 | 2 |",
        "| kto | 39 (20 + 19) | 1 | 1 |",
        "`eft@1`",
        '"beta": 0.1',
        "sandbox",
        "Licence",
    ):
        assert words in card, words
    counts = manifest.require(out, "export")["counts"]
    assert counts["parameters"] == manifest.require(root / "sft", "sft")["counts"]["parameters"]
    assert counts["logit_difference"] == 0.0
    assert str(root) not in card, "no path of this machine"


def test_an_adapter_is_merged(here, root: Path) -> None:
    from eft.models.load import load_model

    here("sft", steps=3, lora={"rank": 4})
    out = exported(root, "sft/final", dtype="float32")
    assert manifest.require(out, "export")["counts"]["merged_adapter"] and not (out / "adapter_config.json").exists()
    plain, base = load_model(str(out)), load_model("random:qwen3")
    assert any(not p.equal(base.get_parameter(n)) for n, p in plain.named_parameters())


def test_an_untouched_model_can_be_exported_as_a_control(root: Path) -> None:
    out = exported(root, "random:qwen3")
    assert "untouched" in (out / "README.md").read_text() and (out / "chat_template.jinja").exists()


def test_a_folder_that_answers_differently_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from eft.models import save

    whole = save.save_model

    def broken(model, tokenizer, out, state=None):
        with torch.no_grad():
            model.lm_head.weight[5] += 1
        whole(model, tokenizer, out, state)

    monkeypatch.setattr(save, "save_model", broken)
    with pytest.raises(EftError, match="does not answer like the checkpoint"):
        exported(root, "random:qwen3")
    assert not (root / "exported").exists(), "nothing half done is left"


def test_what_is_no_model_is_named(root: Path) -> None:
    (root / "sft").mkdir()
    (root / "sft" / "final").mkdir()
    with pytest.raises(UsageError, match="not a model") as e:
        exported(root, "sft")
    assert "did you mean sft/final?" in str(e.value)


def test_a_hub_that_cannot_be_reached_leaves_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_nothing")
    with pytest.raises(EftError, match="upload failed"):
        exported(root, "random:qwen3", push_to_hub="somebody/tiny")
    assert manifest.read(root / "exported") is not None
