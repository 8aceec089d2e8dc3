"""The weights of a merge: a base held in memory, changed by a recipe, scored, and put back bit by bit.

Adapters: the difference that expert i makes to a weight is ΔW_i = scale_i · B_i A_i. Linear methods add Σ c_i ΔW_i, which
is again an adapter: the ranks in a row, [c_1 s_1 B_1 … c_n s_n B_n] · [A_1; …; A_n], with nothing left out (PEFT's own
`linear` sums A and B apart, which is another model). ties and dare work on the differences as full matrices, one weight
at a time, with mergekit's meaning of every parameter (papers: arXiv 2306.01708, 2311.03099).

Whole models are merged by mergekit into a scratch folder and read from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eft.errors import EftError
from eft.loops.merge_experts import LORA, adapter_config
from eft.loops.merge_recipe import BASE, Recipe, RecipeError

LINEAR = ("linear", "task_arithmetic")


class Held:
    """A base model with its experts' differences, in float32. `seed` decides what dare drops.

    Use `with held.merged(recipe): …`; the model is the base again afterwards.
    """

    def __init__(self, experts: Mapping[str, Any], *, device: str = "cpu", seed: int = 0, scratch: Path | None = None) -> None:
        """`experts`: Experts.to_json(). `scratch`: for whole models; what is kept of them lies beside it. Raises EftError
        where the files do not fit the model."""
        from eft.loops import merge_mergekit
        from eft.models.load import load_model

        self.experts, self.seed, self.scratch = experts, seed, scratch
        if experts["full"]:
            if scratch is None:
                raise EftError("merging whole models needs a scratch folder")
            self.folders = merge_mergekit.folders(experts, scratch.with_name(f"{scratch.name}-models"))
        self.model = load_model(experts["base"]).eval().requires_grad_(False).to(device)
        self.layers, self.full = experts["layers"], experts["full"]
        self.weights = dict(self.model.named_parameters())
        self.pairs: dict[str, dict[str, tuple[Any, Any]]] = {}  # weight -> alias -> (A, scale · B)
        if not self.full:
            for alias, place in experts["places"].items():
                self._load(alias, Path(place), device)
        touched = self.weights if self.full else {name: self.weights[name] for name in self.pairs}
        self.kept = {name: w.detach().clone() for name, w in touched.items()}

    def _load(self, alias: str, folder: Path, device: str) -> None:
        for module, (a, b) in pairs(folder).items():
            name = f"{module}.weight"
            if name not in self.weights or self.weights[name].shape != (b.shape[0], a.shape[1]):
                raise EftError(f"the adapter '{alias}' does not fit the base", where=folder,
                               why=f"{module}: the adapter is for {(b.shape[0], a.shape[1])}, the base has "
                               f"{tuple(self.weights[name].shape) if name in self.weights else 'no such weight'}")  # fmt: skip
            self.pairs.setdefault(name, {})[alias] = (a.to(device), b.to(device))

    @contextlib.contextmanager
    def merged(self, recipe: Recipe) -> Iterator[Any]:
        """The model with the recipe's weights. Raises RecipeError where they are not finite, or cannot be made."""
        import torch

        try:
            with torch.no_grad():
                self._apply(recipe)
            yield self.model
        finally:
            with torch.no_grad():
                for name, value in self.kept.items():
                    self.weights[name].copy_(value)

    def _apply(self, recipe: Recipe) -> None:
        import torch

        if self.full:
            from eft.loops import merge_mergekit

            merge_mergekit.into(self.model, recipe, self.folders, self.scratch, self.seed)
        else:
            for name, by_alias in self.pairs.items():
                self.weights[name].add_(self._difference(recipe, name, by_alias))
        broken = [name for name in self.kept if not torch.isfinite(self.weights[name]).all()]
        if broken:
            raise RecipeError(f"the merged weights are not finite: {broken[0]}")

    def _difference(self, recipe: Recipe, name: str, by_alias: Mapping[str, tuple[Any, Any]]) -> Any:
        """What the recipe adds to one weight."""
        import torch

        if recipe.method in LINEAR:
            parts = [(c, by_alias[alias]) for alias, c in recipe.coefficients(name, self.layers) if alias in by_alias]
            total = torch.zeros_like(self.weights[name])
            for c, (a, b) in parts:
                total.addmm_(b, a, alpha=c)
            return total
        return self._sparse(recipe, name, by_alias)

    def _sparse(self, recipe: Recipe, name: str, by_alias: Mapping[str, tuple[Any, Any]]) -> Any:
        """ties and dare: thinned differences, weighted; with ties only those of the sign that weighs more."""
        import torch

        weight = self.weights[name]
        total, votes, divisor = torch.zeros_like(weight), None, torch.zeros_like(weight)
        differences = []
        all_weights = 0.0
        for alias, values in recipe.models:
            if alias == BASE:
                continue
            w = recipe.value("weight", name, self.layers, values) or 0.0
            all_weights += w
            if alias in by_alias:
                a, b = by_alias[alias]
                density = recipe.value("density", name, self.layers, values)
                thin = self._thinned(b @ a, 1.0 if density is None else density, recipe, f"{name}\0{alias}")
                differences.append((w, thin * w))
        if recipe.method.endswith("ties") and differences:
            votes = torch.where(sum(d for _, d in differences) >= 0, 1.0, -1.0)
        for w, d in differences:
            agrees = (d.sign() == votes) if votes is not None else torch.ones_like(d, dtype=torch.bool)
            total += d * agrees
            divisor += w * agrees
        if recipe.switch("normalize"):
            if votes is None:
                divisor = torch.full_like(weight, all_weights if abs(all_weights) >= 1e-8 else 1.0)
            total /= torch.where(divisor == 0, torch.ones_like(divisor), divisor)
        scale = recipe.value("lambda", name, self.layers)
        return total if scale is None else total * scale

    def _thinned(self, delta: Any, density: float, recipe: Recipe, what: str) -> Any:
        """A share `density` of the differences: the largest (ties), or random ones (dare)."""
        import torch

        if density >= 1:
            return delta
        if recipe.method == "ties":
            count = max(1, int(density * delta.numel()))
            mask = torch.zeros(delta.numel(), dtype=delta.dtype, device=delta.device)
            mask[delta.abs().flatten().argsort(descending=True)[:count]] = 1.0
        else:
            number = int.from_bytes(hashlib.sha256(f"{self.seed}\0{what}".encode()).digest()[:7], "big")
            drawn = torch.rand(delta.numel(), generator=torch.Generator().manual_seed(number))
            mask = (drawn < density).to(delta)
        kept = delta * mask.reshape(delta.shape)
        if recipe.switch("rescale"):
            before, after = delta.abs().sum(), kept.abs().sum()
            if before > 1e-7 and after > 1e-7:
                kept = kept * (before / after)
        return kept

    # ---- writing

    def write(self, recipe: Recipe, tokenizer: Any, out: Path) -> str:
        """Write the merged model to the folder `out`, whole or not at all: an adapter where the recipe is linear over
        adapters, else a whole model in float32. Returns which: "adapter" or "model"."""
        from eft import manifest
        from eft.models.load import write_base
        from eft.models.save import save_model

        with manifest.building(out) as aside:
            if not self.full and recipe.method in LINEAR:
                self._write_adapter(recipe, aside)
                write_base(aside, self.experts["base"])
                tokenizer.save_pretrained(aside)
                return "adapter"
            with self.merged(recipe) as model:
                save_model(model, tokenizer, aside)
            return "model"

    def _write_adapter(self, recipe: Recipe, folder: Path) -> None:
        import torch
        from safetensors.torch import save_file

        state, ranks = {}, {}
        for name, by_alias in self.pairs.items():
            module = name.removesuffix(".weight")
            parts = [(c, by_alias[alias]) for alias, c in recipe.coefficients(name, self.layers) if alias in by_alias]
            if not parts:
                continue
            a = torch.cat([a for _, (a, _) in parts]).contiguous()
            b = torch.cat([c * b for c, (_, b) in parts], dim=1).contiguous()
            state |= {f"base_model.model.{module}.lora_A.weight": a.cpu(), f"base_model.model.{module}.lora_B.weight": b.cpu()}
            ranks[module] = a.shape[0]
        rank = max(ranks.values(), default=1)
        different = {f"^{re.escape(m)}$": r for m, r in ranks.items() if r != rank}
        first = adapter_config(Path(next(iter(self.experts["places"].values()))))
        config = {
            "peft_type": "LORA",
            "task_type": first.get("task_type") or "CAUSAL_LM",
            "base_model_name_or_path": self.experts["base"],
            "r": rank,
            "lora_alpha": rank,  # the scales are in B
            "rank_pattern": different,
            "alpha_pattern": different,
            "target_modules": sorted(ranks),
            "bias": "none",
            "inference_mode": True,
        }
        save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


def pairs(folder: Path) -> dict[str, tuple[Any, Any]]:
    """Module -> (A, scale · B) of a LoRA adapter, in float32. A is (rank, inputs), B is (outputs, rank)."""
    from safetensors.torch import load_file

    config = adapter_config(folder)
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for key, value in load_file(file).items():
            part = LORA.fullmatch(key)
            if part:
                found.setdefault(part.group(1), {})[part.group(2)] = value.float()
    return {m: (p["A"], p["B"] * scale(config, m, p["A"].shape[0])) for m, p in found.items()}


def scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """What PEFT multiplies B·A of a module with: alpha / rank, or alpha / √rank (rank-stabilised)."""

    def own(patterns: Mapping[str, Any] | None, default: float) -> float:
        fitting = [v for k, v in (patterns or {}).items() if re.match(rf"(.*\.)?({k})$", module)]
        return fitting[0] if fitting else default

    alpha = own(config.get("alpha_pattern"), config.get("lora_alpha", 8))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
