"""What a model is, told from its files without loading it: which weights, architecture and prompt format."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from eft import __version__, manifest
from eft.errors import EftError
from eft.models.load import ADAPTER, ARCHITECTURES, SIZES, adapter_base
from eft.tokenizers import EMBEDDED, RANDOM

WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model*.bin")
SHAPE = (
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)


def fingerprint(place: str) -> str:
    """16 hex digits of the weights and the tokenizer of a located model (`load.locate`), the same wherever it lies.

    A folder by the content of its files, an adapter with its base; names (embedded, random, hub) by the name and this
    version. Raises EftError for a folder without weights.
    """
    folder = Path(place)
    if not folder.is_dir():
        return hashlib.sha256(f"{place}\0{__version__}".encode()).hexdigest()[:16]
    files = sorted(f for pattern in WEIGHTS for f in folder.glob(pattern))
    if not files:
        raise EftError("this model folder holds no weights", where=folder)
    digest = hashlib.sha256()
    for f in [*files, *(folder / n for n in ("config.json", ADAPTER, "tokenizer.json", "chat_template.jinja"))]:
        if f.is_file():
            content = _settled(f) if f.name == ADAPTER else manifest.file_hash(f)
            digest.update(f"{f.name}\0{content}\n".encode())
    if (folder / ADAPTER).is_file():
        digest.update(fingerprint(adapter_base(folder)).encode())
    return digest.hexdigest()[:16]


def _settled(file: Path) -> str:
    """The content of an adapter's config but for where its base lies, which is noted elsewhere and may move."""
    value = json.loads(file.read_text())
    return hashlib.sha256(
        json.dumps({k: v for k, v in value.items() if k != "base_model_name_or_path"}, sort_keys=True).encode()
    ).hexdigest()


def architecture(place: str) -> dict[str, Any]:
    """Shape of a located model: model class, layers, widths, vocabulary; an adapter's is its base's.

    {} for a hub id that is not on this machine. Raises EftError for a broken config.
    """
    if place.startswith(RANDOM):
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
        return {"architectures": [ARCHITECTURES[place.removeprefix(RANDOM)][1]], **{k: SIZES[k] for k in names}}
    if place == EMBEDDED:
        return {"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 30}
    folder = Path(place)
    if (folder / ADAPTER).is_file():
        return architecture(adapter_base(folder))
    if not folder.is_dir():
        return {}
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as e:
        raise EftError("the model's config cannot be read", where=folder / "config.json", why=str(e)) from None
    config = {**config, **(config.get("text_config") or {}), "architectures": config.get("architectures")}
    return {k: config[k] for k in SHAPE if config.get(k) is not None}


def prompt_format(place: str) -> str:
    """The prompt format that a model folder's manifest states (of its export), "" where none does."""
    done = manifest.read(Path(place)) if Path(place).is_dir() else None
    return str((done or {}).get("config", {}).get("prompt_format") or "")


def tokenizer_place(place: str) -> str:
    """Where the tokenizer of a located model is: an adapter without one uses its base's."""
    folder = Path(place)
    if (folder / ADAPTER).is_file() and not (folder / "tokenizer_config.json").is_file():
        return tokenizer_place(adapter_base(folder))
    return place


def check_comparable(one: str, other: str) -> None:
    """Raises EftError where two located models have other shapes, tokenizers, chat templates or prompt formats: scores
    on the same prompts would compare something else than the weights."""
    from eft import tokenizers

    a, b = architecture(one), architecture(other)
    differ = [k for k in a if k in b and a[k] != b[k]]
    if differ:
        raise EftError(
            "the candidate is of another architecture than the root",
            where=other,
            why=f"{differ[0]}: {a[differ[0]]} and {b[differ[0]]}",
        )
    # each is asked as it was trained to be: a reasoning model that was tuned without thoughts may follow one with
    said = {tokenizers.identity(tokenizers.load(tokenizer_place(x)), defaults=False) for x in (one, other) if a and b}
    if len(said) > 1:
        raise EftError("the candidate has another tokenizer or chat template than the root", where=other)
    formats = prompt_format(one), prompt_format(other)
    if all(formats) and formats[0] != formats[1]:
        raise EftError(
            "the candidate was trained on another prompt format than the root",
            where=other,
            why=f"{formats[0]} and {formats[1]}",
        )
