"""Where a tuned mutator comes from: the manifests and the loss curves that its recipe left beside the evaluation.

Reads what it finds and says what it does not: a report of somebody else's results has no data side at all.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft import manifest
from eft.gate import lineage

INHERIT = "inherit"  # the folder of `eft inherit` under a recipe's root
# stage -> its folder under a recipe's root, in the pipeline's order
FOLDERS = {
    "collect": "runs", "harvest": "harvest", "label": "label", "clean": "clean", "build": "build", "sft": "sft",
    "kto": "kto", "export": "export",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """A finished stage: its counts, flattened to (name, value) pairs, and how long it took in seconds."""

    name: str
    counts: tuple[tuple[str, Any], ...]
    seconds: float | None
    version: str


@dataclass(frozen=True)
class Losses:
    """A training's losses by optimizer step: (step, loss); `evaluated` on the validation tasks."""

    stage: str
    trained: tuple[tuple[float, float], ...]
    evaluated: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Provenance:
    """What was found under `folder`, and the stages that left nothing there."""

    folder: str
    stages: tuple[Stage, ...]
    losses: tuple[Losses, ...]
    absent: tuple[str, ...]
    lineage: dict[str, Any] | None = None  # lineage.json of the inheritance loop, where one ran


def flatten(counts: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Nested counts as (name, value); lists are given by their length; zeros and long texts are left out."""
    if isinstance(counts, dict):
        return [item for k, v in counts.items() for item in flatten(v, f"{prefix}: {k}" if prefix else str(k))]
    if isinstance(counts, list):
        return [(prefix, len(counts))] if counts else []
    if counts in (None, 0, "") or (isinstance(counts, str) and len(counts) > 80):
        return []
    return [(prefix, counts)]


def _history(folder: Path) -> list[dict[str, Any]]:
    """The lines of a training's losses.jsonl up to a broken one; [] where there is no such file."""
    lines: list[dict[str, Any]] = []
    try:
        text = (folder / "losses.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return lines
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            break
        if isinstance(value, dict):
            lines.append(value)
    return lines


def losses(folder: Path, stage: str) -> Losses | None:
    """The loss curve of the training in `folder`, or None where it left no log."""

    def series(key: str) -> tuple[tuple[float, float], ...]:
        points = [(h.get("step"), h.get(key)) for h in history]
        return tuple(
            (float(s), float(v))
            for s, v in points
            if isinstance(s, int | float) and isinstance(v, int | float) and math.isfinite(v)
        )

    history = _history(folder)
    trained, evaluated = series("loss"), series("eval_loss")
    return Losses(stage, trained, evaluated) if trained or evaluated else None


def read(folder: Path) -> Provenance:
    """What the stages of a recipe left under `folder`. Never fails: a torn or foreign manifest counts as absent."""
    stages, curves, absent = [], [], []
    for name, sub in FOLDERS.items():
        done = manifest.read(folder / sub)
        if done is None or done.get("stage") not in (name, None):
            absent.append(name)
        else:
            seconds = done.get("seconds")
            took = float(seconds) if isinstance(seconds, int | float) else None
            stages.append(Stage(name, tuple(flatten(done.get("counts", {}))), took, str(done.get("version", ""))))
        if name in ("sft", "kto") and (found := losses(folder / sub, name)):
            curves.append(found)
    return Provenance(str(folder), tuple(stages), tuple(curves), tuple(absent), _lineage(folder / INHERIT))


def _lineage(folder: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((folder / "lineage.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if lineage.well_formed(value) else None


def training_domains(model: Path) -> tuple[str, ...]:
    """The domains of the transitions that a model was trained on, as far as manifests lead to its training sets.

    `model`: an export, a training's output folder, or a checkpoint in it. () for a model that eft did not train, or
    where the training sets are gone. Never fails.
    """
    domains: set[str] = set()
    waiting, seen = [model], set()
    while waiting:
        place = waiting.pop().resolve()
        if place in seen:
            continue
        seen.add(place)
        if place.name == "train.parquet" and place.is_file():
            domains |= _domains(place)
            continue
        found = manifest.read(place) or manifest.read(place.parent)
        if found is None or found.get("stage") not in ("export", "sft", "kto"):
            continue
        root = Path(str((found.get("config") or {}).get("root", ".")))
        for name in found.get("inputs") or {}:
            # as written, or beside the model where the whole recipe was moved
            inside = Path(name).relative_to(root) if Path(name).is_relative_to(root) else None
            waiting += [Path(name)] + ([place.parent / inside, place.parent.parent / inside] if inside else [])
    return tuple(sorted(domains))


def _domains(table: Path) -> set[str]:
    """The values of a training set's `domain` column; empty for a file that cannot be read or has none."""
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        column = parquet.read_table(table, columns=["domain"]).column("domain")
    except (OSError, KeyError, ValueError, pyarrow.ArrowException):
        return set()
    return {str(d) for d in column.unique().to_pylist() if d}
