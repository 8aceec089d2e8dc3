"""Adapters on their way out: merged into their base in float32, or kept as adapters, checked either way by the logits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eft.errors import EftError
from eft.models.load import ADAPTER, BASE, adapter_base, cast, load_model, with_adapter

Logits = Callable[[Any, Any], Any]  # (model, tokenizer) -> (tokens, vocabulary), float32


def load(folder: Path, dtype: str, tokenizer: Any, logits: Logits, *, merge: bool) -> tuple[Any, Any, dict[str, Any]]:
    """The adapter in `folder` on its base: (model in `dtype`, its logits, counts for the manifest).

    Merged, it is computed in float32 and rounded last: merging into bfloat16 weights loses most of a small update. `counts`
    has `adapter_difference`, the largest difference between the logits of base plus adapter and those of the merged model in
    float32, and `rounding`, what `dtype` then changes. Raises EftError where merging changed the answers.
    """
    import torch

    model = with_adapter(load_model(adapter_base(folder), "float32"), folder)
    model.eval()
    apart = logits(model, tokenizer)
    counts: dict[str, Any] = {"adapter_difference": 0.0}
    if not merge:
        cast(model, getattr(torch, dtype))
        return model, logits(model, tokenizer), counts
    model = model.merge_and_unload()
    together = logits(model, tokenizer)
    difference = (together - apart).abs().max().item()
    if not difference <= 1e-3 * max(1.0, apart.abs().max().item()):
        raise EftError("the merged model does not answer like its base with the adapter", where=folder,
                       why=f"their logits differ by {difference:.3g}",
                       way_out="keep the adapter as it is: --adapter keep")  # fmt: skip
    model = cast(model, getattr(torch, dtype))
    rounded = logits(model, tokenizer)
    return model, rounded, {"adapter_difference": difference, "rounding": (rounded - together).abs().max().item()}


def copy(folder: Path, out: Path, tokenizer: Any, base: str) -> None:
    """Write the adapter of `folder` into `out`. `base`: its base's name on the hub, or "" where it stays a local one."""
    for file in sorted(folder.glob("adapter_model*")):
        shutil.copyfile(file, out / file.name)
    settings = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = base or adapter_base(folder)
    settings["inference_mode"] = True
    (out / ADAPTER).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if not base:
        (out / BASE).write_text(json.dumps({"base": adapter_base(folder), "relative": None}) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(out)


def compare(out: Path, folder: Path, dtype: str, tokenizer: Any, logits: Logits, expected: Any) -> float:
    """The largest difference between `expected` and the logits of the copy in `out` on the base of `folder`. Raises EftError
    where they are others."""
    import torch

    base = load_model(adapter_base(folder), "float32")
    model = cast(with_adapter(base, out), getattr(torch, dtype))
    difference = (logits(model, tokenizer) - expected).abs().max().item()
    if not difference <= 1e-4 * max(1.0, expected.abs().max().item()):
        raise EftError("the exported adapter does not answer like the checkpoint", where=out,
                       why=f"its logits differ by {difference:.3g}", way_out="this is a bug; the checkpoint is untouched")  # fmt: skip
    return difference
