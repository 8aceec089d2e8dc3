"""AlgoTune's tasks as task folders: the reference solver is the seed, the score is the speed-up over it.

Read from a checkout: AlgoTuneTasks/NAME/NAME.py (a class with generate_problem, solve, is_solution), description.txt
and reports/generation.json (their problem sizes). The module is copied into the task folder as reference.py; the seed
is the same module without its generator and its checker. The evaluator draws problems, refuses programs whose
solutions the task's own checker refuses, and compares wall times, so scores are noisy: repeat, or trust large
differences only.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eft.errors import EftError, UsageError, nearest

if TYPE_CHECKING:
    from eft.tasks.importers import Config, Draft

# The five that the evolution fine-tuning paper holds out.
HELD_OUT = ("convolve2d_full_fill", "polynomial_real", "psd_cone_projection", "affine_transform_2d", "fft_convolution")
_HIDDEN_PARTS = ("generate_problem", "is_solution")
_STUB = '''class Task:
    """What AlgoTune's base class leaves of itself here."""

    def __init__(self, **kwargs):
        pass
'''

EVALUATOR = '''"""{name} of AlgoTune: speed-up over its solver, problems of size {size}. Imported; contained."""

import importlib.util
import sys
import time
import types
from pathlib import Path

SIZE, PROBLEMS, REPEATS = {size}, 3, 3


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference():
    """The task's class, with a base that only holds its options."""
    base = types.ModuleType("AlgoTuneTasks.base")
    found = []

    class Task:
        def __init__(self, **kwargs):
            pass

    base.Task = Task
    base.register_task = lambda name: lambda cls: found.append(cls) or cls
    sys.modules["AlgoTuneTasks"] = types.ModuleType("AlgoTuneTasks")
    sys.modules["AlgoTuneTasks.base"] = base
    load(Path(__file__).parent / "reference.py", "reference")
    return found[-1]()


def fastest(solve, problem, clock=time.perf_counter):
    best, solution = float("inf"), None
    for _ in range(REPEATS):
        start = clock()
        solution = solve(problem)
        best = min(best, clock() - start)
    return best, solution


def evaluate(program_path):
    task = reference()
    solve = load(program_path, "candidate").solve
    ours = theirs = 0.0
    for seed in range(PROBLEMS):
        seconds, solution = fastest(solve, task.generate_problem(SIZE, random_seed=1000 + seed))
        problem = task.generate_problem(SIZE, random_seed=1000 + seed)  # the candidate may have changed its own
        if not task.is_solution(problem, solution):
            return {{"combined_score": 0.0, "validity": 0.0, "error": "incorrect: the solution was refused"}}
        ours += seconds
        theirs += fastest(task.solve, problem)[0]
    speedup = theirs / ours
    return {{"combined_score": speedup, "speedup": speedup, "validity": 1.0}}
'''


def drafts(source: Path, config: Config) -> list[Draft]:
    """The tasks named by --task, or the paper's five."""
    from eft.tasks.importers import Draft

    tasks = source / "AlgoTuneTasks"
    if not tasks.is_dir():
        raise UsageError("this is no checkout of AlgoTune", where=source, why="it has no folder AlgoTuneTasks")
    known = sorted(p.parent.name for p in tasks.glob("*/*.py") if p.stem == p.parent.name)
    found = []
    for name in config.task or HELD_OUT:
        if name not in known:
            raise UsageError(f"AlgoTune has no task '{name}'", where=tasks, way_out=nearest(name, known))
        module = tasks / name / f"{name}.py"
        size = config.size or max(1, _size(source, name) // 10)
        description = tasks / name / "description.txt"
        text = description.read_text(encoding="utf-8") if description.is_file() else ""
        found.append(Draft(
            name=f"algotune/{name}",
            files={
                "initial_program.py": seed(module), "reference.py": module,
                "evaluator.py": EVALUATOR.format(name=name, size=size),
            },
            card={
                "name": f"algotune/{name}", "domain": "algotune", "family": f"algotune {name}", "raw_metric": "speedup",
                "direction": "max", "isolation": "contained", "timeout_s": 120,
            },
            message=f"Write a faster solve(problem) with the same results.\n\n{text}".strip(),
        ))  # fmt: skip
    return found


def _size(source: Path, name: str) -> int:
    """Their problem size, at which the reference takes about 100 ms on their machine."""
    try:
        sizes: dict[str, Any] = json.loads((source / "reports" / "generation.json").read_text(encoding="utf-8"))
        return int(sizes[name]["n"])
    except (OSError, ValueError, KeyError, TypeError):
        raise EftError("the checkout does not say this task's size", where=source / "reports" / "generation.json",
                       way_out=f"give it: --task {name} --size N") from None  # fmt: skip


def seed(module: Path) -> str:
    """The reference solver as a program: the module without generator, checker and base, and solve(problem)."""
    text = module.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text)
    except SyntaxError as e:
        raise EftError("this task's module does not parse", where=module, why=str(e)) from None
    lines: list[str | None] = [*text.split("\n")]
    solver = ""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("AlgoTuneTasks"):
            _blank(lines, node.lineno, node.end_lineno)
        if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Task" for b in node.bases):
            solver = node.name
            for decorator in node.decorator_list:
                _blank(lines, decorator.lineno, decorator.end_lineno)
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name in _HIDDEN_PARTS:
                    first = min([part.lineno, *(d.lineno for d in part.decorator_list)])
                    _blank(lines, first, part.end_lineno)
    if not solver:
        raise EftError("this module has no task class", where=module, why="no class derives from Task")
    body = "\n".join(line for line in lines if line is not None).strip("\n")
    ending = f"_solver = {solver}()\n\n\ndef solve(problem):\n    return _solver.solve(problem)"
    imports, _, rest = body.partition(f"class {solver}")
    return (
        f"{imports.rstrip()}\n\n\n{_STUB}\n\n# EVOLVE-BLOCK-START\nclass {solver}{rest.rstrip()}\n\n\n{ending}\n"
        "# EVOLVE-BLOCK-END\n"
    )


def _blank(lines: list[str | None], first: int, last: int | None) -> None:
    for i in range(first - 1, last or first):
        lines[i] = None
