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
