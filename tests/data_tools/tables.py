"""Transitions as one likes them, and finished stage outputs made of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from synthetic_runs import code, diff, user_prompt

from eft import manifest
from eft.records import TABLE, Transition, transition_id, write_transitions


def transition(number: int = 1, parent: int = 0, **changes: Any) -> Transition:
    """Child `number` of parent `parent` of task "t", all columns of the harvest filled."""
    values: dict[str, Any] = {
        "id": "", "run": "r", "scaffold": "openevolve", "scaffold_release": "0.4.1", "task": "t", "domain": "d",
        "suite_role": "train", "iteration": number, "island": 0, "generation": 1, "parent_id": f"p{parent}",
        "child_id": f"c{number}", "language": "python", "parent_code": code(parent), "child_code": code(number),
        "parent_metrics": json.dumps({"combined_score": float(parent)}),
        "child_metrics": json.dumps({"combined_score": float(number)}), "parent_artifacts": "{}",
        "child_artifacts": "{}",
        "prompt_system": "You improve programs.", "prompt_user": user_prompt(code(parent)),
        "prompt_format": "openevolve@0.4", "response": diff(parent, number), "reasoning": "", "edit_kind": "diff",
        "replay": "match", "model": "m", "prompt_tokens": -1, "response_tokens": -1, "sources": "[]",
    }  # fmt: skip
    values |= changes
    if not values["id"]:
        values["id"] = transition_id(values["run"] + values["task"], values["parent_id"], values["child_id"])
    return Transition(**values)


def labelled(number: int = 1, label: str = "improved", **changes: Any) -> Transition:
    ends = {"improved": (0.0, 1.0), "regressed": (0.0, -1.0), "no_change": (0.0, 0.0), "repair": (None, 1.0),
            "breakage": (0.0, None), "unrecoverable": (None, None)}.get(label, (None, None))  # fmt: skip
    validity = ["evaluator_error" if e is None else "valid" for e in ends]
    values = {"label": label, "parent_score": ends[0], "child_score": ends[1], "parent_validity": validity[0],
              "child_validity": validity[1], "delta": ends[1] - ends[0] if None not in ends else None,
              "score_kind": "combined_score"}  # fmt: skip
    return transition(number, **{**values, **changes})


def output_of(stage: str, folder: Path, rows: list[Transition]) -> Path:
    """A finished output of a stage."""
    write_transitions(folder / TABLE, rows)
    manifest.write(folder, stage, {}, [], [folder / TABLE], {}, time.time())
    return folder
