"""The shipped recipes of training: what their heads say is what the estimator says, and tiny models of the same
architectures go through the same files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import published
import pytest
import training_rows
import yaml

from eft import config as configs
from eft import manifest, resources
from eft.train import callbacks, kto, launch, sft

BASES = {
    "qwen3_5_2b": "Qwen/Qwen3.5-2B",
    "qwen3_5_4b": "Qwen/Qwen3.5-4B",
    "qwen3_5_9b": "Qwen/Qwen3.5-9B",
    "qwen3_8b": "Qwen/Qwen3-8B",
    "qwen3_5_4b_lora": "Qwen/Qwen3.5-4B",
}
STAGES = {"sft": sft, "kto": kto}


def file(name: str, verb: str) -> Path:
    return resources.path("recipes", name) / f"{verb}.yaml"


def said(text: str) -> tuple[float, ...]:
    """GiB, hours and million tokens, as a recipe's head has them."""
    line = re.search(r"# Estimated, not measured: (.*)", text).group(1)
    return tuple(float(re.search(rf"([\d.]+) {unit}", line).group(1)) for unit in ("GiB of \\d+ on", "h,", "M tokens"))


@pytest.mark.parametrize("verb", STAGES)
@pytest.mark.parametrize("name", BASES)
def test_heads_say_what_the_estimator_says(name: str, verb: str) -> None:
    text = file(name, verb).read_text()
    assert text.startswith(f"# eft {verb} --config recipes/{name}/{verb}.yaml\n"), "it opens with its command"
    recipe = yaml.safe_load(text)
    count = recipe.get("max_rows") or (60_000 if verb == "sft" else 120_000)
    found = published.estimate(verb, {**recipe, "base": BASES[name]}, count)
    told = found.estimate
    gib, hours, tokens = said(text)
    assert gib == pytest.approx(told.memory.total / 2**30, abs=0.6)
    assert hours == pytest.approx(told.seconds / 3600, abs=0.06)
    assert tokens == pytest.approx(found.numbers["tokens"] / 1e6, abs=0.6)
    assert told.memory.total < told.room


@pytest.mark.parametrize("name", [n for n in BASES if "lora" not in n])
def test_the_papers_setting(name: str) -> None:
    recipe = yaml.safe_load(file(name, "sft").read_text())
    wanted = {"model": BASES[name], "launch": "zero2", "global_batch": 128, "learning_rate": 1e-5, "epochs": 1}
    assert {k: recipe[k] for k in wanted} == wanted
    assert "lora" not in recipe and recipe["dataset"] == "build/sft"
    after = yaml.safe_load(file(name, "kto").read_text())
    assert after["model"] == "sft/final" and after["dataset"] == "build/kto" and after["micro_batch"] >= 2


def test_published_sizes_are_those_of_the_models() -> None:
    """Parameters as the models' pages give them (language model, in billions)."""
    from eft.train import flops

    for name, billions in (("Qwen/Qwen3.5-2B", 1.9), ("Qwen/Qwen3.5-4B", 4.2), ("Qwen/Qwen3.5-9B", 9.0)):
        assert flops.count(published.config(name)).parameters / 1e9 == pytest.approx(billions, abs=0.06)
    assert flops.count(published.config("Qwen/Qwen3-8B")).parameters == 8_190_735_360


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run a shipped recipe with a tiny model, in this process: small("qwen3_8b", "sft", root, model=…)."""

    def run(name: str, verb: str, root: Path, **changes: Any) -> dict[str, Any]:
        sizes = {"launch": "cpu", "device": "auto", "global_batch": 4, "max_tokens": 512, "max_rows": 16, "eval_rows": 4, "watch.max_new_tokens": 8}
        if (yaml.safe_load(file(name, verb).read_text())["micro_batch"]) == 1:
            sizes["global_batch"] = 2
        sets = tuple(f"{k}={v}" for k, v in {**sizes, "root": root, "steps": 2, **changes}.items())
        config = configs.load(STAGES[verb].Config, file(name, verb), sets)
        config.check()
        os.environ |= launch.environment(1)
        STAGES[verb].train(config, launch.Asked("cpu", cpu=True))
        counts = manifest.require(config.out(), verb)["counts"]
        assert len([x for x in callbacks.read_journal(config.out()) if "loss" in x]) == 2
        return counts

    return run


@pytest.mark.integration
@pytest.mark.parametrize(
    "name, model",
    [("qwen3_5_9b", "random:qwen3_5"), ("qwen3_8b", "random:qwen3"), ("qwen3_5_4b_lora", "random:qwen3_5")],
)
def test_tiny_models_go_through_the_same_files(name: str, model: str, small: Any, tmp_path: Path) -> None:
    training_rows.sets(tmp_path, 20)
    counts = small(name, "sft", tmp_path, model=model)
    assert counts["estimate"]["memory_total"] > 0 and counts["dropped_over_max_tokens"] == 1
    second = small(name, "kto", tmp_path)
    assert second["first_loss"] == pytest.approx(0.55, abs=0.02), "the SFT model is the reference"
    assert (tmp_path / "kto" / "final" / "adapter_config.json").exists() == ("lora" in name)
