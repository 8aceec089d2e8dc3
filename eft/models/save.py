"""Write models as folders that everybody can load, and make sure that the weights are all there."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from eft.errors import EftError


def save_model(model: Any, tokenizer: Any, out: Path, state: dict[str, Any] | None = None) -> None:
    """Write `model` (safetensors; an adapter where it is one) and `tokenizer` with its chat template into the folder
    `out`.

    `state`: the weights, where the model's own are sharded. Weights that are tied to others are left out of it:
    gathering makes a copy of them, which costs disk and which some engines refuse.
    """
    if state is not None:
        ties = getattr(model, "all_tied_weights_keys", None) or {}
        state = {k: v for k, v in state.items() if not (k in ties and ties[k] in state)}
    model.save_pretrained(out, state_dict=state, max_shard_size="5GB")
    tokenizer.save_pretrained(out)
    readable(out)


def readable(folder: Path) -> None:
    """safetensors writes files that only their owner can read."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o644)


def stored_parameters(folder: Path) -> int:
    """How many numbers the safetensors files of a folder hold, read from their headers."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb") as f:
            (size,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(size))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for side in tensor["shape"]:
                    count *= side
                total += count
    return total


def check_weights(folder: Path, expected: int) -> None:
    """Raise EftError unless `folder` holds at least `expected` parameters: ZeRO-3 without gathering writes empty
    tensors."""
    stored = stored_parameters(folder)
    if stored < expected:
        raise EftError(
            "the saved model has lost weights",
            where=folder,
            why=f"{stored:,} of {expected:,} parameters were written",
            way_out="under ZeRO-3, set zero3_save_16bit_model: true in the accelerate config",
        )
