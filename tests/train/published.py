"""Sizes of the models that recipes name, as published in their config.json: what the numbers in the recipes' headers are
computed from, without a hub. Sources: the models' pages (Qwen3.5: Apache-2.0 configs of Qwen/Qwen3.5-2B, -4B, -9B;
Qwen/Qwen3-8B)."""

from __future__ import annotations

from typing import Any

VISION = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16}
TEXT: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3.5-2B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3.5-4B": {
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3.5-9B": {},  # transformers' defaults are this model's
    "Qwen/Qwen3-8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
}


def config(name: str) -> Any:
    """The transformers config of a published model."""
    import transformers

    sizes = TEXT[name]
    if "3.5" not in name:
        return transformers.Qwen3Config(**sizes, architectures=["Qwen3ForCausalLM"])
    tied = sizes.get("tie_word_embeddings", False)
    vision = {**(VISION if sizes else {}), "out_hidden_size": sizes.get("hidden_size", 4096)}
    return transformers.Qwen3_5Config(
        text_config=sizes,
        vision_config=vision,
        tie_word_embeddings=tied,
        architectures=["Qwen3_5ForConditionalGeneration"],
    )


def rows(count: int, batch: int, limit: int, mean: int = 8000) -> list[int]:
    """Token counts of made-up rows in training order, `mean` on average before the limit, spread as logs are (a log-normal
    with sigma 0.7), none over `limit` and one at it: what the recipes' headers assume."""
    import random

    rng = random.Random(0)
    spread = 1.2776  # e^(0.7²/2), the mean of the noise
    made: list[int] = []
    while len(made) < -(-count // batch) * batch - 1:
        tokens = int(rng.lognormvariate(0, 0.7) * mean / spread)
        if tokens <= limit:
            made.append(max(500, tokens))
    return [*made, limit]


def estimate(verb: str, recipe: dict[str, Any], count: int) -> Any:
    """The plan of a shipped recipe for `count` such rows, from the published sizes alone."""
    from types import SimpleNamespace

    from datasets import Dataset

    from eft import config as configs
    from eft.models import load
    from eft.train import asked, kto, plan, sft

    name = recipe["model"] if "/" in recipe["model"] and "final" not in recipe["model"] else recipe.pop("base")
    recipe.pop("base", None)
    config = configs.make({"sft": sft, "kto": kto}[verb].Config, {**recipe, "model": name})
    _, launch = asked.choose(config, anywhere=True)
    lengths = rows(count, config.global_batch, config.max_tokens)
    train = Dataset.from_dict({"length": lengths, "response": [min(2000, n // 2) for n in lengths]})
    prepared = SimpleNamespace(
        train=train, steps=len(lengths) // config.global_batch, packs=None, counts={"rows": count, "epochs": 1.0}
    )
    tokenizer = SimpleNamespace(all_special_ids=[], added_tokens_decoder={}, get_vocab=lambda: {"a": 1})
    known, load.config_of = load.config_of, lambda model: globals()["config"](model)
    try:
        return plan.make(verb, config, launch, name, prepared, tokenizer, cpu=False)
    finally:
        load.config_of = known
