"""The second loop: recipes that merge experts into one model, mutated as text.

    loops:
      merge:
        base: sft/final
        experts: {numerics: experts/numerics/final, systems: experts/systems/final}
        rows: validation/label          # labelled transitions of validation tasks; of gate tasks under `fresh`

One task, `merge/<name>`: the genome is a recipe in mergekit's dialect (merge_recipe.py), its fitness how well the merged
model tells improved from regressed replies, and how likely improved ones are to it (merge_rows.py), measured by a worker
that holds the base (merge_worker.py). Below `out`: <key>/, the task folder, and <key>.work/, the plan, the rows, finished
scores and controls; `key` changes with models, rows and options, so no score outlives what it was measured on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from eft import __version__, manifest
from eft import config as configs
from eft.errors import UsageError
from eft.loops import Confirmation, Control, merge_experts, merge_rows, merge_score
from eft.loops.folders import write_task
from eft.loops.merge_recipe import METHODS, text
from eft.tasks.task import Task

EVALUATOR = '''"""Written by eft: recipes are read here, and scored by the merge's worker (eft/loops/merge_worker.py)."""

from pathlib import Path

from eft.loops import merge_client


def evaluate(program_path, hidden=False):
    return merge_client.evaluate(Path(__file__).resolve().parent, program_path, hidden)
'''
MESSAGE = """You improve a recipe that merges language models. The recipe is YAML in mergekit's dialect. Experts: {experts}; \
all were fine-tuned from one base model, named base. The merge methods are {methods}. An expert's parameters are a weight \
between -5 and 5{density}; each is a number, or a list of at most {layers} numbers that runs from the first layer to the \
last, or a list of {{filter: part of a tensor's name, value: ...}} whose last entry has no filter. An expert that is not \
named is left out. Raise the score: {fitness}. Keep to YAML; no other keys, names or files are allowed."""
SHIPPED = "how much more likely improved edits are than regressed ones, and how likely improved edits are at all"


class Record(configs.Section):
    """Searches of the `ast` mutator that are recorded where no rows are given."""

    suite: str = Field("standard", description="a shipped suite, or a suite's YAML file")
    seeds: int = Field(2, ge=1, description="searches per task")
    iterations: int = Field(20, ge=1, description="candidates per search")
    lookahead: int = Field(4, ge=1, description="edits evaluated per parent")
    prompt_format: str = Field("eft@1", description="of the searches")
    workers: int = Field(2, ge=1, description="searches at once")


class Section(configs.Section, allow_inf_nan=False):
    """Options of the loop `merge`."""

    name: str = Field("experts", pattern=r"[a-z0-9_-]{1,32}", description="of the task: merge/<name>")
    base: str = Field("", description="the model that the experts were made from; default: that of the first adapter")
    experts: dict[str, str] = Field(default_factory=dict, description="alias -> adapter folder, or model folder")
    rows: Path | None = Field(None, description="labelled transitions of validation tasks (eft label); default: recorded")
    fresh: Path | None = Field(None, description="labelled transitions of gate tasks; default: recorded")
    record: Record = Record()
    search_rows: int = Field(240, ge=4, description="rows that decide the search, at most")
    hidden_rows: int = Field(160, ge=4, description="rows of the final score, at most")
    fresh_rows: int = Field(400, ge=4, description="rows that confirm the best recipes, at most")
    max_tokens: int = Field(1024, ge=16, description="longest prompt and reply; longer rows are left out")
    fitness: str = Field("", description="module:function instead of ours: f(model, tokenizer, rows) -> number")
    auc_weight: float = Field(0.5, ge=0, le=1, description="share of the AUC in the fitness; the likelihood has the rest")
    methods: list[str] = Field(default_factory=list, description="only these merge methods")
    device: str = Field("cpu", description="where the worker holds the base: cpu, cuda")
    threads: int = Field(1, ge=1, description="of the worker, on the CPU")
    batch_tokens: int = Field(16384, ge=64, description="tokens that go through the model together")
    timeout_s: float = Field(600.0, gt=0, description="seconds of one evaluation")
    memory_gib: float | None = Field(None, gt=0, description="for the weights; default: nine tenths of what is free")
    scratch: Path | None = Field(None, description="folder for whole merged models; default: below the output")
    scratch_gib: float = Field(64.0, gt=0, description="at most so much there")
    groups: int = Field(1, ge=1, description="CMA-ES and random recipes: groups of layers with weights of their own")
    controls: list[Literal["best_parent", "uniform", "random", "cma"]] = Field(
        default_factory=lambda: ["best_parent", "uniform", "random", "cma"], description="methods without a mutator"
    )
    seed: int = Field(0, description="chooses rows, and what dare drops")


def tasks(section: Section, *, root: Path, out: Path) -> list[Task]:
    """The task of this merge, written below `out`. Raises UsageError or EftError where base, experts, rows or methods
    cannot be used; no model is loaded."""
    experts = merge_experts.check(section.base, section.experts, root, section.memory_gib)
    unknown = [m for m in section.methods if m not in METHODS]
    if unknown:
        from eft.errors import nearest

        raise UsageError(f"there is no merge method '{unknown[0]}'", where="loops: merge: methods", way_out=nearest(unknown[0], METHODS))
    methods = [m for m in section.methods or METHODS if METHODS[m].adapters or experts.full]
    if not methods:
        raise UsageError("none of these methods can merge adapters", where="loops: merge: methods",
                         way_out=", ".join(m for m, about in METHODS.items() if about.adapters))  # fmt: skip
    if experts.full:
        from eft.loops import merge_mergekit

        merge_mergekit.available()
        merge_mergekit.room((section.scratch or out), experts.tensors, section.scratch_gib)
    if section.fitness:
        merge_score.function(section.fitness, root)
    if "cma" in section.controls:
        _cma_there()
    sets = _given_rows(section, root, out, experts)
    options = section.model_dump(mode="json", include={"max_tokens", "fitness", "auc_weight", "methods", "device", "threads",
                                                       "batch_tokens", "timeout_s", "seed"})  # fmt: skip
    about = {
        "version": __version__,
        "experts": experts.to_json(),
        "options": options,
        "rows": merge_rows.digest(sets) if sets else section.model_dump(mode="json", include=ROW_OPTIONS),
        "root": str(root.resolve()),
    }
    measured = {k: v for k, v in options.items() if k not in ("device", "threads", "batch_tokens", "timeout_s")}
    if section.fitness:
        measured["fitness_print"] = merge_score.printed(section.fitness, root)
    named = {k: experts.to_json()[k] for k in ("base_print", "prints")}
    key = hashlib.sha256(json.dumps([named, measured, about["rows"], __version__], sort_keys=True).encode()).hexdigest()[:12]
    work = out / f"{key}.work"
    about["scratch"] = str(((section.scratch and root / section.scratch) or work) / f"scratch-{key}")
    work.mkdir(parents=True, exist_ok=True)
    if sets and not (work / merge_score.ROWS).exists():
        merge_rows.write(work / merge_score.ROWS, sets)
    plan = json.dumps(about, indent=1, sort_keys=True) + "\n"
    if not (work / merge_score.PLAN).exists() or (work / merge_score.PLAN).read_text() != plan:
        manifest.write_text(work / merge_score.PLAN, plan)
    return [write_task(out / key, _files(section, experts, methods, work.name))]


ROW_OPTIONS = {"record", "search_rows", "hidden_rows", "fresh_rows", "max_tokens", "seed"}


def _cma_there() -> None:
    import importlib.util

    if importlib.util.find_spec("cma") is None:
        raise UsageError("the control CMA-ES needs the package cma", way_out="pip install 'evolution-finetuning[merge]', or leave "
                         "cma out of loops: merge: controls")  # fmt: skip


def _given_rows(section: Section, root: Path, out: Path, experts: merge_experts.Experts) -> dict[str, list[merge_rows.Row]] | None:
    """The chosen rows, None where they are to be recorded. Chosen once: telling that tables are the same takes no time."""
    if (section.rows is None) != (section.fresh is None):
        raise UsageError("a merge takes rows and fresh, or neither", where="loops: merge",
                         why="one is of validation tasks, the other of gate tasks; what is missing is recorded only for both")  # fmt: skip
    if section.rows is None or section.fresh is None:
        return None
    tables = [root / section.rows, root / section.fresh]
    about = [section.model_dump(mode="json", include=ROW_OPTIONS), experts.base_print, *map(manifest.fingerprint, tables)]
    file = out / f"rows-{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]}.jsonl"
    if file.exists():
        return merge_rows.read(file)
    sets = choose(section, *tables, experts.base)
    merge_rows.write(file, sets)
    return sets


def choose(section: Section, rows: Path, fresh: Path, base: str) -> dict[str, list[merge_rows.Row]]:
    """The sets of rows out of two tables of labelled transitions."""
    from eft import tokenizers
    from eft.models.identity import tokenizer_place
    from eft.records import read_transitions

    counts = {"search": section.search_rows, "hidden": section.hidden_rows, "fresh": section.fresh_rows}
    return merge_rows.select(
        read_transitions(rows), read_transitions(fresh), counts=counts, seed=section.seed, max_tokens=section.max_tokens,
        tokenizer=tokenizers.load(tokenizer_place(base)),
    )  # fmt: skip


def seed_recipe(experts: list[str], methods: list[str]) -> str:
    """The genome that searches start from: the uniform average."""
    method = next(m for m in ("linear", "task_arithmetic", *methods) if m in methods)
    weights = {} if method == "slerp" else {alias: 1 / len(experts) for alias in experts}
    return text(method, weights, methods)


def _files(section: Section, experts: merge_experts.Experts, methods: list[str], work: str) -> dict[str, str]:
    import yaml

    aliases = list(experts.places)
    dense = any("density" in METHODS[m].per_model for m in methods)
    message = MESSAGE.format(experts=", ".join(aliases), methods=", ".join(methods), layers=max(2, experts.layers),
                             density=", and for ties and dare a density up to 1" if dense else "",
                             fitness=section.fitness or SHIPPED)  # fmt: skip
    config = {
        "max_iterations": 100,
        "diff_based_evolution": True,
        "file_suffix": ".yaml",
        "prompt": {"system_message": message},
        "evaluator": {"timeout": int(section.timeout_s) + 60, "max_retries": 0, "cascade_evaluation": False},
        "task": {"name": f"merge/{section.name}", "domain": "merge", "family": f"merge of {section.name}", "raw_metric": "fitness",
                 "direction": "max", "isolation": "isolated", "timeout_s": section.timeout_s},
    }  # fmt: skip
    about = {"experts": aliases, "layers": experts.layers, "full": experts.full, "methods": methods, "work": work}
    return {
        "initial_program.yaml": seed_recipe(aliases, methods),
        "evaluator.py": EVALUATOR,
        "config.yaml": "# An OpenEvolve configuration, written by eft.\n" + yaml.safe_dump(config, sort_keys=False),
        "merge.json": json.dumps(about, indent=1) + "\n",
    }


@contextlib.contextmanager
def running(section: Section, tasks: list[Task], *, root: Path, out: Path) -> Iterator[None]:
    """A worker that holds the base while evaluations may come; rows are recorded first where none were given. Raises
    EftError where it cannot start."""
    from eft.loops import merge_client

    with contextlib.ExitStack() as stack:
        for task in tasks:
            work, plan = merge_client.plan_of(task.folder)
            if not (work / merge_score.ROWS).exists():
                record_rows(section, root, out, work, plan["experts"]["base"])
            stack.enter_context(merge_client.keeping(work))
        yield


def record_rows(section: Section, root: Path, out: Path, work: Path, base: str) -> None:
    """Record searches on the suite's validation and gate tasks (collect, harvest, label, as processes), and choose rows."""
    from eft import stages
    from eft.tasks.suite import suite_names

    r = section.record
    suite = r.suite if r.suite in suite_names() else str((root / r.suite).resolve())
    told = r.model_dump(mode="json")
    name = hashlib.sha256(json.dumps([told, section.seed], sort_keys=True).encode()).hexdigest()[:12]
    tables = []
    for role in ("validation", "gate"):
        place = (out / f"rows-{name}" / role).resolve()
        steps = {
            "collect": {"suite": suite, "role": role, "seeds": r.seeds, "iterations": r.iterations, "forms": "[diff]",
                        "mutator.lookahead": r.lookahead, "prompt_format": r.prompt_format, "workers": r.workers,
                        "first_seed": 1000 * section.seed, "output": place / "runs"},
            "harvest": {"runs": f"[{place / 'runs'}]", "output": place / "harvest"},
            "label": {"source": place / "harvest", "output": place / "label"},
        }  # fmt: skip
        for verb, options in steps.items():
            stages.run(verb, sets=tuple(f"{k}={v}" for k, v in options.items()))
        tables.append(place / "label")
    merge_rows.write(work / merge_score.ROWS, choose(section, *tables, base))


def controls(section: Section, task: Task, *, root: Path, out: Path, evaluations: int, seeds: list[int]) -> list[Control]:
    """Best parent, uniform average, random recipes and CMA-ES, each with as many evaluations and for every seed."""
    from eft.loops import merge_controls

    return merge_controls.run(section, task, evaluations=evaluations, seeds=seeds)


def confirm(section: Section, task: Task, program: str, *, root: Path, out: Path) -> list[Confirmation]:
    """A recipe against the best parent and the uniform average on the fresh rows, with paired intervals."""
    from eft.loops import merge_controls

    return merge_controls.confirm(section, task, program)


