"""What is merged: a base and experts made from it, and everything that can be wrong with them, told before a model loads.

Experts are LoRA adapters on one base, or models of one architecture (adapters among them count as the models that they
make). All is read from files: configurations,
headers of safetensors files, and the numbers in them where they must be finite. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError, UsageError
from eft.loops.merge_recipe import BASE
from eft.models import identity
from eft.models.load import ADAPTER, adapter_base, locate

ALIAS = re.compile(r"[a-z][a-z0-9_-]{0,31}")
LORA = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)\.weight")
# What our own training never writes, and what an exact sum of B·A would leave out.
UNSUPPORTED = ("use_dora", "modules_to_save", "fan_in_fan_out", "lora_bias", "trainable_token_indices", "layer_replication",
               "target_parameters", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config")  # fmt: skip
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
GIB = 1 << 30


@dataclass(frozen=True)
class Experts:
    """Located models, with what tells them from others. `full`: merged by mergekit as whole models; else all adapters."""

    base: str
    base_print: str
    places: dict[str, str]  # alias -> folder
    prints: dict[str, str]  # alias -> fingerprint
    full: bool
    layers: int
    tensors: int  # how many weights the base has, 0 where that is only known once it is loaded
    adapter_numbers: int  # numbers in all adapters together

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def memory(self) -> int:
        """Bytes that the worker needs for weights: the base twice in float32 (one to go back to), and what is added."""
        return 8 * self.tensors + (4 * self.tensors if self.full else 4 * self.adapter_numbers)


def check(base: str, experts: Mapping[str, str], root: Path, memory_gib: float | None = None) -> Experts:
    """The base and its experts. Raises UsageError or EftError where they cannot be merged: missing, of another base,
    shape or vocabulary, with numbers that are not finite, of a base that has changed, or too large for `memory_gib`
    (default: nine tenths of what is free)."""
    if len(experts) < 2:
        raise UsageError("a merge needs at least two experts", where="loops: merge: experts", why=f"there are {len(experts)}",
                         way_out="name folders of models or adapters by alias")  # fmt: skip
    for alias in experts:
        if not ALIAS.fullmatch(alias) or alias == BASE:
            raise UsageError(f"'{alias}' cannot name an expert", where="loops: merge: experts",
                             why="an alias is a small letter and then letters, digits, - or _; 'base' is taken")  # fmt: skip
    places = {alias: _place(name, root) for alias, name in experts.items()}
    adapters = {alias: p for alias, p in places.items() if (Path(p) / ADAPTER).is_file()}
    if not base and not adapters:
        raise UsageError("which base were these models made from?", way_out="give loops: merge: base")
    base_place = _place(base, root) if base else _place(adapter_base(Path(next(iter(adapters.values())))), root)
    if (Path(base_place) / ADAPTER).is_file():
        raise UsageError("the base of a merge must be a whole model, not an adapter", where=base_place,
                         way_out="export it first: eft export")  # fmt: skip
    shape = identity.architecture(base_place)
    layers = int(shape.get("num_hidden_layers") or 0)
    if not layers:
        raise UsageError("the number of the base's layers cannot be told", where=base_place,
                         way_out="give a model folder")  # fmt: skip
    full = len(adapters) < len(places)
    plain = [p for p in (base_place, *places.values()) if Path(p).is_dir() and p not in adapters.values()]
    sizes = tensors(Path(plain[0])) if plain else {}
    base_print = identity.fingerprint(base_place)
    _finite(base_place)
    numbers = 0
    for alias, place in places.items():
        if alias in adapters:
            numbers += _check_adapter(alias, Path(place), base_place, base_print, sizes)
        else:
            _check_model(alias, place, base_place, base_print, sizes)
        _finite(place)
    found = Experts(base_place, base_print, places, {a: identity.fingerprint(p) for a, p in places.items()},
                    full, layers, sum(_count(s) for _, s in sizes.values()), numbers)  # fmt: skip
    _fits(found, memory_gib)
    return found


def unchanged(known: Mapping[str, Any]) -> None:
    """Raises EftError where a base or an expert is not what it was (`known`: Experts.to_json() of then)."""
    named = {BASE: (known["base"], known["base_print"])}
    named |= {alias: (place, known["prints"][alias]) for alias, place in known["places"].items()}
    for alias, (place, told) in named.items():
        if identity.fingerprint(place) != told:
            raise EftError(f"'{alias}' has changed since this merge began", where=place,
                           why="its weights or its tokenizer are others now, so that no score compares with the old ones",
                           way_out="run the same command again: it begins a new merge")  # fmt: skip


def _place(name: str, root: Path) -> str:
    place = locate(str(name), root)
    return str(Path(place).resolve()) if Path(place).is_dir() else place


def _check_adapter(alias: str, folder: Path, base: str, base_print: str, sizes: Mapping[str, Any]) -> int:
    """How many numbers the adapter has."""
    config = adapter_config(folder)
    kind = str(config.get("peft_type", "")).upper()
    extra = [k for k in UNSUPPORTED if config.get(k)]
    if kind != "LORA" or extra or config.get("bias", "none") != "none":
        what = extra[0] if kind == "LORA" and extra else "bias" if kind == "LORA" else f"peft_type {kind or 'unknown'}"
        raise EftError(f"the adapter '{alias}' cannot be merged exactly", where=folder, why=f"it has {what}",
                       way_out="export it as a whole model (eft export), and give whole models")  # fmt: skip
    own = adapter_base(folder)
    own = str(Path(own).resolve()) if Path(own).is_dir() else own
    if own != base and identity.fingerprint(own) != base_print:
        raise EftError(f"the adapter '{alias}' belongs on another base", where=folder, why=f"it was trained on {own}, the others are on {base}",
                       way_out="merge experts of one base")  # fmt: skip
    _base_as_trained(alias, folder, own)
    found = tensors(folder)
    pairs: dict[str, dict[str, list[int]]] = {}
    for name, (_, shape) in found.items():
        part = LORA.fullmatch(name)
        if not part:
            raise EftError(f"the adapter '{alias}' cannot be merged exactly", where=folder, why=f"it holds {name}")
        pairs.setdefault(part.group(1), {})[part.group(2)] = shape
    for module, both in pairs.items():
        weight = sizes.get(f"{module}.weight")
        if sizes and weight is None:
            raise EftError(f"the adapter '{alias}' does not fit the base", where=folder, why=f"the base has no {module}")
        a, b = both.get("A"), both.get("B")
        if not a or not b or not len(a) == len(b) == 2 or a[0] != b[1] or (weight and [b[0], a[1]] != weight[1]):
            raise EftError(f"the adapter '{alias}' does not fit the base", where=folder,
                           why=f"{module}: A is {a}, B is {b}, the weight is {weight[1] if weight else 'unknown'}")  # fmt: skip
        _scaled(config, module, a[0], folder)
    if not pairs:
        raise EftError(f"the adapter '{alias}' holds no weights", where=folder)
    return sum(_count(shape) for _, shape in found.values())


def _scaled(config: Mapping[str, Any], module: str, rank: int, folder: Path) -> None:
    """Raises EftError where the configuration does not say by what finite number B·A of a module is multiplied."""
    from eft.loops.merge_weights import scale

    try:
        if not math.isfinite(factor := scale(config, module, rank)):
            raise ValueError(f"B·A would be multiplied by {factor}")
    except (TypeError, ValueError, AttributeError, ArithmeticError, re.error) as e:
        raise EftError("this adapter folder is broken", where=folder / ADAPTER,
                       why=f"its alpha for {module} cannot be used: {e}") from None  # fmt: skip


def _base_as_trained(alias: str, folder: Path, base: str) -> None:
    """Raises EftError where the base was trained anew after the adapter: both stages' manifests tell."""
    done = manifest.read(folder.parent) if (folder.parent / manifest.NAME).is_file() else None
    stage = Path(base).parent
    if done is None or not Path(base).is_dir() or not (stage / manifest.NAME).is_file():
        return
    for path, told in (done.get("inputs") or {}).items():
        if Path(path).resolve() == stage.resolve() and manifest.fingerprint(stage) != told:
            raise EftError(f"the base of '{alias}' has changed since the adapter was trained", where=base,
                           why=f"the manifest of {folder.parent} names other weights",
                           way_out="train the adapter again")  # fmt: skip


def _check_model(alias: str, place: str, base: str, base_print: str, sizes: Mapping[str, Any]) -> None:
    own = identity.fingerprint(place)
    if own == base_print:
        raise UsageError(f"'{alias}' is the base itself", where=place)
    a, b = identity.architecture(base), identity.architecture(place)
    differ = [k for k in a if a[k] != b.get(k)]
    if differ:
        raise EftError(f"'{alias}' is of another shape than the base", where=place,
                       why=f"{differ[0]}: {b.get(differ[0])}, the base has {a[differ[0]]}")  # fmt: skip
    found = tensors(Path(place)) if Path(place).is_dir() else sizes
    for name, (_, shape) in sizes.items():
        if name not in found or found[name][1] != shape:
            raise EftError(f"'{alias}' is of another shape than the base", where=place,
                           why=f"{name}: {found[name][1] if name in found else 'missing'}, not {shape}")  # fmt: skip
    _comparable(base, base_print, place, own)


@cache
def _comparable(base: str, base_print: str, place: str, own: str) -> None:
    identity.check_comparable(base, place)  # reads tokenizers: once for these weights


def _fits(experts: Experts, limit_gib: float | None) -> None:
    import psutil

    limit = limit_gib * GIB if limit_gib is not None else 0.9 * psutil.virtual_memory().available
    if experts.memory() > limit:
        raise UsageError("these models are too large to be merged here", where=experts.base,
                         why=f"the weights need {experts.memory() / GIB:.3g} GiB, {limit / GIB:.3g} are there",
                         way_out="merge on a larger machine, or set loops: merge: memory_gib")  # fmt: skip


# ---- files -------------------------------------------------------------------------------------------------------


def adapter_config(folder: Path) -> dict[str, Any]:
    """The adapter's configuration. Raises EftError where it cannot be read."""
    try:
        value = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it holds no mapping")
    except (OSError, ValueError) as e:
        raise EftError("this adapter folder is broken", where=folder / ADAPTER, why=str(e)) from None
    return value


def _headers(folder: Path) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """(file, where its numbers begin, header) of each safetensors file. Raises EftError where there is none, or one is
    damaged."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EftError("this folder holds no safetensors weights", where=folder)
    for file in files:
        try:
            with open(file, "rb") as f:
                (size,) = struct.unpack("<Q", f.read(8))
                if size > 100 << 20:
                    raise ValueError(f"a header of {size} bytes")
                header = json.loads(f.read(size))
            header.pop("__metadata__", None)
            end = max((t["data_offsets"][1] for t in header.values()), default=0)
            if file.stat().st_size < 8 + size + end:
                raise ValueError("the file is shorter than its header says")
        except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as e:
            raise EftError("this file of weights is damaged", where=file, why=str(e)) from None
        yield file, 8 + size, header


def tensors(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Name -> (type, shape) of all weights in a folder, from the headers of its safetensors files."""
    return {name: (t["dtype"], t["shape"]) for _, _, header in _headers(folder) for name, t in header.items()}


def _finite(place: str) -> None:
    """Raises EftError where a weight is NaN or infinite."""
    import numpy as np

    if not Path(place).is_dir():
        return
    for file, begin, header in _headers(Path(place)):
        for name, about in header.items():
            if about["dtype"] not in SIZES or not _count(about["shape"]):
                continue
            kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[about["dtype"]]
            values = np.memmap(file, kind, "r", begin + about["data_offsets"][0], (_count(about["shape"]),))
            for start in range(0, len(values), 1 << 24):
                part = values[start : start + (1 << 24)]
                good = (part & 0x7F80) != 0x7F80 if about["dtype"] == "BF16" else np.isfinite(part)
                if not good.all():
                    raise EftError("these weights are broken", where=file, why=f"{name} holds numbers that are not finite",
                                   way_out="train it again, from a checkpoint before")  # fmt: skip


def _count(shape: list[int]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total


