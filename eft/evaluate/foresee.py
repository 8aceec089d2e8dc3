"""What `eft evaluate --dry-run` tells: how many searches there will be, and which models, experts and tables are missing.

Nothing is written or started. A model that an earlier stage has yet to make is told, not refused: a dry run of a recipe
comes before its trainings.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from eft import loops
from eft.errors import EftError
from eft.evaluate import plan
from eft.evaluate.loops import chosen
from eft.evaluate.settings import Config
from eft.evaluate.text import plural
from eft.models.load import locate


def dry_run(config: Config) -> tuple[str, dict[str, Any]]:
    """The plan of an evaluation as YAML comments, and its numbers: tasks and searches by loop, proposals, and what is
    missing. Raises UsageError for mutators that cannot be told apart or do not fit together."""
    plan.check(config)
    missing: list[str] = []
    for name, m in config.mutators.items():
        if m.kind == "served" and not m.servers:
            try:
                locate(m.model or "", config.root)
            except EftError as e:
                missing.append(f"mutator '{name}': {_line(e)}")
    arms = sum(1 if m.kind == "best_of_n" else len(config.scaffold) for m in config.mutators.values())
    each = arms * len(config.seed_list())
    told: dict[str, Any] = {"loops": {}, "mutators": list(config.mutators), "seeds": len(config.seed_list())}
    asked = config.loops or {loops.FIRST: {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name in (n for n in asked if asked[n] is not False):
            own = config.model_copy(update={"loops": {name: asked[name]}, "output": Path(scratch).resolve()})
            try:
                (loop,) = chosen(own)
            except EftError as e:
                if name not in loops.LOOPS:
                    raise
                missing.append(f"loop '{name}': {_line(e)}")
                continue
            told["loops"][name] = {"tasks": len(loop.tasks), "searches": each * len(loop.tasks), "iterations": loop.iterations}
    told |= {
        "searches": sum(x["searches"] for x in told["loops"].values()),
        "proposals": sum(x["searches"] * x["iterations"] for x in told["loops"].values()),
        "missing": missing,
    }
    lines = [
        f"{n}: {plural(x['tasks'], 'task')}, {plural(x['searches'], 'search')} of {x['iterations']:,} proposals"
        for n, x in told["loops"].items()
    ]
    seeds = plural(told["seeds"], "seed")
    lines.append(
        f"{plural(len(config.mutators), 'mutator')} ({', '.join(config.mutators)}), {seeds}: "
        f"{plural(told['searches'], 'search')}, {told['proposals']:,} proposals at most"
    )
    lines += [f"not there: {m}" for m in missing]
    return "".join(f"# {line}\n" for line in lines), told


def _line(error: EftError) -> str:
    """An error on one line."""
    return "; ".join(part.strip() for part in str(error).splitlines())
