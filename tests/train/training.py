"""Launch small trainings as users launch them, and look at what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
SFT: dict[str, Any] = {
    "model": "random:qwen3",
    "dataset": "build/sft",
    "output": "sft",
    "launch": "cpu",
    "precision": "fp32",
    "global_batch": 8,
    "micro_batch": 4,
    "learning_rate": 1e-3,
    "steps": 6,
    "max_tokens": 512,
    "save_every": 2,
    "activation_checkpointing": False,
}
PACKED = {"output": "packed", "dataset": "build/weighted", "packing": True, "steps": 3}
KTO = {**SFT, "dataset": "build/kto", "output": "kto", "steps": 4, "learning_rate": 1e-4}


def recipe(root: Path, verb: str, **changes: Any) -> Path:
    """ROOT/OUTPUT.yaml with the small recipe and `changes`."""
    values = {"root": str(root), **(SFT if verb == "sft" else KTO), **changes}
    file = root / f"{values['output']}.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def accelerate(
    config: str | Path,
    *module: str | Path,
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    timeout: float = 1500,  # the first launch on a machine builds an extension
) -> subprocess.CompletedProcess[str]:
    """`accelerate launch --config_file CONFIG OPTIONS -m MODULE…` from the repository; output as text."""
    file = Path(config) if "/" in str(config) else REPOSITORY / "accelerate_configs" / f"{config}.yaml"
    chosen = ["--config_file", str(file)] if config else []
    command = [sys.executable, "-m", "accelerate.commands.launch", *chosen, *options, "-m", *map(str, module)]
    paths = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": paths, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=REPOSITORY, env=env)


def weights(folder: Path) -> dict[str, Any]:
    """All tensors of a model folder."""
    from safetensors.torch import load_file

    return {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}


def largest_difference(one: Path, other: Path) -> float:
    """Largest difference between the weights of two model folders; infinite where the names differ."""
    a, b = weights(one), weights(other)
    if a.keys() != b.keys():
        return float("inf")
    return max((a[k].float() - b[k].float()).abs().max().item() for k in a)
