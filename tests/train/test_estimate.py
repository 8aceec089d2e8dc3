"""Estimates against what is: memory of real training steps, parameters of real models, the plan of a dry run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import training

from eft.errors import UsageError
from eft.train import checks, estimate, shape
from eft.train.estimate import Setting, Work

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 8192,
    "tie_word_embeddings": True,
}
DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
TOLERANCE = 0.15  # of the measured peak


def lora() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")


def config(kind: str, **changes: Any) -> Any:
    import transformers

    made = getattr(transformers, kind)
    return made(**SIZES, **(DELTA if "5" in kind else {}), **changes)


def measured(conf: Any, case: dict[str, Any], rows: int, length: int, scored: int) -> float:
    """Bytes at the peak of two real steps: the model's, and what torch's profiler sees allocated and freed."""
    import torch
    import transformers
    from trl.trainer.utils import add_fused_lm_head

    from eft.train import head
    from eft.train.optimizer import MasterAdamW

    head.score_responses_only()
    model = transformers.AutoModelForCausalLM.from_config(
        conf, dtype=getattr(torch, case["dtype"]), attn_implementation=case.get("attention", "sdpa")
    )
    add_fused_lm_head(model)
    if case.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if case.get("lora"):
        import peft

        if case.get("checkpointing"):
            model.enable_input_require_grads()
        model = peft.get_peft_model(model, lora())
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    if case.get("masters"):
        optimizer: Any = MasterAdamW(trained, lr=1e-5)
    else:
        optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    ids = torch.randint(0, conf.vocab_size, (rows, length))
    labels = ids.clone()
    labels[:, : length - scored] = -100
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        for _ in range(2):
            for _ in range(case.get("accumulation", 1)):
                with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
                    out = model(input_ids=ids, labels=labels, fused_lm_head=True, use_cache=False)
                    loss = -out.log_probs.sum() / (rows * scored)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = sum(p.numel() * p.element_size() for p in model.parameters())
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


CASES: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": "float32"},
    "fp32, checkpointing, accumulation": {"dtype": "float32", "checkpointing": True, "accumulation": 2},
    "bfloat16 weights": {"dtype": "bfloat16", "masters": True, "checkpointing": True},
    "autocast": {"dtype": "float32", "autocast": True},
    "lora": {"dtype": "float32", "lora": True, "checkpointing": True},
    "eager": {"dtype": "float32", "attention": "eager"},
    "hybrid": {"dtype": "float32", "kind": "Qwen3_5TextConfig", "checkpointing": True},
}


@pytest.mark.parametrize("name", CASES)
def test_memory_is_that_of_real_steps(name: str) -> None:
    import torch
    import transformers

    case = CASES[name]
    conf = config(case.get("kind", "Qwen3Config"))
    rows, length, scored = 2, 384, 128
    with torch.device("meta"):
        skeleton = transformers.AutoModelForCausalLM.from_config(conf)
    found = shape.measure(
        skeleton,
        dtype=case["dtype"],
        autocast=case.get("autocast", False),
        attention=case.get("attention", "sdpa"),
        padded=False,
        lora=lora() if case.get("lora") else None,
    )
    size = 2 if case["dtype"] == "bfloat16" else 4
    setting = Setting(
        "none",
        None,
        1,
        weights=size,
        gradients=size,
        optimizer=12 if case.get("masters") else 8,
        lora=case.get("lora", False),
        checkpointing=case.get("checkpointing", False),
        accumulation=case.get("accumulation", 1),
        autocast=case.get("autocast", False),
    )
    told = estimate.memory(found, setting, Work(1, [length] * rows, [scored] * rows, (rows, length, rows * scored)))
    real = measured(conf, case, rows, length, scored)
    assert told.total == pytest.approx(real, rel=TOLERANCE), (told, real / 2**20)
