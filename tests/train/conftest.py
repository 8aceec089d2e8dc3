"""Trainings of a model with 130,000 weights: one rank in this process, or two ranks launched as users launch them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import training
import training_rows


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with build/sft and build/kto."""
    return training_rows.sets(tmp_path_factory.mktemp("data"))


@pytest.fixture
def root(table: Path, tmp_path: Path) -> Path:
    """A fresh root with the same data."""
    (tmp_path / "build").symlink_to(table / "build")
    return tmp_path


@pytest.fixture
def here(root: Path) -> Callable[..., SimpleNamespace]:
    """Train in this process, one rank: here("sft", steps=3) returns out, counts, losses. Raises what training
    raises."""
    from eft import config as configs
    from eft import manifest
    from eft.train import callbacks, kto, launch, sft

    modules = {"sft": sft, "kto": kto}

    def train(verb: str, **changes: Any) -> SimpleNamespace:
        config = configs.load(modules[verb].Config, training.recipe(root, verb, **changes))
        config.check()
        os.environ |= launch.environment(1)
        modules[verb].train(config, launch.Asked("cpu", cpu=True))
        out = config.out()
        losses = [x["loss"] for x in callbacks.read_journal(out) if "loss" in x]
        return SimpleNamespace(out=out, counts=(manifest.read(out) or {}).get("counts"), losses=losses)

    return train


@pytest.fixture(scope="session")
def launched(table: Path) -> dict[str, Path]:
    """Two ranks under DDP, ZeRO-2 and ZeRO-3: SFT, KTO from its model, and SFT of packed and weighted rows, each launch one
    process group (imports are nearly all of the time). Roots by launch; what a launch printed is in ROOT/output.txt."""
    roots = {}
    training_rows.weighted(table)
    for name in ("cpu_ddp", "cpu_zero2", "cpu_zero3"):
        roots[name] = table / name
        roots[name].mkdir()
        (roots[name] / "build").symlink_to(table / "build")
        watch = {"rows": 5, "samples": 3, "max_new_tokens": 8}  # more of them than one rank's share, and less than all
        common = {"launch": name, "micro_batch": 2, "keep_finished": True, "watch": watch}
        sft = training.recipe(roots[name], "sft", **common)
        kto = training.recipe(roots[name], "kto", **common, model="sft/final")
        packed = training.recipe(roots[name], "sft", **common, **training.PACKED)
        adapters = {"output": "kto_lora", "lora": {"rank": 4}, "precision": "bf16", "steps": 2}
        lora = training.recipe(roots[name], "kto", launch=name, micro_batch=2, model="sft/final", **adapters)
        done = training.accelerate(name, "sft_then_kto", sft, kto, packed, lora)
        assert done.returncode == 0, f"{name}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        (roots[name] / "output.txt").write_text(done.stderr)
    return roots


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3.5 as the hub has it: vision and language, weights under model.language_model, shards, settings of images."""
    import torch
    import transformers

    from eft import tokenizers
    from eft.models.load import config_of

    folder = tmp_path_factory.mktemp("seeing") / "qwen"
    tokenizer = tokenizers.load("random:qwen3_5")
    text = config_of("random:qwen3_5")
    text.linear_key_head_dim = text.linear_value_head_dim = 128  # as all Qwen3.5 have it, and vLLM's CPU kernel wants it
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": text.hidden_size,
              "patch_size": 4, "spatial_merge_size": 1, "temporal_patch_size": 1, "num_position_embeddings": 16}  # fmt: skip
    config = transformers.Qwen3_5Config(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=True,
                                        architectures=["Qwen3_5ForConditionalGeneration"])  # fmt: skip
    torch.manual_seed(0)
    transformers.Qwen3_5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "Qwen2VLImageProcessorFast"}))
    return folder
