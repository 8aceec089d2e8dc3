"""Logs of ShinkaEvolve, SkyDiscover and CodeEvolve in their schemas, made up: a seed whose `x` each child sets anew."""

from __future__ import annotations

import json
import pickle
import random
import sqlite3
import sys
import types
from pathlib import Path
from typing import Any

SEED = "# EVOLVE-BLOCK-START\nx = 0\n# EVOLVE-BLOCK-END"


def code(n: object) -> str:
    return SEED.replace("x = 0", f"x = {n}")


def diff(old: object, new: object) -> str:
    return f"Better:\n<<<<<<< SEARCH\nx = {old}\n=======\nx = {new}\n>>>>>>> REPLACE"


# -------------------------------------------------------------------------------------------------------------- shinka

SHINKA_COLUMNS = {
    "id": "TEXT PRIMARY KEY", "code": "TEXT NOT NULL", "language": "TEXT NOT NULL", "parent_id": "TEXT",
    "archive_inspiration_ids": "TEXT", "top_k_inspiration_ids": "TEXT", "generation": "INTEGER NOT NULL",
    "timestamp": "REAL NOT NULL", "code_diff": "TEXT", "combined_score": "REAL", "public_metrics": "TEXT",
    "private_metrics": "TEXT", "text_feedback": "TEXT", "complexity": "REAL", "embedding": "TEXT",
    "correct": "BOOLEAN DEFAULT 0", "children_count": "INTEGER NOT NULL DEFAULT 0", "metadata": "TEXT",
    "migration_history": "TEXT", "island_idx": "INTEGER",
}  # fmt: skip


def shinka_prompt(shown: str, *, fix: bool = False) -> str:
    """A prompt with the lines that the reader goes by, in other words."""
    fenced = f"```python\n{shown}\n```\n\n"
    if fix:
        return f"# Incorrect Program to Fix\n\nIt fails:\n\n{fenced}## Error Information\n\n# Task\n\nMake it work."
    history = "# Prior programs\n\n```python\nx = 'old'\n```\n\n"
    metrics = "Here are the performance metrics of the program:\n\n0.1\n\n"
    return f"{history}# Current program\n\nThis one:\n\n{fenced}{metrics}# Task\n\nAnswer with a SEARCH/REPLACE block."


def shinka_row(n: int, parent: int | None = 0, **changes: Any) -> dict[str, Any]:
    """Program n, made of program `parent` by a diff; keywords replace columns, `meta` and `said` parts of metadata."""
    meta, said = changes.pop("meta", {}), changes.pop("said", {})
    shown = code(parent) if parent is not None else ""
    llm = {"content": diff(parent, n), "msg": shinka_prompt(shown), "system_msg": "You improve x.", "model_name": "m",
           "new_msg_history": [], "input_tokens": 7, "output_tokens": 3, "thinking_tokens": 1, "thought": f"why {n}",
           **said}  # fmt: skip
    metadata = {"patch_type": "diff", "llm_result": llm, "stdout_log": f"out {n}", **meta}
    row = {"id": f"p{n}", "code": code(n), "language": "python",
           "parent_id": None if parent is None else f"p{parent}",
           "archive_inspiration_ids": json.dumps(["p0"]), "top_k_inspiration_ids": "[]", "generation": n,
           "timestamp": 1.5 + n, "combined_score": n / 10, "public_metrics": json.dumps({"size": n}),
           "private_metrics": json.dumps({"secret": 1}), "text_feedback": "", "correct": 1,
           "metadata": json.dumps(metadata if parent is not None else {"patch_type": "init"}),
           "island_idx": 0}  # fmt: skip
    return {**row, **changes}


def shinka_db(path: Path, rows: list[dict[str, Any]], *, attempts: list[tuple] = (), schema: str = "") -> Path:
    """Write a programs.sqlite. `attempts`: (generation, stage, status, details)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as db:
        columns = ", ".join(f"{name} {kind}" for name, kind in SHINKA_COLUMNS.items())
        db.execute(schema or f"CREATE TABLE programs ({columns})")
        for row in rows:
            names = ", ".join(row)
            db.execute(f"INSERT INTO programs ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        if attempts:
            db.execute("CREATE TABLE attempt_log (id INTEGER PRIMARY KEY, generation INTEGER, stage TEXT, status TEXT, "
                       "details TEXT, created_at REAL)")  # fmt: skip
            for attempt in attempts:
                db.execute("INSERT INTO attempt_log (generation, stage, status, details) VALUES (?, ?, ?, ?)", attempt)
    db.close()
    return path


# --------------------------------------------------------------------------------------------------------- skydiscover


def sky_program(n: int, parent: int | None = 0, **changes: Any) -> dict[str, Any]:
    user = (f"# Current Program\n\n## Program Information\ncombined_score: 0.1\n\n```python\n{code(parent)}\n```\n\n\n"
            "# Task\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE")  # fmt: skip
    prompts = {"diff_user_message": {"system": "You improve x.", "user": user, "responses": [diff(parent, n)]}}
    made = {"id": f"s{n}", "solution": code(n), "language": "python", "metrics": {"combined_score": n / 10},
            "iteration_found": n, "parent_id": None if parent is None else f"s{parent}", "other_context_ids": ["s0"],
            "parent_info": ["", f"s{parent}"], "context_info": [["", "s0"]], "timestamp": 1.0 + n,
            "metadata": {} if parent is None else {"changes": "c", "parent_metrics": {"combined_score": parent / 10}},
            "artifacts": {"stderr": f"log {n}"} if parent is not None else {},
            "prompts": prompts if parent is not None else None, "generation": 0}  # fmt: skip
    return {**made, **changes}


def sky_checkpoint(run: Path, number: int, programs: list[dict[str, Any]]) -> Path:
    folder = run / "checkpoints" / f"checkpoint_{number}"
    (folder / "programs").mkdir(parents=True, exist_ok=True)
    for program in programs:
        (folder / "programs" / f"{program['id']}.json").write_text(json.dumps(program))
    (folder / "metadata.json").write_text(json.dumps({"best_program_id": None, "last_iteration": number}))
    return folder


# ---------------------------------------------------------------------------------------------------------- codeevolve


def codeevolve_program(n: int, parent: int | None = 0, **changes: Any) -> dict[str, Any]:
    made = {"id": f"c{n}", "code": code(n), "language": "python", "returncode": 0, "output": None, "error": None,
            "warning": None, "eval_metrics": {"score": n / 10, "size": n}, "fitness": n / 10,
            "parent_id": None if parent is None else f"c{parent}", "iteration_found": n, "generation": n,
            "island_found": 0, "prompt_id": None if parent is None else "q0", "inspiration_ids": ["c0"],
            "model_id": 0, "model_msg": None if parent is None else diff(parent, n), "prog_msg": "shown",
            "features": {}, "embedding": None}  # fmt: skip
    return {**made, **changes}


class _Module:
    """While it lasts, classes of that name exist: what is pickled then says that it is of CodeEvolve."""

    def __enter__(self) -> types.ModuleType:
        self.before = {name: sys.modules.get(name) for name in ("codeevolve", "codeevolve.database")}
        module = types.ModuleType("codeevolve.database")
        for name in ("Program", "ProgramDatabase"):
            setattr(module, name, type(name, (), {"__module__": "codeevolve.database"}))
        sys.modules |= {"codeevolve": types.ModuleType("codeevolve"), "codeevolve.database": module}
        return module

    def __exit__(self, *_: object) -> None:
        for name, module in self.before.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})


def checkpoint_bytes(programs: list[dict[str, Any]], *, island: int = 0, errors: list = (), usage: list = (),
                     protocol: int = 5) -> bytes:  # fmt: skip
    """A checkpoint as CodeEvolve pickles it: two databases of objects, with a random state in them."""
    with _Module() as module:

        def made(cls: str, state: dict[str, Any]) -> Any:
            one = getattr(module, cls)()
            one.__dict__.update(state)
            return one

        def database(found: list[dict[str, Any]]) -> Any:
            return made("ProgramDatabase", {
                "id": island, "seed": 1, "random_state": random.Random(1), "max_alive": 5,
                "programs": {str(p.get("id")): made("Program", p) for p in found},
                "is_alive": {str(p.get("id")): False for p in found},
            })  # fmt: skip

        prompt = {"id": "q0", "code": "Improve x.", "language": "text", "iteration_found": 0}
        state = {"errors": list(errors), "tok_usage": list(usage), "early_stop_counter": 0}
        data = {"prompt_db": database([prompt]), "sol_db": database(programs), "evolve_state": state}
        return pickle.dumps(data, protocol=protocol)


def codeevolve_run(run: Path, epoch: int, data: bytes, island: int = 0) -> Path:
    folder = run / str(island) / "ckpt"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"ckpt_{epoch}.pkl").write_bytes(data)
    return folder / f"ckpt_{epoch}.pkl"
