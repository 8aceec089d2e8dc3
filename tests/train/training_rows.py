"""Training tables as `eft build` writes them, made up: small programs and one-line edits, always the same."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def row(number: int, label: bool, lines: int | None = None) -> dict:
    rng = random.Random(number)
    program = "\n".join(f"v{j} = {rng.randint(0, 99)}" for j in range(lines or rng.randint(3, 12)))
    first = program.split("\n")[0]
    edited = f"v0 = {100 + rng.randint(0, 9) if label else 0}"
    return {
        "id": f"row{number}",
        "task": f"task{number % 3}",
        "domain": ("mathematics", "systems")[number % 3 % 2],
        "prompt": [
            {"role": "system", "content": "You improve programs."},
            {"role": "user", "content": f"# Current Program\n```python\n{program}\n```\n# Task\nImprove it."},
        ],
        "completion": [
            {"role": "assistant", "content": f"<<<<<<< SEARCH\n{first}\n=======\n{edited}\n>>>>>>> REPLACE"}
        ],
        "delta": 1.0 if label else -1.0,
        "label": label,
        "prompt_format": "eft@1",
        "edit_kind": "diff",
    }


def write(folder: Path, rows: list[dict], split: str = "train", *, labelled: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {True: "improved", False: "regressed"}  # as in a label of `eft build`; only KTO's are true and false
    kept = rows if labelled else [{**r, "label": names[r["label"]]} for r in rows]
    pq.write_table(pa.Table.from_pylist(kept), folder / f"{split}.parquet")


def weighted(root: Path, count: int = 40) -> None:
    """ROOT/build/weighted: the rows of ROOT/build/sft with weights of mean 1."""
    rows = [{**row(i, True), "weight": 0.25 + 1.5 * i / (count - 1)} for i in range(count)]
    write(root / "build" / "weighted", rows, labelled=False)


def sets(root: Path, count: int = 40) -> Path:
    """ROOT/build/{sft,kto} with `count` rows each, one of them far too long, and their validation rows. Returns
    ROOT."""
    for labelled, name in ((False, "sft"), (True, "kto")):
        label = (lambda i: i % 2 == 0) if labelled else (lambda i: True)
        rows = [row(i, label(i)) for i in range(count - 1)] + [row(count - 1, label(count - 1), lines=400)]
        write(root / "build" / name, rows, labelled=labelled)
        write(root / "build" / name, [row(i, label(i)) for i in range(1000, 1008)], "validation", labelled=labelled)
    (root / "build/kto/weights.json").write_text(json.dumps({"desirable_weight": 1.0, "undesirable_weight": 1.2}))
    return root
