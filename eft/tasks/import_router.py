"""Frontier-CS's llm_router as a task: which of three models should answer a prompt, so that right answers cost little.

Read from reference_data.csv (one row per prompt: `eval_name`, `prompt`, per model its correctness and its
`MODEL|total_cost` in dollars; answers are not needed). The score is theirs: accuracy - 150 x mean cost, as a share of
what the cheapest right model per prompt would get, in percent; a prompt that no model answers costs nothing and counts
as wrong. Ours are the split (half of the prompts are hidden, by a hash of their id) and the isolation: the candidate
sees the prompts, the table of answers stays outside.
"""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eft.errors import EftError, UsageError
from eft.tasks import sandbox, scoring

if TYPE_CHECKING:
    from eft.tasks.importers import Config, Draft

TIERS = {
    "cheap": "mistralai/mistral-7b-chat",
    "mid": "mistralai/mixtral-8x7b-chat",
    "expensive": "gpt-4-1106-preview",
}
PRICE = 150.0  # what a dollar of mean cost takes off the accuracy
PROMPT_CHARACTERS = 4000
LIMITS = sandbox.Limits(cpu_s=5, wall_s=30.0, output_kb=256)

DRIVER = """
def drive(route, prompts):
    return [route(prompt, name) for prompt, name in prompts]
"""

EVALUATOR = '''"""Routing prompts to models, by the table of Frontier-CS's llm_router. Imported (eft tasks import)."""

from pathlib import Path

from eft.tasks import import_router


def evaluate(program_path, hidden=False):
    return import_router.evaluate(program_path, Path(__file__).parent, hidden)
'''

SEED = '''# EVOLVE-BLOCK-START
LONG = 900
HARD_NAMES = ("grade-school-math",)


def route(prompt, eval_name):
    """Which model answers: "cheap", "mid" or "expensive". eval_name: the benchmark that the prompt is from."""
    if eval_name in HARD_NAMES:
        return "mid"
    if len(prompt) > LONG:
        return "mid"
    return "cheap"
# EVOLVE-BLOCK-END
'''


def evaluate(program_path: str | Path, folder: Path, hidden: bool = False) -> scoring.Scored:
    """`share`: percent of the best possible raw score; raw values may be negative, so the score is shifted."""
    rows = json.loads((folder / "rows.json").read_text(encoding="utf-8"))["hidden" if hidden else "search"]
    asked = [(row["prompt"], row["eval_name"]) for row in rows]

    def score(value: Any) -> dict[str, float]:
        if not isinstance(value, list) or len(value) != len(rows):
            raise scoring.Invalid("one choice per prompt is needed")
        right = cost = best_right = best_cost = 0.0
        for row, tier in zip(rows, value, strict=True):
            if tier not in TIERS:
                raise scoring.Invalid(f"the choice must be one of {', '.join(TIERS)}")
            if not row["solves"]:
                continue
            cheapest = min(row["solves"], key=lambda t: row["cost"][t])
            best_right, best_cost = best_right + 1, best_cost + row["cost"][cheapest]
            right, cost = right + row["right"][tier], cost + row["cost"][tier]
        share = 100 * (right - PRICE * cost) / (best_right - PRICE * best_cost)
        return {"combined_score": max(share + 100, 1.0) / 100, "share": share}

    return scoring.evaluate(program_path, entry="route", driver=DRIVER, args=(asked,), score=score, limits=LIMITS)


def drafts(source: Path, config: Config) -> list[Draft]:
    """The one task of this family."""
    from eft.tasks.importers import Draft

    table = source / "research" / "problems" / "llm_router" / "resources" / "reference_data.csv"
    file = table if source.is_dir() else source
    try:
        with open(file, encoding="utf-8", newline="") as f:
            csv.field_size_limit(1 << 24)
            rows = list(csv.DictReader(f))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise UsageError("the table of answers cannot be read", where=file, why=str(e)) from None
    needed = ["sample_id", "prompt", "eval_name", *TIERS.values(), *(f"{m}|total_cost" for m in TIERS.values())]
    absent = [c for c in needed if not rows or c not in rows[0]]
    if absent:
        raise EftError("this is not the table of llm_router", where=file, why=f"it has no column {absent[0]!r}")
    parts: dict[str, list[dict[str, Any]]] = {"search": [], "hidden": []}
    for row in rows:
        part = "hidden" if hashlib.sha256(row["sample_id"].encode()).digest()[0] & 1 else "search"
        try:
            parts[part].append({
                "prompt": row["prompt"][:PROMPT_CHARACTERS], "eval_name": row["eval_name"],
                "right": {t: int(float(row[m])) for t, m in TIERS.items()},
                "solves": [t for t, m in TIERS.items() if float(row[m]) > 0],
                "cost": {t: float(row[f"{m}|total_cost"]) for t, m in TIERS.items()},
            })  # fmt: skip
        except ValueError as e:
            raise EftError("a row of the table is no row", where=f"{file}, {row['sample_id']}", why=str(e)) from None
    card = {
        "name": "frontier_cs/llm_router", "domain": "frontier_cs", "family": "llm routing", "raw_metric": "share",
        "direction": "max", "best_known": 100.0, "best_known_source": "the cheapest right model for every prompt",
        "isolation": "isolated", "timeout_s": 60,
    }  # fmt: skip
    message = "Find a rule that sends prompts to models so that right answers cost little."
    files = {"rows.json": json.dumps(parts), "initial_program.py": SEED, "evaluator.py": EVALUATOR}
    return [Draft(name="frontier_cs/llm_router", files=files, card=card, message=message)]
