"""Write transitions in the schema of the Finch-Collection (EFT, arXiv 2606.29082): its 25 columns, as Parquet.

What that schema has no column for (language, run, release, execution logs, prompt format, …) stands in `metadata` under
"eft", which other readers pass over and ours (`data_tools/readers/finch.py`) puts back: `eft harvest` of a file written
here gives the rows that it was written from.

The schema has three labels. Rows with another one (repair, breakage, …) are left out and counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eft.records import Label, Transition, read_transitions, to_json, writing

FILE = "data/train-00000-of-00001.parquet"
LABELS = (str(Label.IMPROVED), str(Label.NO_CHANGE), str(Label.REGRESSED))
# Columns of ours that go into metadata["eft"].
KEPT = ("run", "scaffold", "scaffold_release", "suite_role", "language", "parent_artifacts", "child_artifacts",
        "prompt_format", "prompt_source", "model", "prompt_tokens", "response_tokens", "origin_id", "inspirations",
        "edit_kind")  # fmt: skip


def schema() -> Any:
    """The Arrow schema, column by column as the data set's viewer shows them."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    message = pa.struct([("content", text), ("role", text)])
    return pa.schema([
        ("domain", text), ("task", text), ("trajectory", pa.list_(message)), ("improvement_label", text),
        ("improvement_delta", text), ("global_uid", text), ("instance_uid", text), ("iteration", number),
        ("island_id", number), ("generation", number), ("parent_id", text), ("child_id", text),
        ("parent_metrics", text), ("child_metrics", text), ("parent_code", text), ("child_code", text),
        ("metadata", text), ("system_prompt", text), ("user_prompt", text), ("reasoning", text), ("response", text),
        ("system_token_length", number), ("user_token_length", number), ("reasoning_token_length", number),
        ("response_token_length", number),
    ])  # fmt: skip


def write(
    source: Path, out: Path, keep: Callable[[Transition], bool] = lambda row: True,
    count: Callable[[str], int] | None = None, left_out: Counter[str] | None = None,
) -> list[Path]:  # fmt: skip
    """Write the rows of `source` (a transitions table, or a stage's folder) to OUT/data/; returns the files.

    `keep`: which rows; `count`: tokens in a text, without it the lengths are -1; `left_out`: counts rows by the label
    that the schema has no name for. Streaming and atomic. Raises EftError for a source that is no transitions table.
    """
    file = out / FILE
    with writing(file, schema(), batch=256) as table:
        for row in read_transitions(source):
            if not keep(row):
                continue
            if row.label in LABELS:
                table.add(record(row, count))
            elif left_out is not None:
                left_out[row.label or "unlabelled"] += 1
    return [file]


def record(row: Transition, count: Callable[[str], int] | None = None) -> dict[str, Any]:
    """One row in that schema."""
    length = count or (lambda text: -1)
    turns = [("system", row.prompt_system), ("user", row.prompt_user), ("assistant", row.response)]
    parent, child = _object(row.parent_metrics), _object(row.child_metrics)
    return {
        "domain": row.domain, "task": row.task,
        "trajectory": [{"content": content, "role": role} for role, content in turns if content],
        "improvement_label": row.label, "improvement_delta": to_json(_delta(parent, child)),
        "global_uid": _uid(row.id, row.parent_code, row.child_code, row.prompt_system, row.prompt_user, row.response),
        "instance_uid": _uid(row.domain, row.task, row.parent_code, row.child_code), "iteration": row.iteration,
        "island_id": row.island, "generation": row.generation, "parent_id": row.parent_id, "child_id": row.child_id,
        "parent_metrics": row.parent_metrics, "child_metrics": row.child_metrics, "parent_code": row.parent_code,
        "child_code": row.child_code, "metadata": to_json({"eft": {name: getattr(row, name) for name in KEPT}}),
        "system_prompt": row.prompt_system, "user_prompt": row.prompt_user, "reasoning": row.reasoning,
        "response": row.response, "system_token_length": length(row.prompt_system),
        "user_token_length": length(row.prompt_user), "reasoning_token_length": length(row.reasoning),
        "response_token_length": length(row.response),
    }  # fmt: skip


def _uid(*parts: str) -> str:
    """64 hex digits, as the published ones have; how those are made is not told, so they are opaque to all readers."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()


def _object(metrics: str) -> dict[str, Any]:
    value = json.loads(metrics) if metrics else {}
    return value if isinstance(value, dict) else {}


def _delta(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, float]:
    """Child minus parent for every number that both have, sign as it is (as OpenEvolve's trace has it)."""
    found = {}
    for name, value in child.items():
        if isinstance(value, int | float) and isinstance(parent.get(name), int | float):
            with contextlib.suppress(OverflowError):  # an int beyond any float
                found[name] = value - parent[name]
    return found
