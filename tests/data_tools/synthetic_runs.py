"""OpenEvolve runs as small as they can be and still whole: for tests that need logs of a known content."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

TASK = ("# Task\nSuggest improvements.\n\n<<<<<<< SEARCH\n# Original code\n=======\n# New code\n>>>>>>> REPLACE\n"
        "IMPORTANT: Do not rewrite the entire program.")  # fmt: skip
SEED = "# EVOLVE-BLOCK-START\nx = 0\n# EVOLVE-BLOCK-END\n"


def code(value: object) -> str:
    return SEED.replace("x = 0", f"x = {value}")


def user_prompt(parent: str) -> str:
    return ("# Current Program Information\n- Fitness: 0.1000\n\n# Program Evolution History\n## Previous Attempts\n\n"
            f"# Current Program\n```python\n{parent}\n```\n\n{TASK}")  # fmt: skip


def diff(old: object, new: object) -> str:
    return f"I change x.\n<<<<<<< SEARCH\nx = {old}\n=======\nx = {new}\n>>>>>>> REPLACE\n"


def child(number: int, parent: int = 0, *, score: Any = None, **changes: Any) -> dict[str, Any]:
    """Everything that there is to know about child `number` of `parent` (0: the seed). Codes say `x = <number>`."""
    metrics = {"combined_score": float(number) if score is None else score}
    known = {
        "id": f"child-{number}", "parent_id": f"child-{parent}" if parent else "seed", "code": code(number),
        "parent_code": code(parent), "metrics": metrics, "parent_metrics": {"combined_score": float(parent)},
        "system": "You improve programs.", "user": user_prompt(code(parent)), "response": diff(parent, number),
        "iteration": number, "generation": 1, "island": number % 3,
    }  # fmt: skip
    return {**known, **changes}


def program_json(c: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The child as `programs/<id>.json` has it."""
    value = {
        "id": c["id"], "code": c["code"], "changes_description": None, "language": "python",
        "parent_id": c["parent_id"], "generation": c["generation"], "timestamp": 1.0,
        "iteration_found": c["iteration"], "metrics": c["metrics"],
        "complexity": 0.0, "diversity": 0.0,
        "metadata": {"changes": "Change 1", "parent_metrics": c["parent_metrics"], "island": c["island"]},
        "prompts": {"diff_user": {"system": c["system"], "user": c["user"], "responses": [c["response"]]}},
        "artifacts_json": None, "artifact_dir": None,
    }  # fmt: skip
    return {**value, **changes}


def seed_json() -> dict[str, Any]:
    return {"id": "seed", "code": SEED, "language": "python", "parent_id": None, "generation": 0, "iteration_found": 0,
            "metrics": {"combined_score": 0.0}, "metadata": {"island": 0}, "prompts": None}  # fmt: skip


def trace_json(c: dict[str, Any], *, with_code: bool = True) -> dict[str, Any]:
    """The child as a record of the evolution trace."""
    value = {
        "iteration": c["iteration"], "timestamp": 1.0, "parent_id": c["parent_id"], "child_id": c["id"],
        "parent_metrics": c["parent_metrics"], "child_metrics": c["metrics"],
        "prompt": {"system": c["system"], "user": c["user"]}, "llm_response": c["response"], "improvement_delta": {},
        "island_id": c["island"], "generation": c["generation"],
        "metadata": {"iteration_time": 0.1, "changes": "Change 1",
                     "token_usage": {"prompt_tokens": 7, "completion_tokens": 3, "model": "m"}},
    }  # fmt: skip
    if with_code:
        value |= {"parent_code": c["parent_code"], "child_code": c["code"]}
    return value


def checkpoint(run: Path, number: int, programs: list[dict[str, Any]], under: str = "checkpoints") -> Path:
    folder = run / under / f"checkpoint_{number}"
    (folder / "programs").mkdir(parents=True)
    for value in programs:
        name = value["id"].replace("/", "_").replace("\0", "_")
        (folder / "programs" / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    (folder / "metadata.json").write_text(json.dumps({"islands": [], "last_iteration": number}), encoding="utf-8")
    return folder


def trace(path: Path, records: list[dict[str, Any]]) -> Path:
    """A trace in the format that the name says; gz: one member per record, as OpenEvolve writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(r) + "\n" for r in records]
    if path.suffix == ".gz":
        path.write_bytes(b"".join(gzip.compress(line.encode()) for line in lines))
    elif path.suffix == ".json":
        path.write_text(json.dumps({"metadata": {"total_traces": len(records)}, "traces": records}), encoding="utf-8")
    elif path.suffix == ".hdf5":
        import h5py

        with h5py.File(path, "w") as f:
            group = f.create_group("traces")
            for i, record in enumerate(records):
                attributes = group.create_group(f"trace_{i:06d}").attrs
                for key, value in record.items():
                    attributes[key] = json.dumps(value) if isinstance(value, dict) else value
    else:
        path.write_text("".join(lines), encoding="utf-8")
    return path


def log(run: Path, made: list[dict[str, Any]], failed: dict[int, str] | None = None, *, planned: int = 10,
        finished: bool = True, name: str = "openevolve_20260101_000000.log") -> Path:  # fmt: skip
    """The run log; only the lines that are read."""
    path = run / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "2026-01-01 00:00:00,000 - openevolve.process_parallel -"
    lines = [f"{head} INFO - Starting process-based evolution from iteration 1 for {planned} iterations (total: 9)"]
    lines += [f"{head} INFO - Iteration {c['iteration']}: Program {c['id']} (parent: {c['parent_id']}) completed in 1s"
              for c in made]  # fmt: skip
    lines += [
        f"{head} WARNING - Iteration {i} error: {why} | tokens: 15 (prompt: 10)" for i, why in (failed or {}).items()
    ]
    if finished:
        lines.append(f"{head} INFO - Evolution completed - Maximum iterations reached")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
