"""The count of FLOPs against torch's own counter, and peaks of devices."""

from __future__ import annotations

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.train import flops

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 500,
}
LINEAR = {
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
CONFIGS = {
    "dense": transformers.LlamaConfig(**{**SHAPE, "num_key_value_heads": 4}),
    "grouped queries, tied": transformers.Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "hybrid, gated": transformers.Qwen3_5TextConfig(**SHAPE, **LINEAR),
    "experts": transformers.Qwen3MoeConfig(**SHAPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=96),
}


def counted(config, rows: int, length: int) -> int:
    """FLOPs of a forward pass as torch counts the operators that it dispatches."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    # eager attention computes the whole square, which is what the counter sees
    config._experts_implementation = "eager"  # the counter knows no grouped product
    model = kind._from_config(config, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.ones(rows, length, dtype=torch.long), use_cache=False)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_count_is_torchs(name: str) -> None:
    config, rows, length = CONFIGS[name], 2, 192
    count = flops.count(config)
    ours = count.forward([length] * rows, causal=False)
    if name == "hybrid, gated":  # the counter has no formula for triangular solves
        ours -= rows * length * 3 * 4 * flops.CHUNK * (32 + 32)
    assert ours == pytest.approx(counted(config, rows, length), rel=0.01)


def test_parameters_are_the_models() -> None:
    for config in CONFIGS.values():
        model = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config)
        assert flops.count(config).parameters == sum(p.numel() for p in model.parameters())


def test_a_real_hybrid_is_counted_without_its_weights() -> None:
    config = transformers.Qwen3_5TextConfig(
        hidden_size=2560, intermediate_size=9216, num_hidden_layers=32, tie_word_embeddings=True
    )
    count = flops.count(config)
    assert 4.1e9 < count.parameters < 4.3e9
    assert len(count.attention) == 8, "every fourth layer attends to everything"
    # attention of 8 layers instead of 32: full attention everywhere would be told as a much larger MFU
    dense = flops.Count(count.parameters, count.weights, count.head, count.attention * 4, 0)
    assert dense.forward([32768]) > 1.4 * count.forward([32768])


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6), st.integers(1, 4096))
def test_windows_and_causality(lengths: list[int], window: int) -> None:
    full, limited = (flops.Count(0, 0, 0, ((1, w),), 0) for w in (None, window))
    pairs = sum(sum(min(t, window) for t in range(1, n + 1)) for n in lengths)
    assert limited.forward(lengths) == pytest.approx(4 * pairs)
    assert full.forward(lengths) == pytest.approx(4 * sum(n * (n + 1) / 2 for n in lengths))
    assert full.forward(lengths, causal=False) >= full.forward(lengths) >= limited.forward(lengths)


def test_only_scored_tokens_pass_the_head() -> None:
    count = flops.Count(0, 10, 1000, (), 0)
    assert count.forward([8, 2]) == 2 * 10 * 10 + 2 * 1000 * 10
    assert count.forward([8, 2], 3) == 2 * 10 * 10 + 2 * 1000 * 3
    assert sum(count.rows([8, 2], [2, 1])) == count.forward([8, 2], 3)


def test_peaks() -> None:
    assert flops.peak("NVIDIA H200") == flops.peak("NVIDIA H100 80GB HBM3") == 989e12
    assert flops.peak("NVIDIA GeForce RTX 4090") == 165.2e12
    assert flops.peak("NVIDIA H200", "float32") is None and flops.peak("a toaster") is None
    assert flops.cpu_peak(seconds=0.01) > 1e8
