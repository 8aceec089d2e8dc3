"""Write models as folders that everybody can load, and make sure that the weights are all there."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any

from eft.errors import EftError

PROCESSOR = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")


def save_model(
    model: Any, tokenizer: Any, out: Path, state: dict[str, Any] | None = None, shard: str = "5GB"
) -> None:
    """Write `model` (safetensors; an adapter where it is one) and `tokenizer` with its chat template into the folder
    `out`.

    `state`: the weights, where the model's own are sharded. Weights that are tied to others are left out of it:
    gathering makes a copy of them, which costs disk and which some engines refuse. `shard`: largest size of a file.
    """
    if state is not None:
        ties = getattr(model, "all_tied_weights_keys", None) or {}
        state = {k: v for k, v in state.items() if not (k in ties and ties[k] in state)}
    _forget_training(model)
    model.save_pretrained(out, state_dict=state, max_shard_size=shard)
    tokenizer.save_pretrained(out)
    readable(out)


def _forget_training(model: Any) -> None:
    """transformers' trainer turns the key-value cache off in the model's config; saved so, everybody who generates with the
    model would compute every prefix anew for every token."""
    config = getattr(model, "config", None)
    if config is None or "use_cache" not in vars(config):
        return
    usual = getattr(type(config)(), "use_cache", None)
    if usual is None:
        del config.use_cache
    else:
        config.use_cache = usual


def readable(folder: Path) -> None:
    """safetensors writes files that only their owner can read."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o644)


def stored(folder: Path) -> dict[str, list[int]]:
    """Names and shapes of all tensors in the safetensors files of a folder, read from their headers."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb") as f:
            (size,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(size))
        found |= {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}
    return found


def check_ties(folder: Path, model: Any) -> None:
    """Raise EftError where a weight that is tied to another was written a second time: some engines refuse such a folder,
    others take the copy for weights of its own."""
    names = stored(folder)
    ties = getattr(model, "all_tied_weights_keys", None) or {}
    twice = sorted(k for k, v in ties.items() if k in names and v in names)
    if twice:
        raise EftError("a tied weight was saved twice", where=folder, why=f"{twice[0]} is {ties[twice[0]]}")


def processor(out: Path, *origins: str) -> None:
    """Copy the settings of image and video input, which a model that can see has and training leaves behind, from the first of
    `origins` (model folders, hub ids) that has them: engines do not start such a model without them."""
    for name in PROCESSOR:
        for origin in origins:
            found = _file(origin, name)
            if found is not None and not (out / name).exists():
                shutil.copyfile(found, out / name)


def _file(origin: str, name: str) -> Path | None:
    """A file of a model folder, or of a hub model that was downloaded; None where it has none."""
    if Path(origin).is_dir():
        return Path(origin) / name if (Path(origin) / name).is_file() else None
    if ":" in origin:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(origin, name)
    return Path(found) if isinstance(found, str) else None


def stored_parameters(folder: Path) -> int:
    """How many numbers the safetensors files of a folder hold."""
    return sum(math.prod(shape) for shape in stored(folder).values())


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
