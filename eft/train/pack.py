"""Packing: several rows in one sequence without padding, each blind to the others.

A step has the rows that it would have without packing. They are put into packs of at most `capacity` tokens, by best fit
decreasing to learn how few packs do, then evenly into that many, so that ranks wait less for one another. Attention stays
within a row (SEGMENTS below, or a flash kernel told where rows begin); what keeps a state from token to token (linear
attention, state space layers) leaks over rows unless its kernels are told too, and is refused without them.
"""

from __future__ import annotations

import bisect
import importlib.util
import math
from typing import Any

from eft.errors import UsageError

SEGMENTS = "eft_segments"  # attention kernel: torch's, once for each row of a pack
ISOLATED = {"full_attention", "sliding_attention"}
STATEFUL = {"linear_attention"}
KERNELS = {"causal_conv1d": "causal-conv1d", "fla": "flash-linear-attention"}
STATES = ("ssm_cfg", "state_size", "mamba_d_state", "layers_block_type", "linear_conv_kernel_dim")


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Positions in `lengths`, in bins of at most `capacity` in all: longest first, each into the fullest bin that has
    room. `lengths` must not exceed `capacity`."""
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, bin), sorted
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        k = bisect.bisect_left(room, (lengths[i], -1))
        if k == len(room):
            bins.append([i])
            left, number = capacity - lengths[i], len(bins) - 1
        else:
            left, number = room.pop(k)
            bins[number].append(i)
            left -= lengths[i]
        bisect.insort(room, (left, number))
    return bins


def spread_evenly(lengths: list[int], count: int, capacity: int) -> list[list[int]]:
    """Positions in `lengths`, in exactly `count` bins, none empty, none over `capacity`, their sums alike where that can
    be had. `count`: at least as many as `best_fit` needs, at most len(lengths)."""
    longest = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    bins: list[list[int]] = [[] for _ in range(count)]
    sums = [0] * count
    for i in longest:
        k = min(range(count), key=lambda k: (sums[k], k))
        bins[k].append(i)
        sums[k] += lengths[i]
    if max(sums) > capacity:  # rare: what is even need not fit. Divide what fits instead.
        bins = best_fit(lengths, capacity)
        while len(bins) < count:
            fullest = max(range(len(bins)), key=lambda k: (len(bins[k]) > 1, sum(lengths[i] for i in bins[k])))
            whole = bins[fullest]
            bins[fullest], rest = whole[::2], whole[1::2]
            bins.append(rest)
    return sorted(bins, key=lambda b: -sum(lengths[i] for i in b))


def steps(indices: list[int], lengths: list[int], batch: int, ranks: int, capacity: int) -> tuple[int, list[list[int]]]:
    """(packs of a step over all ranks, the packs of all steps in order); `indices`: the rows of all steps, `batch` each.

    Every step has as many packs, which the trainer asks for, and a multiple of `ranks`. Raises UsageError where that
    cannot be.
    """
    if batch % ranks:
        raise UsageError(
            f"global_batch {batch} is not a multiple of {ranks} ranks", way_out=f"set global_batch to a multiple of {ranks}"
        )
    blocks = [indices[k : k + batch] for k in range(0, len(indices), batch)]
    needed = max(len(best_fit([lengths[i] for i in block], capacity)) for block in blocks)
    count = math.ceil(needed / ranks) * ranks
    packed = []
    for block in blocks:
        packed += [[block[i] for i in b] for b in spread_evenly([lengths[i] for i in block], count, capacity)]
    return count, packed


def check(config: Any, *, cpu: bool) -> None:
    """Raise UsageError where rows of a pack would not be isolated. `config`: the model's, of transformers."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    states = kinds - ISOLATED or {name for name in STATES if getattr(text, name, None) is not None}
    if not states:
        return
    missing = [package for module, package in KERNELS.items() if importlib.util.find_spec(module) is None]
    if kinds and kinds <= ISOLATED | STATEFUL and not missing and not cpu:
        return
    why = f"this model ({text.model_type}) has layers that carry a state from token to token ({', '.join(sorted(states))})"
    if missing or cpu:
        why += ", and without their kernels it leaks from one row of a pack into the next"
    raise UsageError(
        "packing is refused",
        why=why,
        way_out="set `packing: false` (rows are grouped by length then)"
        + (f", or install {' and '.join(missing)}" if kinds <= ISOLATED | STATEFUL and missing and not cpu else ""),
    )


def attention(config: Any, chosen: str) -> str:
    """The kernel to load the model with, where `chosen` is the one for rows that are not packed: SEGMENTS in place of
    sdpa and eager where every layer sees everything before it; transformers' masks elsewhere."""
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    return SEGMENTS if chosen in ("sdpa", "eager") and kinds <= {"full_attention"} else chosen


def register() -> None:
    """Make SEGMENTS known to transformers. It is sdpa but for packs, which get no mask: where rows begin is in
    cu_seq_lens_q."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(SEGMENTS, _segments)
    AttentionMaskInterface.register(SEGMENTS, _mask)


def _mask(batch_size: int, q_length: int, kv_length: int, attention_mask: Any = None, **rest: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    if attention_mask is None and q_length == kv_length:
        return None
    return sdpa_mask(batch_size, q_length, kv_length, attention_mask=attention_mask, **rest)


def _segments(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, dropout: float = 0.0,
    cu_seq_lens_q: Any = None, **rest: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Causal attention within each row: (1, heads, tokens, width) → (1, tokens, heads, width)."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **rest)
    sizes = getattr(cu_seq_lens_q, "sizes", None)
    if sizes is None:  # once a step, not once a layer: it waits for the device
        cu_seq_lens_q.sizes = sizes = cu_seq_lens_q.diff().tolist()
    options = {"is_causal": True, "scale": scaling, "dropout_p": dropout, "enable_gqa": query.shape[1] != key.shape[1]}
    parts = [
        scaled_dot_product_attention(q, k, v, **options)
        for q, k, v in zip(*(x.split(sizes, dim=2) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None
