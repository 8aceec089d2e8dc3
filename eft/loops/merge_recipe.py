"""The genome of the merge loop: a recipe in mergekit's YAML dialect, read strictly, and what it says of each tensor.

    merge_method: ties
    base_model: base
    models:
      - model: numerics                  # an expert's alias, never a path
        parameters:
          weight: 0.6
          density: [0.4, 0.9]            # a gradient: first layer … last layer, linear between
      - model: systems
        parameters:
          weight:                        # by part of the tensor's name; the first filter that fits counts
            - {filter: mlp, value: [0.2, 0.8]}
            - {value: 0.5}
    parameters: {normalize: true}

A recipe is text that a model wrote: it may name nothing but experts, methods and numbers within bounds, and its size is
limited before it is parsed. Whatever is wrong with it is said in one line, for the next prompt.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from eft.errors import nearest

BASE = "base"
MAX_BYTES, MAX_DEPTH, MAX_FILTERS = 16_384, 8, 16
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
FILTER = re.compile(r"[A-Za-z0-9_.*]{1,64}")

# parameter -> (lowest, highest). Weights beyond 5 only serve to break a model; a density of 0 keeps nothing.
MODEL_PARAMETERS = {"weight": (-5.0, 5.0), "density": (0.001, 1.0), "gamma": (0.0, 0.5), "epsilon": (0.0, 0.49)}
SHARED_PARAMETERS = {"lambda": (-5.0, 5.0), "t": (0.0, 1.0), "select_topk": (0.001, 1.0)}
SWITCHES = ("normalize", "rescale")


@dataclass(frozen=True)
class Method:
    """What a merge method takes. `adapters`: merged here, exactly and without mergekit; else mergekit merges models."""

    per_model: tuple[str, ...] = ("weight",)
    shared: tuple[str, ...] = ()
    adapters: bool = True
    normalize: bool = False  # the default of `normalize`
    rescale: bool = False  # the default of `rescale`
    models: tuple[int, int] | None = None  # how many it takes, where not any number


DENSE = ("weight", "density")
METHODS = {
    "linear": Method(normalize=True),
    "task_arithmetic": Method(shared=("normalize", "lambda")),
    "ties": Method(DENSE, ("normalize", "rescale", "lambda"), normalize=True),
    "dare_linear": Method(DENSE, ("normalize", "rescale", "lambda"), rescale=True),
    "dare_ties": Method(DENSE, ("normalize", "rescale", "lambda"), rescale=True),
    "breadcrumbs": Method((*DENSE, "gamma"), ("normalize", "rescale", "lambda"), adapters=False),
    "breadcrumbs_ties": Method((*DENSE, "gamma"), ("normalize", "rescale", "lambda"), adapters=False),
    "della": Method((*DENSE, "epsilon"), ("normalize", "rescale", "lambda"), adapters=False, normalize=True, rescale=True),
    "della_linear": Method((*DENSE, "epsilon"), ("normalize", "rescale", "lambda"), adapters=False, rescale=True),
    "slerp": Method((), ("t",), adapters=False, models=(2, 2)),
    "sce": Method((), ("select_topk",), adapters=False),
    "model_stock": Method((), (), adapters=False, models=(2, 64)),
}


class RecipeError(Exception):
    """A recipe that cannot be used; the message tells the mutator why, in one line."""


@dataclass(frozen=True)
class Recipe:
    """A valid recipe. `models`: (alias, its settings) in order; a setting is a number, a gradient, or filters."""

    method: str
    models: tuple[tuple[str, Mapping[str, Any]], ...]
    shared: Mapping[str, Any]

    def canonical(self) -> str:
        """One text for all ways of writing the same recipe; what caches go by."""
        shared = {k: v for k, v in self.shared.items() if not (k in SWITCHES and v == getattr(METHODS[self.method], k))}
        ordered = [[alias, dict(values)] for alias, values in sorted(self.models, key=lambda m: m[0])]
        if self.method == "slerp":  # from one model to the other: here alone order counts
            ordered = [[alias, dict(values)] for alias, values in self.models]
        return json.dumps([self.method, ordered, shared], sort_keys=True, separators=(",", ":"), allow_nan=False)

    def hash(self) -> str:
        """24 hex digits of the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:24]

    def value(self, name: str, tensor: str, layers: int, model: Mapping[str, Any] | None = None) -> float | None:
        """A parameter for one tensor of a model with so many layers; None where the recipe does not say.

        The model's own settings go before the shared ones. Gradients run over the layers; tensors outside of layers
        have a gradient's first value.
        """
        for settings in (model or {}, self.shared):
            if name in settings and (found := _resolve(settings[name], tensor, layers)) is not None:
                return found
        return None

    def switch(self, name: str) -> bool:
        return bool(self.shared.get(name, getattr(METHODS[self.method], name)))

    def coefficients(self, tensor: str, layers: int) -> list[tuple[str, float]]:
        """(alias, factor of its difference to the base) of a linear method for one tensor, all scaling included.

        Raises RecipeError where weights that are normalised add up to nothing.
        """
        weights = [(alias, self.value("weight", tensor, layers, values) or 0.0) for alias, values in self.models]
        if self.method == "linear":
            total = sum(w for _, w in weights)
            if abs(total) < 1e-3:
                raise RecipeError(f"the weights add up to {total:.3g} in {tensor}, and are divided by that")
            return [(alias, w / total) for alias, w in weights if alias != BASE]
        scale = self.value("lambda", tensor, layers)
        scale = 1.0 if scale is None else scale
        if self.switch("normalize"):
            total = sum(w for alias, w in weights if alias != BASE)
            scale /= 1.0 if abs(total) < 1e-8 else total
        return [(alias, w * scale) for alias, w in weights if alias != BASE]


def _resolve(setting: Any, tensor: str, layers: int) -> float | None:
    if isinstance(setting, float):
        return setting
    if setting and isinstance(setting[0], dict):
        for part in setting:
            if part.get("filter") in (None, "*") or part["filter"] in tensor:
                return _resolve(part["value"], tensor, layers)
        return None
    found = LAYER.search(tensor)
    place = 0.0 if not found else 1.0 if layers < 2 else min(1.0, int(found.group(1)) / (layers - 1))
    scaled = place * (len(setting) - 1)
    low = int(scaled)
    high = min(len(setting) - 1, low + 1)
    return (1 - (scaled - low)) * setting[low] + (scaled - low) * setting[high]


# ---- reading -----------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Plain YAML: no anchors, no tags, no key twice, no deep nesting; numbers also as 1e-3."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise RecipeError(f"line {event.start_mark.line + 1}: anchors and aliases (& and *) are not allowed")
        if getattr(event, "tag", None) not in (None, "!") and not isinstance(event, yaml.AliasEvent):
            raise RecipeError(f"line {event.start_mark.line + 1}: tags (!) are not allowed")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RecipeError(f"line {event.start_mark.line + 1}: it is nested deeper than {MAX_DEPTH} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if not isinstance(name, str):
                raise RecipeError(f"line {key.start_mark.line + 1}: keys must be words")
            if name in seen:
                raise RecipeError(f"line {key.start_mark.line + 1}: the key '{name[:40]}' stands there twice")
            seen.add(name)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def parse(text: str, experts: Sequence[str], *, layers: int, full: bool, methods: Sequence[str] = ()) -> Recipe:
    """The recipe in `text` over the experts' aliases and `base`. `full`: experts are whole models, for mergekit.

    Raises RecipeError for anything that is not a valid recipe; never anything else.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise RecipeError(f"a recipe has at most {MAX_BYTES} bytes, this one has {len(text)} characters")
    try:
        data = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        why = " ".join(str(getattr(e, "problem", None) or e).split())[:200]
        raise RecipeError(f"it is not valid YAML: {where}{why}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise RecipeError(f"it is not valid YAML: {str(e)[:200]}") from None
    if not isinstance(data, dict):
        raise RecipeError("a recipe is a mapping with merge_method, base_model and models")
    _known(data, ("merge_method", "base_model", "models", "parameters"), "the recipe")
    allowed = [m for m, about in METHODS.items() if (full or about.adapters) and (not methods or m in methods)]
    name = data.get("merge_method")
    if name not in allowed:
        raise RecipeError(f"merge_method must be one of {', '.join(allowed)}; it is {_shown(name)}")
    if data.get("base_model", BASE) != BASE:
        raise RecipeError(f"base_model must be '{BASE}'; it is {_shown(data['base_model'])}")
    method = METHODS[name]
    shared = _settings(data.get("parameters"), (*method.per_model, *method.shared), layers, "parameters")
    models = _models(data.get("models"), name, method, experts, layers)
    recipe = Recipe(name, models, shared)
    if "weight" in method.per_model:
        for alias, values in models:
            if alias == BASE and name != "linear":
                continue
            setting = values.get("weight", shared.get("weight"))
            if setting is None:
                raise RecipeError(f"'{alias}' has no weight")
            if isinstance(setting, tuple) and isinstance(setting[0], dict) and not any(
                part["filter"] in (None, "*") for part in setting
            ):
                raise RecipeError(f"the filters of the weight of '{alias}' need a last one without `filter`")
    return recipe


def _models(entries: Any, name: str, method: Method, experts: Sequence[str], layers: int) -> Any:
    if not isinstance(entries, list) or not entries:
        raise RecipeError("`models` must be a list of {model, parameters}")
    if len(entries) > len(experts) + 1:
        raise RecipeError(f"there are {len(experts)} experts; `models` has {len(entries)} entries")
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise RecipeError("an entry of `models` must be {model, parameters}")
        _known(entry, ("model", "parameters"), "an entry of `models`")
        alias = entry.get("model")
        if not isinstance(alias, str) or alias not in (*experts, BASE):
            raise RecipeError(f"there is no expert {_shown(alias)}; there are {', '.join((*experts, BASE))}")
        if alias in found:
            raise RecipeError(f"'{alias}' stands in `models` twice")
        found[alias] = _settings(entry.get("parameters"), method.per_model, layers, f"parameters of '{alias}'")
    if not any(alias != BASE for alias in found):
        raise RecipeError("`models` names no expert")
    if method.models and not method.models[0] <= len(found) <= method.models[1]:
        raise RecipeError(f"{name} takes {method.models[0]} models or more" if method.models[0] != method.models[1]
                          else f"{name} takes {method.models[0]} models")  # fmt: skip
    return tuple(found.items())


def _settings(value: Any, allowed: Sequence[str], layers: int, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RecipeError(f"{what} must be a mapping")
    _known(value, allowed, what)
    found = {}
    for key, setting in value.items():
        if key in SWITCHES:
            if not isinstance(setting, bool):
                raise RecipeError(f"{key} must be true or false")
            found[key] = setting
        else:
            low, high = {**MODEL_PARAMETERS, **SHARED_PARAMETERS}[key]
            found[key] = _setting(setting, f"{key} in {what}", low, high, layers)
    return found


def _setting(value: Any, what: str, low: float, high: float, layers: int) -> Any:
    """A number, a gradient over layers, or a list of {filter, value} of these."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return _number(value, what, low, high)
    if not value:
        raise RecipeError(f"{what} is an empty list")
    if not any(isinstance(v, dict) for v in value):
        if len(value) > max(2, layers):
            raise RecipeError(f"{what} has {len(value)} values, the model has {layers} layers")
        return tuple(_number(v, what, low, high) for v in value)
    if len(value) > MAX_FILTERS:
        raise RecipeError(f"{what} has more than {MAX_FILTERS} filters")
    parts = []
    for part in value:
        if not isinstance(part, dict):
            raise RecipeError(f"{what} mixes numbers and filters")
        _known(part, ("filter", "value"), what)
        fits = part.get("filter")
        if fits is not None and not (isinstance(fits, str) and FILTER.fullmatch(fits)):
            raise RecipeError(f"a filter of {what} must be part of a tensor's name; it is {_shown(fits)}")
        inner = part.get("value")
        if isinstance(inner, dict) or (isinstance(inner, list) and any(isinstance(v, dict) for v in inner)):
            raise RecipeError(f"{what}: filters cannot lie in filters")
        parts.append({"filter": fits, "value": _setting(inner, what, low, high, layers)})
    return tuple(parts)


def _number(value: Any, what: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecipeError(f"{what} must be a number, not {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RecipeError(f"{what} is not a finite number")
    if not low <= number <= high:
        raise RecipeError(f"{what} is {number:.6g}, outside [{low:g}, {high:g}]")
    return number + 0.0  # -0.0 is 0.0


def _known(value: Mapping[str, Any], allowed: Sequence[str], what: str) -> None:
    for key in value:
        if key not in allowed:
            hint = nearest(str(key)[:40], allowed) if allowed else "it takes none"
            raise RecipeError(f"{what} cannot have the key '{str(key)[:40]}': {hint}")


def _shown(value: Any) -> str:
    return repr(value)[:60]


# ---- writing -----------------------------------------------------------------------------------------------------


def text(method: str, weights: Mapping[str, Any], methods: Sequence[str] = (), **shared: Any) -> str:
    """A recipe as text with the free part between evolve markers; weights as numbers or gradients. `methods`: named in
    a comment, for whoever edits it."""
    choice = f"merge_method: {method}" + (f"  # {', '.join(methods)}" if methods else "")
    lines = [f"base_model: {BASE}", "# EVOLVE-BLOCK-START", choice, "models:"]
    for alias, weight in weights.items():
        settings = weight if isinstance(weight, Mapping) else {"weight": weight}
        lines += [f"  - model: {alias}", *(["    parameters:"] if settings else [])]
        lines += [f"      {key}: {_written(value)}" for key, value in settings.items()]
    if shared:
        lines += ["parameters:", *(f"  {key}: {_written(value)}" for key, value in shared.items())]
    return "\n".join([*lines, "# EVOLVE-BLOCK-END", ""])


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.6g}"
    return "[" + ", ".join(_written(v) for v in value) + "]"


def plain(recipe: Recipe, places: Mapping[str, str]) -> dict[str, Any]:
    """The recipe as mergekit's own configuration, aliases replaced by absolute paths."""

    def setting(value: Any) -> Any:
        if isinstance(value, tuple):
            return [setting(v) for v in value]
        if isinstance(value, dict):
            return {k: setting(v) for k, v in value.items() if v is not None}
        return value

    # mergekit takes a base for one more model of an average, and for one end of a slerp
    base = {"linear": None, "slerp": places[recipe.models[0][0]]}.get(recipe.method, places[BASE])
    return {
        "merge_method": recipe.method,
        "models": [
            {"model": places[alias], **({"parameters": {k: setting(v) for k, v in values.items()}} if values else {})}
            for alias, values in recipe.models
        ],
        **({"base_model": base} if base else {}),
        **({"parameters": {k: setting(v) for k, v in recipe.shared.items()}} if recipe.shared else {}),
        "dtype": "float32",
    }
