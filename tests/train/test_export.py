"""Export: a folder that loads elsewhere with the same answers, and a card that says where it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import training
import yaml

from eft import manifest, tokenizers
from eft.errors import EftError, UsageError
from eft.models import load, save
from eft.train import export

pytestmark = pytest.mark.integration


def exported(root: Path, checkpoint: str, **changes) -> Path:
    return export.run(export.Config(**{"root": root, "checkpoint": checkpoint, "output": "exported", **changes}))


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
    base = exported(root, "random:qwen3", output="base")
    assert settings(out) == settings(base) == settings(root / "kto" / "final"), "nothing of the training stays in the config"


def test_an_adapter_is_merged(here, root: Path) -> None:
    from eft.models.load import load_model

    here("sft", steps=3, lora={"rank": 4})
    out = exported(root, "sft/final", dtype="float32")
    assert manifest.require(out, "export")["counts"]["merged_adapter"] and not (out / "adapter_config.json").exists()
    plain, base = load_model(str(out)), load_model("random:qwen3")
    assert any(not p.equal(base.get_parameter(n)) for n, p in plain.named_parameters())


def test_adapters_that_are_broken_or_on_another_base(here, root: Path) -> None:
    here("sft", steps=1, lora={"rank": 2}, eval_rows=0, watch={"rows": 0})
    file, base = root / "sft/final/adapter_model.safetensors", root / "sft/final/base.json"
    whole, noted = file.read_bytes(), base.read_text()
    base.write_text(json.dumps({"base": "random:qwen3_5"}))
    with pytest.raises(EftError, match="belongs on another base"):
        exported(root, "sft/final")
    base.write_text(noted)
    file.write_bytes(whole[:-100])
    with pytest.raises(EftError, match="the adapter cannot be loaded onto its base"):
        exported(root, "sft/final")
    with pytest.raises(EftError, match="the adapter cannot be loaded onto its base"):
        load.load_model(str(root / "sft/final"))
    assert not (root / "exported").exists()


@pytest.mark.parametrize("changes", [{"dtype": "fp32"}, {"dtype": "int8"}, {"shard": "many"}, {"shard": "5 GiB"}])
def test_sizes_and_types_that_are_none(changes: dict, root: Path) -> None:
    with pytest.raises(UsageError):
        exported(root, "random:qwen3", **changes)


def test_an_untouched_model_can_be_exported_as_a_control(root: Path) -> None:
    out = exported(root, "random:qwen3")
    assert "untouched" in (out / "README.md").read_text() and (out / "chat_template.jinja").exists()


def test_a_folder_that_answers_differently_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from eft.models import save

    whole = save.save_model

    def broken(model, tokenizer, out, **options):
        with torch.no_grad():
            model.lm_head.weight[5] += 1
        whole(model, tokenizer, out, **options)

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


def settings(folder: Path) -> dict:
    """config.json without what a save writes of itself."""

    def plain(value: dict) -> dict:
        left = {k: v for k, v in value.items() if k not in ("transformers_version", "dtype", "_name_or_path")}
        return {k: plain(v) if isinstance(v, dict) else v for k, v in left.items()}

    return plain(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize("name", ["random:qwen3", "random:llama", "random:qwen3_5"])
def test_names_ties_and_config_are_those_of_the_model(name: str, root: Path) -> None:
    model = load.load_model(name)
    out = exported(root, name, shard="200KB")
    names = save.stored(out)
    tied = set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()
    assert tied and not tied & set(names), "tied weights are stored once"
    assert set(names) == {n for n, _ in model.named_parameters()} - tied
    assert len(list(out.glob("*.safetensors"))) > 1 and (out / "model.safetensors.index.json").exists()
    again = load.load_model(str(out))
    assert all(p.equal(again.get_parameter(n)) for n, p in model.named_parameters())
    assert json.loads((out / "config.json").read_text())["architectures"] == model.config.architectures


def test_a_model_that_sees_keeps_what_training_leaves_behind(here, root: Path, seeing: Path) -> None:
    here("sft", steps=1, model=str(seeing), thinking="off")
    out = exported(root, "sft/final")
    assert set(save.stored(out)) == set(save.stored(seeing)), "an engine finds every weight under the name that it expects"
    assert settings(out) == settings(seeing) == settings(root / "sft" / "final")
    assert (out / "preprocessor_config.json").read_bytes() == (seeing / "preprocessor_config.json").read_bytes()
    moved = [n for n, v in training.weights(out).items() if not v.equal(training.weights(seeing)[n])]
    assert moved and all("visual" not in n for n in moved), "text trains the language model"


def test_an_untied_model_keeps_both(root: Path) -> None:
    import torch

    model = load.load_model("random:qwen3")
    model.config.tie_word_embeddings = False
    untied = type(model)(model.config)
    untied.load_state_dict({**model.state_dict(), "lm_head.weight": torch.randn_like(model.lm_head.weight)})
    save.save_model(untied, tokenizers.load("random:qwen3"), root / "untied")
    out = exported(root, "untied")
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(save.stored(out))
    assert training.largest_difference(out, root / "untied") == 0.0


def test_a_tied_weight_that_is_written_twice_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = save.save_model

    def twice(model, tokenizer, out, **options):
        from safetensors.torch import save_file

        whole(model, tokenizer, out, **options)
        save_file({**training.weights(out), "lm_head.weight": model.lm_head.weight.detach().clone()}, out / "model.safetensors")

    monkeypatch.setattr(save, "save_model", twice)
    with pytest.raises(EftError, match="tied weight was saved twice"):
        exported(root, "random:qwen3")


def test_every_launch_leaves_weights_that_can_be_exported(launched: dict[str, Path], tmp_path: Path) -> None:
    for name, place in launched.items():
        out = export.run(export.Config(root=place, checkpoint="kto/final", output=tmp_path / name))
        assert "lm_head.weight" not in save.stored(out)
        assert manifest.require(out, "export")["counts"]["logit_difference"] == 0.0


def test_merging_an_adapter_into_bfloat16_keeps_a_small_update(here, root: Path) -> None:
    """In bfloat16 weights alone an update of a thousandth would be rounded away: it is added in float32, and rounded once."""
    here("sft", steps=3, lora={"rank": 4}, learning_rate=1e-3)
    out = exported(root, "sft/final", dtype="bfloat16")
    counts = manifest.require(out, "export")["counts"]
    assert counts["adapter_difference"] < 1e-4 and 0 < counts["rounding"] < 0.1
    exact, rounded = load.load_model(str(root / "sft/final"), "float32"), training.weights(out)
    assert all(rounded[n].equal(p.bfloat16()) for n, p in exact.named_parameters() if n in rounded)


def test_a_merge_that_changes_the_answers_is_refused(here, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from peft.tuners.tuners_utils import BaseTuner

    here("sft", steps=1, lora={"rank": 4})
    whole = BaseTuner.merge_and_unload

    def broken(self, *args, **kwargs):
        model = whole(self, *args, **kwargs)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
        return model

    monkeypatch.setattr(BaseTuner, "merge_and_unload", broken)
    with pytest.raises(EftError, match="merged model does not answer like its base with the adapter"):
        exported(root, "sft/final")


def test_an_adapter_is_kept(here, root: Path) -> None:
    import torch
    from peft import PeftModel

    here("sft", steps=3, lora={"rank": 4})
    out = exported(root, "sft/final", adapter="keep", base_model="somebody/base", dtype="float32")
    assert not list(out.glob("model*.safetensors")) and header(out)["library_name"] == "peft"
    assert header(out)["base_model"] == json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "somebody/base"
    base = load.load_model("random:qwen3")
    with torch.no_grad():
        one = export.logits(PeftModel.from_pretrained(base, str(out)), tokenizers.load(str(out)))
        other = export.logits(load.load_model(str(root / "sft/final")), tokenizers.load(str(out)))
    assert (one - other).abs().max() < 1e-4
    with pytest.raises(UsageError, match="no adapter"):
        exported(root, "random:qwen3", adapter="keep")
    with pytest.raises(UsageError, match="base that others have"):
        exported(root, "sft/final", adapter="keep", push_to_hub="me/adapter")


def test_the_card_alone_is_written_anew(root: Path, tmp_path: Path) -> None:
    out = exported(root, "random:qwen3")
    weights, made = (out / "model.safetensors").stat().st_mtime_ns, manifest.fingerprint(out)
    task = {"name": "t", "start_raw": 1.0, "best_known": 3.0}
    search = {"mutator": "kto", "task": "t", "status": "done", "outcomes": {"improved": 3, "no_op": 1}, "proposals": 4, "best_raw": 2.0}
    (tmp_path / "results.json").write_text(json.dumps({"tasks": [task], "mutators": [{"name": "kto"}], "searches": [search]}))
    exported(root, "random:qwen3", title="A name", tags=["x"], evaluation=tmp_path)
    assert (out / "model.safetensors").stat().st_mtime_ns == weights
    assert manifest.fingerprint(out) == made, "what was evaluated is still what it was"
    card = (out / "README.md").read_text()
    assert "# A name" in card and "| kto | 1 | 4 | 75 % | 75 % | 50.0 % |" in card and "x" in header(out)["tags"]
    with pytest.raises(EftError, match="no evaluation"):
        exported(root, "random:qwen3", evaluation=root / "build")
    exported(root, "random:qwen3", dtype="bfloat16")
    assert (out / "model.safetensors").stat().st_mtime_ns != weights, "another dtype is another model"
