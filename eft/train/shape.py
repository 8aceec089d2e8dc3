"""What a training's memory depends on, counted on the model without its weights.

Parameters are read off the modules. Activations are counted, not guessed: one decoder layer of every kind runs forward on
fake tensors (sizes, no numbers: torch's FakeTensorMode), and what autograd keeps for the backward pass is added up. That
is right for any architecture, dtype, attention kernel and adapter, at the price of a second.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from eft.tokenizers import quiet

POINTS = (256, 512, 1024)  # row lengths of the count; what is kept grows as a + b·S + c·S²
Fit = tuple[float, float, float]


@dataclass(frozen=True)
class Shape:
    """`parameters` in all, `trained` of them (LoRA: the adapters'); `linear`: in matrices beside the LM head; `largest`:
    of the largest decoder layer. `kinds`: how many layers of each kind. `kept`: bytes that autograd keeps of one layer of
    a kind, as (a, b, c) of a + b·S + c·S² for a row of S tokens; `outside`: of what is no layer. `stream`: bytes of a
    number in the residual stream. `delta`: sizes of a linear-attention layer, where there is one."""

    parameters: int
    trained: int
    linear: int
    largest: int
    hidden: int
    vocabulary: int
    kinds: dict[str, int]
    kept: dict[str, Fit]
    outside: Fit
    stream: int
    delta: dict[str, int]


def evaluate(fit: Fit, rows: int, length: int) -> float:
    """Bytes for a batch of `rows` × `length` tokens."""
    a, b, c = fit
    return max(0.0, a + rows * (b * length + c * length**2))


def text(config: Any) -> Any:
    """The part of a transformers config that describes the language model."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def measure(
    skeleton: Any, *, dtype: str, autocast: bool, attention: str, padded: bool, lora: Any = None, fused: bool = False
) -> Shape:
    """The shape of `skeleton` (a model on the meta device, see eft.models.load.skeleton).

    `dtype`: of the loaded weights; `autocast`: whether bfloat16 autocast is on; `padded`: whether batches carry an
    attention mask; `lora`: PEFT config or None; `fused`: linear attention by flash-linear-attention's kernels, whose needs
    are told by formula (no GPU kernel runs on fake tensors).
    """
    from torch import nn

    config = text(skeleton.config)
    layers = decoder_layers(skeleton)
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * len(layers))
    head = skeleton.get_output_embeddings()
    inner = {n: m for n, m in skeleton.named_modules() if isinstance(m, nn.Linear) and m is not head}
    trained = sum(p.numel() for p in skeleton.parameters() if p.requires_grad)
    if lora is not None:
        trained = sum(lora.r * (m.in_features + m.out_features) for n, m in inner.items() if targeted(n, lora))
    kept, outside, stream = _kept(skeleton.config, kinds, dtype, autocast, attention, padded, lora)
    delta = {}
    if "linear_attention" in kinds and hasattr(config, "linear_num_value_heads"):
        delta = {
            "key": config.linear_num_key_heads * config.linear_key_head_dim,
            "value": config.linear_num_value_heads * config.linear_value_head_dim,
            "heads": config.linear_num_value_heads,
            "between": config.intermediate_size,
        }
        if fused:
            kept["linear_attention"] = (0.0, float(_fused_delta_rule(config.hidden_size, delta, stream)), 0.0)
    return Shape(
        parameters=sum(p.numel() for p in skeleton.parameters()),
        trained=trained,
        linear=sum(m.weight.numel() for m in inner.values()),
        largest=max(sum(p.numel() for p in layer.parameters()) for layer in layers),
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        kinds=dict(Counter(kinds)),
        kept=kept,
        outside=outside,
        stream=stream,
        delta=delta,
    )


def _fused_delta_rule(hidden: int, delta: dict[str, int], stream: int) -> int:
    """Bytes per token that a gated-delta-rule layer keeps with fused kernels, all in bfloat16 but the norms' inputs: two
    norms (float32 copy, normalised, output), the short convolution's input and output, q, k, v, output, gate and gated
    output, a 64-token block matrix per head, and four numbers per unit of the feed-forward network."""
    convolution = 2 * delta["key"] + delta["value"]
    norms = 2 * hidden * (4 + 2 * stream)
    mixer = 2 * (3 * convolution + 4 * delta["value"] + 64 * delta["heads"])
    return norms + mixer + 4 * delta["between"] * 2


def targeted(name: str, lora: Any) -> bool:
    """Whether PEFT would adapt the linear module called `name`."""
    targets, left_out = lora.target_modules, getattr(lora, "exclude_modules", None)
    if isinstance(left_out, str) and re.fullmatch(left_out, name):
        return False
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, name) is not None
    return any(name == t or name.endswith(f".{t}") for t in targets)


def decoder_layers(model: Any) -> Any:
    """The decoder layers: the longest list of modules outside a vision tower."""
    from torch import nn

    lists = [m for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and "visual" not in n]
    return max(lists, key=len)


def _kept(
    whole: Any, kinds: list[str], dtype: str, autocast: bool, attention: str, padded: bool, lora: Any
) -> tuple[dict[str, Fit], Fit, int]:
    """Bytes kept by a layer of each kind and by what lies outside, as quadratics; bytes of a number in the residual
    stream."""
    import numpy as np
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode

    from eft.models.load import _whole

    config = copy.deepcopy(text(whole))
    distinct = list(dict.fromkeys(kinds))
    points = POINTS if padded or attention == "eager" else POINTS[:2]  # nothing grows with the square otherwise
    config.num_hidden_layers = len(distinct)
    if getattr(config, "layer_types", None):
        config.layer_types = distinct
    config.vocab_size = 1024  # the head is not run, and an embedding keeps the ids only
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, None)
    found: dict[str, list[float]] = {kind: [] for kind in (*distinct, "")}
    where, stream, shared = [""], [4], set()

    def enter(module: Any, args: Any, kwargs: Any, kind: str) -> Any:
        where[0] = kind
        stream[0] = (args[0] if args else kwargs["hidden_states"]).element_size()
        if isinstance(kwargs.get("attention_mask"), torch.Tensor):
            if not padded:  # transformers makes none then, but on fake tensors it cannot tell
                return args, {**kwargs, "attention_mask": None}
            shared.add(kwargs["attention_mask"].untyped_storage()._cdata)  # made once, for all layers
        return None

    def leave(*args: Any) -> None:
        where[0] = ""

    with quiet(), _whole(), torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, dtype), attn_implementation=attention
            ).train()
            for kind, layer in zip(distinct, decoder_layers(model), strict=True):
                layer.register_forward_pre_hook(
                    lambda m, args, kwargs, kind=kind: enter(m, args, kwargs, kind), with_kwargs=True
                )
                layer.register_forward_hook(leave)
            base = model.base_model
            if lora is not None:
                import peft

                # Adapters are float32 on bfloat16 weights, as PEFT makes them.
                peft.get_peft_model(model, copy.deepcopy(lora))
                model.enable_input_require_grads()
        with FakeTensorMode():
            _fake(model)
            weights = {p.untyped_storage()._cdata for p in model.parameters()}
            for length in points:
                shared.clear()
                sums = _forward(base, length, padded, autocast, weights, shared, found, where)
                for kind, total in sums.items():
                    found[kind].append(total)
    degree = len(points) - 1
    fits = {}
    for kind, sums in found.items():
        a, b, *c = (float(x) for x in np.polyfit(points, sums, degree)[::-1])
        fits[kind] = (a, b, c[0] if c else 0.0)
    return {kind: fits[kind] for kind in distinct}, fits[""], stream[0]


def _forward(
    base: Any, length: int, padded: bool, autocast: bool, weights: set[int], shared: set[int], kinds: Any, where: list[str]
) -> dict[str, int]:
    """Bytes that one forward pass of a row keeps, by the part (`where`) that first keeps them; weights count not."""
    import torch

    ids = torch.zeros(1, length, dtype=torch.long)
    seen: dict[int, Any] = {}
    sums = dict.fromkeys(kinds, 0)

    def note(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights and storage._cdata not in seen:
            seen[storage._cdata] = tensor  # held, or its address would be given away again
            sums["" if storage._cdata in shared else where[0]] += storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        base(input_ids=ids, attention_mask=torch.ones_like(ids) if padded else None, use_cache=False)
    return sums


def _fake(model: Any) -> None:
    """Replace the meta tensors of `model` by fake CPU ones (module.to() cannot)."""
    import torch

    for module in model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None:
                new = torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=p.requires_grad)
                module._parameters[name] = new
        for name, b in list(module._buffers.items()):
            if b is not None:
                module._buffers[name] = torch.empty(b.shape, dtype=b.dtype)
