"""`eft tasks import FAMILY PATH`: a checkout of a public benchmark family, as task folders in OpenEvolve's format.

Nothing of these families comes with this package: the files are read where the user has them, and what a task needs is
copied into its folder below --output (default: ./tasks, where suites look for tasks that are not
shipped). Families:

    openevolve    PATH is a task folder in OpenEvolve's format (or SkyDiscover's), or a folder of such folders: copied,
                  with a `task:` block added. contained
    algotune      PATH is a checkout of AlgoTune: the reference solver is the seed, the score is the speed-up over it.
                  contained; wall time is measured, so scores are noisy
    frontier-cs   PATH is a checkout of Frontier-CS: algorithmic problems with a checker (its C++ source is compiled
                  with the checkout's testlib.h). isolated; interactive problems are refused
    llm-router    PATH is Frontier-CS's reference_data.csv of the llm_router problem (or a checkout). isolated
    ahc           PATH is the unpacked tools folder of an AtCoder heuristic contest (in/*.txt) whose scorer was built.
                  isolated

The seed is evaluated once, and what it scores is written into the `task:` block; a task whose seed does not evaluate is
kept and said.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field

from eft.config import StageConfig
from eft.errors import EftError, UsageError, nearest
from eft.manifest import clear_disk_errors
from eft.tasks import sandbox
from eft.tasks.suite import external_folder

FAMILIES = ("openevolve", "algotune", "frontier-cs", "llm-router", "ahc")


class Config(StageConfig):
    """Options of `eft tasks import`."""

    positional: ClassVar[str | None] = "source"

    source: list[str] = Field(default_factory=list, description="FAMILY PATH")
    output: Path | None = Field(default=None, description="where the task folders go (default: $EFT_TASKS, or ./tasks)")
    task: list[str] = Field(default_factory=list, description="only these tasks of the family")
    name: str | None = Field(default=None, description="name of the task folder (openevolve, ahc)")
    direction: Literal["max", "min"] = Field(default="max", description="is a larger score better? (ahc)")
    scorer: str | None = Field(default=None, description="the contest's scorer, an executable (ahc)")
    seed: str | None = Field(default=None, description="the initial program (frontier-cs, ahc)")
    cases: int = Field(default=10, ge=1, description="inputs of a search; as many again for the final score (ahc)")
    time_limit: float = Field(default=2.0, gt=0, description="seconds of one run (ahc)")
    size: int | None = Field(default=None, ge=1, description="problem size n (algotune; default: a tenth of theirs)")
    check: bool = Field(default=True, description="evaluate the seed of each imported task")
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = Field(default="auto", description="see docs/sandbox.md")


@dataclass
class Draft:
    """A task folder to be written: `files` by name (text, bytes, or a file to copy), `card` is its `task:` block."""

    name: str
    files: dict[str, str | bytes | Path]
    card: dict[str, Any]
    message: str = ""
    suffix: str = ".py"
    folder: Path | None = None  # to copy whole, before `files`
    executables: tuple[str, ...] = field(default=())


def inputs(config: Config) -> list[Path]:
    return []


def run(config: Config) -> dict[str, Any]:
    """Import, say what was written, and return {verb, out, tasks: [{task, folder, seed_score}]}."""
    if len(config.source) != 2:
        raise UsageError("say what to import and from where", way_out=f"eft tasks import {{{','.join(FAMILIES)}}} PATH")
    family, path = config.source
    if family not in FAMILIES:
        raise UsageError(f"there is no family '{family}'", way_out=nearest(family, FAMILIES))
    source = config.path(path)
    if not source.exists():
        raise UsageError("there is nothing to import", where=source, why="no such file or folder")
    out = config.out() if config.output else external_folder()
    if config.check:
        sandbox.choose(config.sandbox)
    done = []
    for draft in _drafts(family)(source, config):
        folder = write(draft, out)
        score = _check(folder) if config.check else None
        done.append({"task": draft.name, "folder": str(folder), "seed_score": score})
        print(f"{draft.name}: {folder}" + (f", the seed scores {score:.6g}" if score is not None else ""))
    return {"verb": "tasks import", "out": str(out), "tasks": done}


def _drafts(family: str) -> Callable[[Path, Config], list[Draft]]:
    from eft.tasks import import_algotune, import_contest, import_router

    return {
        "openevolve": openevolve, "algotune": import_algotune.drafts, "frontier-cs": import_contest.frontier_cs,
        "llm-router": import_router.drafts, "ahc": import_contest.ahc,
    }[family]  # fmt: skip


def write(draft: Draft, out: Path) -> Path:
    """The task folder, new. Raises EftError where it exists: nothing of a user's is overwritten."""
    folder = out / draft.name
    if folder.exists():
        raise EftError("this task is there already", where=folder, way_out="remove it, or give another --output")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with clear_disk_errors(folder):
        if draft.folder:
            shutil.copytree(draft.folder, part, ignore=shutil.ignore_patterns("__pycache__", ".git"))
        part.mkdir(parents=True, exist_ok=True)
        for name, content in draft.files.items():
            file = part / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, file)
            else:
                file.write_bytes(content.encode() if isinstance(content, str) else content)
            if name in draft.executables:
                file.chmod(0o755)
        config = part / "config.yaml"
        own = next((p for p in (config, *sorted(part.glob("config*.yaml"))) if p.is_file()), None)
        config.write_text(_config(draft, own.read_text(encoding="utf-8") if own else ""))
        part.rename(folder)
    return folder


def _config(draft: Draft, existing: str) -> str:
    """config.yaml: the family's own text with the `task:` block below it, or a new one."""
    card = yaml.safe_dump({"task": draft.card}, sort_keys=False, allow_unicode=True)
    if existing:
        if re.search(r"^task:", existing, re.MULTILINE):
            return existing
        return existing.rstrip("\n") + "\n" + card
    top = {
        "max_iterations": 100, "diff_based_evolution": True, "file_suffix": draft.suffix,
        **({"language": "cpp"} if draft.suffix == ".cpp" else {}),
        "prompt": {"system_message": draft.message},
        "evaluator": {"timeout": int(draft.card.get("timeout_s", 60)), "max_retries": 0, "cascade_evaluation": False},
    }  # fmt: skip
    return yaml.safe_dump(top, sort_keys=False, allow_unicode=True) + card


def _check(folder: Path) -> float | None:
    """Evaluate the seed, and note what it scores."""
    from eft.tasks.evaluate import evaluate
    from eft.tasks.task import load_task

    task = load_task(folder)
    found = evaluate(task, task.seed())
    if found.score is None:
        print(f"  its seed has no score here: {found.validity}: {found.metrics.get('error', '')}")
        return None
    config = folder / "config.yaml"
    text = config.read_text(encoding="utf-8").rstrip("\n") + "\n"
    note = [("seed_score", found.score), *([("seed_raw", found.raw)] if found.raw is not None else [])]
    tail = text[text.index("\ntask:") :] if "\ntask:" in text else ""
    lines = [f"  {key}: {value:.8g}\n" for key, value in note if f"\n  {key}:" not in tail]
    config.write_text(text + "".join(lines))  # the block is the file's last
    return found.score


# ---- folders in OpenEvolve's format ------------------------------------------------------------------------------

# What is known about public tasks by the folder's name, so that roles, reports and families fit: (name, card).
PUBLIC: dict[str, tuple[str, dict[str, Any]]] = {
    "circle_packing": ("circle_packing_26", {
        "family": "circle packing", "raw_metric": "sum_radii", "direction": "max", "best_known": 2.63598308,
        "best_known_source": "published: ThetaEvolve, arXiv 2511.23473"}),
    "erdos_min_overlap": ("erdos_min_overlap", {
        "family": "minimum overlap problem", "raw_metric": "c5_bound", "direction": "min", "best_known": 0.380876,
        "best_known_source": "published: TTT-Discover, arXiv 2601.16175"}),
    "first_autocorr_ineq": ("first_autocorr_ineq", {
        "family": "autocorrelation inequalities", "raw_metric": "c1", "direction": "min", "best_known": 1.50287,
        "best_known_source": "published: TTT-Discover, arXiv 2601.16175"}),
    "second_autocorr_ineq": ("second_autocorr_ineq", {
        "family": "autocorrelation inequalities", "raw_metric": "c2", "direction": "max", "best_known": 0.9610,
        "best_known_source": "published, as listed in TTT-Discover, arXiv 2601.16175"}),
    "hadamard": ("hadamard_29", {
        "family": "maximal determinants", "direction": "max", "best_known": 0.935673,
        "best_known_source": "published: project page of evolution fine-tuning, arXiv 2606.29082"}),
    "txn_scheduling": ("txn_scheduling", {"family": "transaction scheduling"}),
    "prism": ("prism", {"family": "model placement"}),
    "eplb": ("eplb", {"family": "expert load balancing"}),
    "llm_sql": ("llm_sql", {"family": "prefix reordering"}),
}  # fmt: skip


def openevolve(source: Path, config: Config) -> list[Draft]:
    """A folder in OpenEvolve's format, or all such folders right below it."""
    below = [] if source.is_file() else sorted(p for p in source.iterdir() if list(p.glob("initial_program.*")))
    folders = [source] if _evaluator(source) else [p for p in below if _evaluator(p)]
    folders = [f for f in folders if not config.task or f.name in config.task]
    if not folders:
        raise UsageError("there is no task in OpenEvolve's format", where=source,
                         why="no evaluator.py (or evaluator/evaluator.py) with an initial_program beside it, here or"
                             " one level below")  # fmt: skip
    if config.name and len(folders) > 1:
        raise UsageError("--name is for one task", why=f"{len(folders)} were found", way_out="choose one with --task")
    drafts = []
    for folder in folders:
        for entry in folder.rglob("*"):
            if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
                raise EftError("a task folder must not link out of itself", where=entry)
        name, known = PUBLIC.get(folder.name, (folder.name, {}))
        card = {"name": config.name or name, "domain": "imported", **known, "isolation": "contained"}
        files: dict[str, str | bytes | Path] = {}
        if _evaluator(folder) != folder / "evaluator.py":  # SkyDiscover keeps the evaluator's files in a folder
            files = {p.name: p for p in sorted((folder / "evaluator").iterdir()) if p.is_file()}
        drafts.append(Draft(name=config.name or name, files=files, card=card, folder=folder))
    return drafts


def _evaluator(folder: Path) -> Path | None:
    """The evaluator of a task folder: OpenEvolve's place, or SkyDiscover's."""
    return next((p for p in (folder / "evaluator.py", folder / "evaluator" / "evaluator.py") if p.is_file()), None)
