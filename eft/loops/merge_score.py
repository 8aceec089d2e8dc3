"""Scores of recipes: what the worker does with one, and where finished scores are kept.

A score is a line of `results.jsonl`, found by the recipe's canonical form and the set of rows, whoever asked for it and
however the recipe was written. Reasons that lie in the recipe (weights that are not finite) are kept, too; those that
lie in the moment (a timeout, a lack of memory) are not.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError, UsageError
from eft.gate.evidence import append, canonical, locked
from eft.loops import merge_rows
from eft.loops.merge_recipe import Recipe, RecipeError
from eft.loops.merge_rows import Row

RESULTS, ROWS, PLAN = "results.jsonl", "rows.jsonl", "plan.json"


class TooSlow(Exception):
    """An evaluation took longer than it may."""


class Results:
    """Finished scores in a folder; several processes may read and add. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.file, self._read, self._known = folder / RESULTS, 0, {}

    def get(self, recipe: Recipe, split: str) -> dict[str, Any] | None:
        """{fitness, auc, …, values} or {error} of a recipe on a set of rows; None where it has not been asked."""
        try:
            size = self.file.stat().st_size
        except OSError:
            return None
        if size < self._read:
            self._read, self._known = 0, {}
        if size > self._read:
            with open(self.file, "rb") as f:
                f.seek(self._read)
                data = f.read(size - self._read)
            whole = data.rfind(b"\n") + 1
            self._read += whole
            for line in data[:whole].splitlines():
                try:
                    value = json.loads(line)
                    self._known[value["recipe"], value["rows"]] = value["result"]
                except (ValueError, KeyError, TypeError):
                    continue  # a torn line: it is asked again
        return self._known.get((recipe.hash(), split))

    def add(self, recipe: Recipe, split: str, result: dict[str, Any]) -> None:
        line = canonical({"recipe": recipe.hash(), "rows": split, "genome": recipe.canonical(), "result": result})
        with locked(self.file.with_suffix(".lock")):
            append(self.file, [line])


class Scorer:
    """Scores recipes on rows with one base model in memory. `plan`: what merge.py wrote (see there)."""

    def __init__(self, plan: dict[str, Any], work: Path) -> None:
        """Loads everything. Raises EftError where the models have changed or cannot be loaded."""
        from eft.loops import merge_experts

        self.plan, self.options = plan, plan["options"]
        merge_experts.unchanged(plan["experts"])
        from eft import tokenizers
        from eft.loops.merge_weights import Held
        from eft.models.identity import tokenizer_place

        self.rows = merge_rows.read(work / ROWS)
        merge_rows.disjoint(self.rows)
        self.own = function(self.options["fitness"], Path(plan["root"])) if self.options["fitness"] else None
        scratch = Path(plan["scratch"])
        self.tokenizer = tokenizers.load(tokenizer_place(plan["experts"]["base"]))
        self.held = Held(plan["experts"], device=self.options["device"], seed=self.options["seed"], scratch=scratch)
        self.encoded = {split: self._encode(rows) for split, rows in self.rows.items()}

    def _encode(self, rows: Sequence[Row]) -> tuple[list[Any], list[tuple[int, int]]]:
        """(prompts with their answers, place of each row: prompt, answer)."""
        from eft.models.logprob import encode

        prompts: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            prompts.setdefault(json.dumps(row.messages), []).append(i)
        encoded, places = [], [(0, 0)] * len(rows)
        for k, members in enumerate(prompts.values()):
            answers = [rows[i].response for i in members]
            encoded.append(encode(self.tokenizer, list(rows[members[0]].messages), answers, self.options["max_tokens"]))
            for j, i in enumerate(members):
                places[i] = (k, j)
        return encoded, places

    def score(self, recipe: Recipe, split: str, deadline: float = math.inf) -> dict[str, Any]:
        """{fitness, …, values, seconds}, or {error} where the recipe makes no model. Raises TooSlow after `deadline`
        (time.monotonic())."""
        started = time.monotonic()

        def between() -> None:
            if time.monotonic() > deadline:
                raise TooSlow

        try:
            with self.held.merged(recipe) as model:
                between()
                found = self._own(model, split) if self.own else self._told(model, split, between)
        except RecipeError as e:
            return {"error": str(e)}
        return {**found, "seconds": round(time.monotonic() - started, 4)}

    def _told(self, model: Any, split: str, between: Callable[[], None]) -> dict[str, Any]:
        from eft.models.logprob import batched

        encoded, places = self.encoded[split]
        told = batched(
            model, encoded, pad=self.tokenizer.pad_token_id, batch_tokens=self.options["batch_tokens"], between=between
        )
        values = [told[k][j] for k, j in places]
        if not all(map(math.isfinite, values)):
            raise RecipeError("the merged model's likelihoods are not finite")
        values = [round(v, 7) for v in values]
        return {**merge_rows.fitness(self.rows[split], values, self.options["auc_weight"]), "values": values}

    def _own(self, model: Any, split: str) -> dict[str, Any]:
        rows = [{"id": r.id, "task": r.task, "improved": r.improved, "messages": list(r.messages), "response": r.response}
                for r in self.rows[split]]  # fmt: skip
        try:
            told = self.own(model, self.tokenizer, rows)
        except Exception as e:
            raise RecipeError(f"the fitness function failed: {type(e).__name__}: {str(e)[:200]}") from None
        more = told if isinstance(told, dict) else {}
        value = more.get("fitness") if more else told
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RecipeError(f"the fitness function returned no finite number: {value!r:.60}")
        numbers = {k: float(v) for k, v in more.items() if isinstance(v, int | float) and math.isfinite(v)}
        return {**numbers, "fitness": float(value)}


def function(name: str, root: Path) -> Callable[..., Any]:
    """The function called `module:function`, looked up from `root` as well. Raises UsageError where there is none."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError("a fitness function is given as module:function", where="loops: merge: fitness", why=f"it is '{name}'")
    sys.path.insert(0, str(root.resolve()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as e:  # whatever the user's module raises
        raise UsageError("the fitness function cannot be loaded", where=name, why=f"{type(e).__name__}: {e}") from None
    finally:
        sys.path.remove(str(root.resolve()))
    if not callable(found):
        raise UsageError("the fitness function cannot be called", where=name)
    return found


def printed(name: str, root: Path) -> str:
    """The hash of the file that the function `module:function` stands in (what it imports is not looked at); "" where
    there is no file. Raises UsageError where there is no such function."""
    function(name, root)
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return manifest.file_hash(Path(file)) if file and Path(file).is_file() else ""


def read_plan(work: Path) -> dict[str, Any]:
    """The plan of a merge. Raises EftError where there is none."""
    try:
        return json.loads((work / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise EftError("this folder holds no merge", where=work / PLAN, why=str(e), way_out="run 'eft evaluate' again") from None
