"""Estimates against what is: memory of real training steps, published bounds, and the rules of sharding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eft.train import estimate, shape
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


def shape_of(parameters: int) -> shape.Shape:
    """A made-up model of this size: 16 layers that keep what theirs would."""
    hidden = max(64, int((parameters / 200) ** 0.5))
    kept = {"full_attention": (0.0, 90.0 * hidden, 0.0)}
    return shape.Shape(
        parameters, parameters, parameters // 2, parameters // 20, hidden, 32000, {"full_attention": 16}, kept,
        (0.0, 8.0 * hidden, 0.0), 2, {},
    )  # fmt: skip


SHARDED = [("ddp", None), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3)]


@given(
    parameters=st.integers(10**9, 10**11), ranks=st.sampled_from([2, 4, 8, 64]), length=st.sampled_from([512, 8192, 32768])
)
def test_more_sharding_takes_less_and_more_tokens_take_more(parameters: int, ranks: int, length: int) -> None:
    found = shape_of(parameters)
    work = Work(1, [length], [length // 4], (1, length, length // 4))
    longer = Work(1, [2 * length], [length // 4], (1, 2 * length, length // 4))
    totals = []
    for kind, stage in SHARDED:
        setting = Setting(kind, stage, ranks, weights=2, gradients=2, optimizer=12, checkpointing=True, gpu=True)
        told = estimate.memory(found, setting, work)
        assert estimate.memory(found, setting, longer).total >= told.total
        assert told.parts["weights"] == pytest.approx(2 * parameters / (ranks if stage == 3 else 1))
        assert told.parts["optimizer"] >= 12 * parameters / (ranks if stage else 1)
        kept = estimate.memory(found, replace(setting, checkpointing=False), work)
        assert kept.total >= told.total * 0.999 or told.fullest == "layer"
        totals.append(told.total)
    states = [t.total for t in (estimate.memory(found, Setting(k, s, ranks, 1, 2, 2, 12, accumulation=2), work) for k, s in SHARDED)]
    assert states[1] <= states[0] + 2 * estimate.BUCKET and states[2] <= states[1] * 1.001
    assert totals[3] <= totals[2] + 2 * estimate.LIVE


@given(ranks=st.sampled_from([1, 2, 8]), flops=st.floats(1e12, 1e24))
def test_time_is_work_over_what_the_devices_do(ranks: int, flops: float) -> None:
    one = estimate.seconds(flops, Setting("ddp", None, 1), 1e15)
    assert estimate.seconds(flops, Setting("ddp", None, ranks), 1e15) == pytest.approx(one / ranks)
    assert one * estimate.UTILISATION * 1e15 == pytest.approx(flops)


def test_passes_of_every_stage() -> None:
    full, lora = Setting("none", None, 1, checkpointing=True), Setting("none", None, 1, lora=True)
    assert estimate.passes("sft", full) == (3, 4) and estimate.passes("kto", full) == (4, 5)
    assert estimate.passes("sft", lora) == (2, 2)


def test_published_bounds_of_zero_2() -> None:
    """15 to 16 GB per GPU for 4B and about 34 GB for 9B before activations, on eight GPUs."""
    for parameters, low, high in ((4.2e9, 14, 17), (9e9, 31, 36)):
        setting = Setting("deepspeed", 2, 8, weights=2, gradients=2, optimizer=12)
        told = estimate.memory(shape_of(int(parameters)), setting, Work(1, [1], [1], (1, 1, 1)))
        states = sum(told.parts[k] for k in ("weights", "gradients", "optimizer")) - 4 * parameters / 8
        assert low < states / 1e9 < high
