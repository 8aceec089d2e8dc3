"""A loop on the tiny random model: every stage for real, a minute a round."""

from __future__ import annotations

from pathlib import Path

import yaml

SUITE = """name: little
train: [numerics/quadrature, heuristics/knapsack]
gate: [simulators/pricing, numerics/bessel]
"""
TRAIN = {
    "launch": "cpu",
    "precision": "fp32",
    "global_batch": 8,
    "micro_batch": 4,
    "max_tokens": 1024,
    "eval_rows": 2,
    "activation_checkpointing": False,
    "learning_rate": 3e-3,
    "save_every": 2,
}
LORA = {"kind": "sft", "train": {**TRAIN, "steps": 4, "lora": {"rank": 8, "alpha": 16}}}


def config(root: Path, **changes) -> Path:
    """ROOT/loop.yaml of a loop whose teacher is `ast` (a random model's own replies improve nothing)."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "suite.yaml").write_text(SUITE)
    value = {
        "root": str(root),
        "output": "loop",
        "model": "random:qwen3",
        "suite": "suite.yaml",
        "kind": "judge",
        "rounds": 1,
        "searches": [{"by": "ast", "seeds": 1, "iterations": 6, "lookahead": 4}],
        "branches": {
            "sft": {"kind": "sft", "train": {**TRAIN, "steps": 6}},
            "lora": LORA,
        },
        "clean": {"tokenizer": "random:qwen3", "max_tokens": 1024},
        "build": {"validation": 0.3},
        "record": {"seeds": 4, "iterations": 8, "lookahead": 4, "shares": [0.4, 0.6, 0.0]},
        "screening": 3,
        "budget": 4,
        **changes,
    }
    file = root / "loop.yaml"
    file.write_text(yaml.safe_dump(value))
    return file
