"""Whole models, merged by mergekit (extra `merge`) into a scratch folder that is bounded, and empty afterwards.

mergekit takes a relative path for a repository of the hub and a + in a path for an adapter: it is given absolute paths
of links in the scratch folder. Tokenizers and model cards are left alone.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError, UsageError
from eft.loops.merge_recipe import BASE, Recipe, RecipeError, plain

GIB = 1 << 30


def available() -> None:
    """Raises UsageError where mergekit is not installed."""
    if importlib.util.find_spec("mergekit") is None:
        raise UsageError("merging whole models needs mergekit", way_out="pip install 'evolution-finetuning[merge]'")


def room(scratch: Path, parameters: int, limit_gib: float) -> None:
    """Raises UsageError where a merged model (float32) does not fit into the scratch folder, or on its disk."""
    needed = 4.2 * parameters
    place = scratch
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > min(free, limit_gib * GIB):
        raise UsageError("a merged model does not fit into the scratch folder", where=scratch,
                         why=f"it takes {needed / GIB:.3g} GiB; the limit is {limit_gib:g}, the disk has {free / GIB:.3g} left",
                         way_out="set loops: merge: scratch and scratch_gib")  # fmt: skip


def folders(experts: Mapping[str, Any], kept: Path) -> dict[str, Path]:
    """The base and the experts as folders of whole weights, by alias: those that are none yet (adapters, the embedded
    model, hub ids) are written to `kept`, once. Raises EftError where one cannot be loaded."""
    from eft.models.load import ADAPTER, load_model

    found = {}
    prints = {BASE: experts["base_print"], **experts["prints"]}
    for alias, place in {BASE: experts["base"], **experts["places"]}.items():
        found[alias] = Path(place)
        if not Path(place).is_dir() or (Path(place) / ADAPTER).is_file():
            found[alias] = kept / prints[alias]
            if not (found[alias] / "config.json").exists():
                with manifest.building(found[alias]) as aside:
                    load_model(place).save_pretrained(aside)
    return found


def into(model: Any, recipe: Recipe, folders: Mapping[str, Path], scratch: Path, seed: int) -> None:
    """Give `model` the weights of the recipe. Raises RecipeError where mergekit cannot make them."""
    from safetensors.torch import load_file

    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="merge-")).resolve()
    try:
        places = {}
        for alias, place in folders.items():
            places[alias] = str(folder / "models" / alias)
            (folder / "models").mkdir(exist_ok=True)
            (folder / "models" / alias).symlink_to(place.resolve())
        _run(plain(recipe, places), folder / "merged", seed)
        weights = dict(model.named_parameters())
        left = set(weights)
        for file in sorted((folder / "merged").glob("*.safetensors")):
            for name, value in load_file(file).items():
                if name in weights and weights[name].shape == value.shape:
                    weights[name].copy_(value)
                    left.discard(name)
                elif name not in (getattr(model, "all_tied_weights_keys", None) or {}):
                    raise RecipeError(f"the merged model has a weight that the base has not: {name} {tuple(value.shape)}")
        if left:
            raise RecipeError(f"the merged model lacks weights: {sorted(left)[0]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(config: Mapping[str, Any], out: Path, seed: int) -> None:
    import logging

    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    logging.getLogger("mergekit").setLevel(logging.ERROR)
    try:
        run_merge(
            MergeConfiguration.model_validate(config),
            str(out),
            MergeOptions(copy_tokenizer=False, write_model_card=False, quiet=True, random_seed=seed),
        )
    except MemoryError:
        raise RecipeError("there is not enough memory for this merge") from None
    except OSError as e:
        raise EftError("mergekit cannot write the merged model", where=out, why=str(e)) from None
    except Exception as e:  # of a method, on a recipe that is well formed: a failed candidate
        first = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise RecipeError(f"mergekit: {first.replace(str(out.parent), '').strip()[:300]}") from None
