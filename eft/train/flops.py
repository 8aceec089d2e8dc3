"""Floating-point operations of a model, told from its config alone, and what a device could do: the two sides of MFU.

Convention (docs/training.md states it too). MFU = FLOPs that the training needs / (seconds × ranks × peak). Needed are
matrix multiplications only, two operations per multiply-add:
- every weight that a token passes through, counted on the modules of the model itself, so it holds for dense models,
  grouped queries, gated attention and experts (of which a token visits num_experts_per_tok) alike;
- the LM head on the tokens with loss only;
- attention scores and their sums over the tokens that a token may see: half of the square, or the sliding window;
- linear attention (gated delta rule, Qwen3.5) in the chunked form that every kernel computes, chunks of 64 tokens:
  linear in the row's length;
- a backward pass costs twice its forward pass, once where the weights are frozen (LoRA; the adapters themselves, under
  a hundredth, are not counted). KTO adds a forward pass over the mismatched completions, behind prompts that are there
  already. Recomputed activations and padding are no use and count as nothing.

So the number is lower than one that counts full squares, or the head on prompts, for the same speed.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

CHUNK = 64  # tokens of a chunk of the gated delta rule, in transformers and in flash-linear-attention

# Dense bfloat16 peaks with float32 accumulation (NVIDIA's architecture papers) of cards that TRL's table lacks.
MORE = {"RTX 5090": 209.5e12, "RTX 4090": 165.2e12, "RTX 3090": 71e12}


@dataclass(frozen=True)
class Count:
    """What a forward pass of one model costs.

    `parameters`: all weights, tied ones once. `weights`: those that a token is multiplied with, the LM head (`head`)
    not among them. `attention`: for each layer (query width in numbers, how many tokens back it sees or None: all).
    `state`: FLOPs per token of linear attention beside its weights.
    """

    parameters: int
    weights: int
    head: int
    attention: tuple[tuple[int, int | None], ...]
    state: int

    def forward(self, lengths: Iterable[int], scored: int | None = None, *, causal: bool = True) -> float:
        """FLOPs of one forward pass over rows of `lengths` tokens; LM head on `scored` tokens in all (None: every one).

        `causal=False` counts attention as the full square, as kernels that mask afterwards compute it.
        """
        import numpy as np

        n = np.asarray(list(lengths), dtype=np.float64)
        body = self.rows(n, np.zeros(len(n)), causal=causal).sum()
        return float(body + 2 * self.head * (n.sum() if scored is None else scored))

    def rows(self, lengths: Any, scored: Any, *, causal: bool = True) -> Any:
        """FLOPs of one forward pass over each row: arrays of its tokens and of those with loss -> array."""
        import numpy as np

        n = np.asarray(lengths, dtype=np.float64)
        flops = (2 * self.weights + self.state) * n + 2 * self.head * np.asarray(scored, dtype=np.float64)
        for (width, window), layers in Counter(self.attention).items():
            if not causal:
                pairs = n * n
            elif window is None:
                pairs = n * (n + 1) / 2
            else:
                seen = np.minimum(n, window)
                pairs = seen * (seen + 1) / 2 + (n - seen) * window
            flops += 4 * width * layers * pairs
        return flops


def count(config: Any) -> Count:
    """The costs of the causal language model of a transformers config (its text part). The model is laid out on torch's
    meta device: nothing is allocated or loaded. Raises ValueError for layers whose cost is not known here."""
    text = config.get_text_config()
    return _count(type(text), text.to_json_string(use_diff=False))


def forward_flops(config: Any, lengths: Iterable[int], scored: int | None = None) -> float:
    """`count(config).forward(lengths, scored)`."""
    return count(config).forward(lengths, scored)


@functools.lru_cache(maxsize=4)
def _count(kind: type, text: str) -> Count:
    import json

    import torch
    import transformers

    config = kind(**json.loads(text))
    config._attn_implementation = "eager"  # the kernel changes nothing here, and may be one that needs a GPU
    # The class is called by itself: `from_config` would shard the model under ZeRO-3.
    with torch.device("meta"):
        model = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[kind](config)
    head = model.get_output_embeddings()
    weights = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv1d) and module is not head:
            weights += module.weight.numel()
        elif type(module).__name__.endswith("Router"):
            weights += sum(p.numel() for p in module.parameters(recurse=False) if p.dim() == 2)
        elif type(module).__name__.endswith("Experts"):
            share = config.num_experts_per_tok / (getattr(config, "num_local_experts", None) or config.num_experts)
            weights += int(share * sum(p.numel() for p in module.parameters(recurse=False) if p.dim() == 3))
    attention, state = [], 0
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    for layer in getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers:
        if layer == "full_attention":
            attention.append((width, None))
        elif layer == "sliding_attention":
            attention.append((width, config.sliding_window))
        elif layer == "linear_attention" and hasattr(config, "linear_value_head_dim"):
            state += _delta_rule(
                config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
            )
        else:
            raise ValueError(f"the cost of a layer of kind '{layer}' is not known")
    parameters = sum(p.numel() for p in model.parameters())
    return Count(parameters, weights, head.weight.numel(), tuple(attention), state)


def _delta_rule(heads: int, key: int, value: int) -> int:
    """FLOPs per token of the chunked gated delta rule (Yang et al., arXiv 2412.06464): read and write the state, the
    products within a chunk, and its two triangular solves."""
    state = 6 * key * value
    products = CHUNK * (4 * key + 2 * value)
    solves = CHUNK * (key + value)
    return heads * (state + products + solves)


def peak(device: str, dtype: str = "bfloat16") -> float | None:
    """Dense peak in FLOP/s of the GPU that calls itself `device`, for matrix products in `dtype`; None: not known."""
    from trl.trainer.utils import get_peak_flops

    known = get_peak_flops(device, dtype)
    if known is None and dtype == "bfloat16":
        known = next((flops for name, flops in MORE.items() if name in device), None)
    return known


def cpu_peak(dtype: str = "float32", seconds: float = 0.1) -> float:
    """FLOP/s of the best of a few matrix products on this process's threads: what this CPU could do, as measured."""
    import torch

    side = 768
    with torch.random.fork_rng(devices=[]):
        a = torch.rand(side, side).to(getattr(torch, dtype))
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - begin)
        if time.perf_counter() > end:
            return 2 * side**3 / best
