"""A small generated routing table with something to find: maths is for `mid`, multiple choice for `cheap`."""

from __future__ import annotations

import csv
import random
from pathlib import Path

MODELS = ("cheap", "mid", "dear")
COSTS = {"cheap": 0.0001, "mid": 0.0004, "dear": 0.004}
RIGHT = {"choice": (0.95, 0.5, 0.95), "maths": (0.05, 0.9, 0.9), "poem": (0.6, 0.6, 0.8)}
TEXT = {
    "choice": "Which of these is a {}?\nA) one\nB) two\nC) three\nAnswer:", "maths": "Solve the equation {} + 3 = 8 * x",
    "poem": "Write a poem about the {}",
}  # fmt: skip


def write(file: Path, rows: int = 90, seed: int = 0) -> Path:
    """RouterBench's wide columns; nine data sets of three kinds."""
    rng = random.Random(seed)
    with open(file, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["sample_id", "prompt", "eval_name", *MODELS, *(f"{m}|total_cost" for m in MODELS)])
        for i in range(rows):
            kind = list(RIGHT)[i % 3]
            right = [float(rng.random() < p) for p in RIGHT[kind]]
            costs = [COSTS[m] * rng.uniform(0.5, 1.5) for m in MODELS]
            out.writerow([f"{kind}.{i}", TEXT[kind].format(1000 + i), f"{kind}-{i // 3 % 3}", *right, *costs])
    return file
