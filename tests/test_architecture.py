"""The house rules, held over the syntax trees: who may import whom, and what is heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

# Rooms from left to right; a module may import from its own room and from rooms to its left. Rooms of one tuple are
# neighbours that do not know each other.
ROOMS: list[tuple[str, ...]] = [
    ("eft.errors", "eft.__init__"),
    ("eft.manifest", "eft.config", "eft.records", "eft.syntax", "eft.edits", "eft.dialects", "eft.stages", "eft.resources", "eft.tokenizers",
     "eft.hub"),
    ("eft.prompts",),
    ("eft.tasks",),
    ("data_tools", "eft.models|eft.train", "eft.mutators|eft.search"),
    ("eft.gate",),
    ("eft.loops",),
    ("eft.evaluate",),
    ("eft.recipes", "eft.cli"),
]
FIRST_LAYER = {name for rooms in ROOMS[:2] for name in rooms}
LATE = {"torch", "trl", "transformers", "datasets", "openevolve", "vllm", "deepspeed", "peft", "accelerate", "wandb"}
PROCESS_ENTRIES = {"eft.loops", "eft.gate"}  # these run train and data stages as processes, never by import


def modules() -> dict[str, Path]:
    found = {}
    for package in ("eft", "data_tools"):
        for file in (REPOSITORY / package).rglob("*.py"):
            parts = file.relative_to(REPOSITORY).with_suffix("").parts
            if parts[:2] == ("eft", "tasks") and len(parts) > 3:
                continue  # task folders hold programs, not modules of ours
            name = ".".join(parts)
            found["eft.__init__" if name == "eft.__init__" else name.removesuffix(".__init__")] = file
    return found


def room(module: str) -> tuple[int, str] | None:
    """(column, room) of a module, or None for one that the plan does not place."""
    for column, rooms in enumerate(ROOMS):
        for name in rooms:
            if any(module == part or module.startswith(part + ".") for part in name.split("|")):
                return column, name
    return None


def imports(file: Path, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", sorted(modules()))
def test_every_module_has_a_room_and_imports_leftwards(module: str) -> None:
    here = room(module)
    assert here is not None or module == "data_tools", f"{module} has no room in the plan (docs/architecture.md)"
    if here is None:
        return
    known = modules()
    for name in imports(modules()[module]):
        if name not in known or name in ("eft", module):
            continue
        there = room(name)
        assert there is not None
        if here[1] == there[1] or {here[1], there[1]} <= FIRST_LAYER:
            continue
        assert there[0] < here[0], f"{module} ({here[1]}) imports {name} ({there[1]}), which is not to its left"


@pytest.mark.parametrize("module", sorted(modules()))
def test_heavy_libraries_are_imported_where_they_are_used(module: str) -> None:
    heavy = {name.split(".")[0] for name in imports(modules()[module], top_level_only=True)} & LATE
    if module.startswith(("eft.models.", "eft.train.")):
        heavy -= {"torch", "transformers", "trl", "accelerate", "peft"}  # modules that only a training rank imports
    assert not heavy, f"{module} imports {heavy} at its top"


def test_vllm_is_never_imported() -> None:
    assert not [m for m, f in modules().items() if any(n.split(".")[0] == "vllm" for n in imports(f))]


def test_help_and_dry_runs_do_not_load_torch() -> None:
    code = (
        "import sys, eft.cli as c\n"
        "c.Verbs\n"
        "from eft import stages\n"
        "for v in stages.STAGES: stages.module(v)\n"
        "heavy = {'torch', 'trl', 'transformers', 'datasets', 'openevolve'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


def test_no_file_is_longer_than_one_reading() -> None:
    long = {m: n for m, f in modules().items() if (n := len(f.read_text(encoding="utf-8").splitlines())) > 450}
    assert not long, f"split these: {long}"
