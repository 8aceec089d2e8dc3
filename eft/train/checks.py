"""What cannot be trained, found out before the model is loaded; one message each."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from eft.errors import EftError, UsageError, nearest
from eft.train.asked import Asked
from eft.train.config import TrainConfig
from eft.train.estimate import size


def stage(file: Path, *, labelled: bool) -> None:
    """Raise EftError where the table `file` is another stage's, which its boolean column `label` tells: KTO's rows, half of
    them regressions, would be learned as good ones by SFT. What is no table at all is told where it is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (pa.ArrowInvalid, OSError):
        return
    both = "label" in schema.names and schema.field("label").type == pa.bool_()
    if labelled != both and "prompt" in schema.names:
        mine, other = ("KTO", "SFT") if labelled else ("SFT", "KTO")
        why = "missing columns: label (true or false)" if labelled else "its column 'label' marks regressions among the rows"
        raise EftError(
            f"this is a data set for {other}, not for {mine}",
            where=file,
            why=why,
            way_out="KTO reads build/kto, SFT reads build/sft",
        )


def rows(count: int, asked: Asked, config: TrainConfig) -> None:
    """Raise EftError where there are fewer rows than ranks."""
    if count < asked.replicas:
        raise EftError(
            f"{asked.replicas} ranks for {count} row{'' if count == 1 else 's'}",
            where=config.file("train"),
            why="every rank needs rows of its own",
            way_out=f"give --ranks {max(1, count)} or fewer, or harvest more",
        )


def vocabulary(tokenizer: Any, config: Any, model: str) -> None:
    """Raise EftError where tokenizer and model cannot belong together: token ids that the model has no embedding for, or
    an end token of the model's that means something else to the tokenizer."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    largest = max(tokenizer.get_vocab().values())
    way_out = "put the tokenizer's files of this very model into its folder"
    if largest >= text.vocab_size:
        raise EftError(
            "tokenizer and model have different vocabularies",
            where=model,
            why=f"the tokenizer has ids up to {largest}, the model {text.vocab_size} embeddings",
            way_out=way_out,
        )
    ends = text.eos_token_id if isinstance(text.eos_token_id, list) else [text.eos_token_id]
    ends = [e for e in ends if e is not None]
    special = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {})}
    if ends and not any(e in special for e in ends):
        raise EftError(
            "tokenizer and model have different vocabularies",
            where=model,
            why=f"the model's end token is {ends[0]}, which the tokenizer reads as "
            f"{tokenizer.convert_ids_to_tokens(ends[0])!r}",
            way_out=way_out,
        )


def adapter(folder: Path, skeleton: Any) -> None:
    """Raise EftError where the adapter in `folder` (if it is one) does not fit its base, the model `skeleton`."""
    if not (folder / "adapter_config.json").is_file():
        return
    file = folder / "adapter_model.safetensors"
    try:
        with open(file, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    except (OSError, ValueError, struct.error) as e:
        raise EftError("this adapter folder is broken", where=file, why=str(e)) from None
    modules = dict(skeleton.named_modules())
    for name, entry in header.items():
        place, found, _ = name.removeprefix("base_model.model.").partition(".lora_")
        if not found:
            continue
        module = modules.get(place)
        down = name.endswith("lora_A.weight")
        wanted = None if module is None else module.in_features if down else module.out_features
        has = entry["shape"][1 if down else 0]
        if wanted != has:
            why = f"it adapts {place}, " + (
                "which the base does not have" if module is None else f"{has} wide; the base's is {wanted}"
            )
            raise EftError(
                "the adapter belongs on another base model",
                where=folder,
                why=why,
                way_out=f"name its own base model in {folder / 'base.json'}",
            )


def sequence(asked: Asked, config: Any, verb: str, told: TrainConfig) -> None:
    """Raise UsageError where ranks cannot share rows (Ulysses): KTO, linear attention, indivisible heads."""
    if asked.sequence == 1:
        return
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    linear = [t for t in getattr(text, "layer_types", None) or [] if "linear" in t]
    heads, shared = text.num_attention_heads, text.num_key_value_heads
    why = None
    if verb == "kto":
        why = (
            "KTO compares whole rows: their log-probabilities, and the KL term's mismatched pairs, would have to be summed "
            "over the ranks that share a row, which TRL does not do"
        )
    elif linear:
        why = "linear attention carries a state along the row, which every rank would start anew"
    elif getattr(told, "packing", False):
        why = "packed rows would attend to each other"
    elif heads % asked.sequence or (shared % asked.sequence and asked.sequence % shared):
        why = f"{heads} attention heads ({shared} of keys) cannot be divided among {asked.sequence} ranks"
    elif told.attention not in ("auto", "sdpa") and not told.attention.startswith("flash"):
        why = f"attention '{told.attention}' needs a mask over whole rows"
    if why:
        raise UsageError(
            "sequence parallelism cannot train this",
            where=f"launch '{asked.name}'",
            why=why,
            way_out="use zero3 or multinode_zero3 with activation checkpointing",
        )


def room(out: Path, needed: float, resumed: bool) -> None:
    """Raise EftError where the disk cannot hold the checkpoints. `resumed`: some of them are there already."""
    free = shutil.disk_usage(out).free
    held = sum(f.stat().st_size for f in out.glob("checkpoint-*/**/*") if f.is_file()) if resumed else 0
    if needed - held > free:
        raise EftError(
            "there is not enough space for the checkpoints",
            where=out,
            why=f"{size(needed - held)} are needed, {size(free)} are free",
            way_out="free space, lower `keep`, or give another -o",
        )


def device(name: str) -> str:
    """The name of a device that an estimate can be asked for. Raises UsageError with the nearest one."""
    from eft.train.estimate import DEVICES

    found = next((d for d in DEVICES if d.casefold() == name.casefold().replace("_", " ")), None)
    if found is None:
        raise UsageError(f"unknown device '{name}'", way_out=nearest(name, DEVICES))
    return found
