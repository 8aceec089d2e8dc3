"""Tiny bases, adapters and rows for the merge loop, made in memory: no search and no training."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from eft.models.load import ADAPTER, SIZES, write_base
from eft.records import Label, Transition, Validity

MODULES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (SIZES["hidden_size"], SIZES["intermediate_size"]),
    "mlp.down_proj": (SIZES["intermediate_size"], SIZES["hidden_size"]),
}  # inputs, outputs


def base(folder: Path) -> Path:
    """The tiny model and its tokenizer as a folder."""
    from eft import tokenizers
    from eft.models.load import load_model

    load_model("random:qwen3").save_pretrained(folder)
    tokenizers.load("random:qwen3").save_pretrained(folder)
    return folder


def adapter(folder: Path, base: Path | str, *, seed: int, rank: int = 4, modules: tuple[str, ...] = tuple(MODULES), **config: Any) -> Path:
    """A LoRA adapter with random numbers, as PEFT writes them."""
    import torch
    from safetensors.torch import save_file

    numbers = torch.Generator().manual_seed(seed)
    state = {}
    for layer in range(SIZES["num_hidden_layers"]):
        for module in modules:
            inputs, outputs = MODULES[module]
            key = f"base_model.model.model.layers.{layer}.{module}"
            state[f"{key}.lora_A.weight"] = torch.randn(rank, inputs, generator=numbers) * 0.1
            state[f"{key}.lora_B.weight"] = torch.randn(outputs, rank, generator=numbers) * 0.1
    folder.mkdir(parents=True)
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    about = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
             "base_model_name_or_path": str(base), "target_modules": [m.split(".")[1] for m in modules], **config}  # fmt: skip
    (folder / ADAPTER).write_text(json.dumps(about))
    write_base(folder, str(base))
    return folder


def transition(role: str, task: str, program: int, reply: int, improved: bool) -> Transition:
    rng = random.Random(f"{role} {task} {program} {reply}")
    code = f"# {task} {program}\nx = {program}\n"
    values: dict[str, Any] = dict.fromkeys(
        ("run", "scaffold", "scaffold_release", "domain", "parent_id", "child_id", "parent_artifacts", "child_artifacts",
         "reasoning", "model"), "",
    )  # fmt: skip
    values |= dict.fromkeys(("iteration", "island", "generation", "prompt_tokens", "response_tokens"), 0)
    return Transition(**values, id=f"{role}{task}{program}-{reply}", task=f"{role}/{task}", suite_role=role, language="python",
                      parent_code=code, child_code=f"{code}# {reply}\n", parent_metrics="{}", child_metrics="{}",
                      prompt_system="You improve programs.", prompt_user=f"# Current Program\n{code}\n# Task\nImprove it.",
                      prompt_format="eft@1", response=f"x = {rng.randint(10, 99)}" if improved else f"y{reply} = [{rng.random():.6f}]",
                      edit_kind="diff", replay="match", sources="[]", parent_score=1.0, child_score=2.0 if improved else 0.0,
                      parent_validity=Validity.VALID, child_validity=Validity.VALID,
                      label=Label.IMPROVED if improved else Label.REGRESSED)  # fmt: skip


def table(file: Path, role: str, tasks: tuple[str, ...], programs: int = 8, replies: int = 4) -> Path:
    """Labelled transitions of made-up searches."""
    from eft.records import write_transitions

    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [transition(role, t, p, r, r % 2 == 0) for t in tasks for p in range(programs) for r in range(replies)]
    write_transitions(file, rows)
    return file.parent


def root(folder: Path, experts: int = 3) -> dict[str, Any]:
    """FOLDER with a base, adapters of different ranks, and rows. Returns the loop's options."""
    base(folder / "base")
    places = {}
    for k, alias in enumerate("abcdef"[:experts]):
        places[alias] = str(adapter(folder / alias, folder / "base", seed=k, rank=3 + k).relative_to(folder))
    table(folder / "validation/transitions.parquet", "validation", ("one", "two"))
    table(folder / "gate/transitions.parquet", "gate", ("three", "four", "five"))
    return {"base": "base", "experts": places, "rows": "validation", "fresh": "gate", "search_rows": 24, "hidden_rows": 16, "fresh_rows": 36}
