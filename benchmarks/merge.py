"""Do searches for merge recipes beat the best parent, the uniform average and CMA-ES, on rows that nobody has seen?

    python benchmarks/merge.py OUT [--seeds 3] [--iterations 100] [--scaffold tournament] [--mutators FILE]
    python benchmarks/merge.py OUT --speed            evaluations a minute, one core, nothing else running
    python benchmarks/merge.py OUT --embedded 3       seconds of so many evaluations of the embedded 135M model

A tiny base (random:qwen3, 130,000 weights) is trained on recorded edits of all training tasks, then one LoRA adapter per
group of domains on the edits of its tasks, one of them at ten times the rate of the others. Recipes are searched for on
transitions of validation tasks and confirmed on transitions of gate tasks. Everything is kept in OUT, and a killed run goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import yaml

from eft import stages
from eft.evaluate import results as tables
from eft.loops import merge, merge_controls
from eft.loops.merge_recipe import text
from eft.search.spec import RESULT, SearchResult
from eft.tasks.suite import load_suite
from eft.tasks.task import find_task

# One expert for each group of domains, from a base that has seen a little of all. The last was trained at ten times the
# rate of the others: a set as it comes from several hands, where an average of all is not what one wants.
BASE = "all"
EXPERTS = {
    "constructions": ("mathematics", "numerics", "packing"),
    "nature": ("physics", "simulators"),
    "programs": ("heuristics", "scheduling", "structures", "contest"),
    "hasty": ("strings", "systems"),
}
RATES = {"hasty": 3e-2}
TINY = "random:qwen3"
TRAIN = {"launch": "cpu", "precision": "fp32", "global_batch": 4, "micro_batch": 4, "max_tokens": 1024, "eval_rows": 8,
         "activation_checkpointing": False, "save_every": 50, "schedule": "cosine", "seed": 1}  # fmt: skip


def stage(verb: str, **options: object) -> None:
    """Run a stage where it has not been done."""
    folder = Path(str(options["output"]))
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_name(f"{folder.name}.{verb}.yaml")
    file.write_text(yaml.safe_dump({k: str(v) if isinstance(v, Path) else v for k, v in options.items()}))
    started = time.monotonic()
    done = stages.run(verb, config=file)
    print(f"{verb} {folder}: {'there already' if done.get('skipped') else f'{time.monotonic() - started:.0f} s'}", file=sys.stderr)


def record(out: Path, role: str, seeds: int, iterations: int, lookahead: int) -> None:
    stage("collect", output=out / role / "runs", suite="standard", role=role, seeds=seeds, iterations=iterations,
          mutator={"lookahead": lookahead}, forms=["diff"], prompt_format="eft@1")  # fmt: skip


def prepare(out: Path) -> dict:
    """Rows, base and experts. Returns the options of the loop."""
    for role, seeds in (("validation", 3), ("gate", 6)):
        record(out, role, seeds, 25, 4)
        stage("harvest", output=out / role / "harvest", runs=[str(out / role / "runs")])
        stage("label", output=out / role / "label", source=out / role / "harvest")
    record(out, "train", 2, 40, 8)
    names, base = load_suite("standard").train, out / "experts" / BASE / "sft/final"
    for expert, domains in {BASE: (), **EXPERTS}.items():
        mine = [t for t in map(find_task, names) if not domains or t.domain in domains]
        runs = sorted(f for t in mine for f in (out / "train/runs").glob(f"{t.name.replace('/', '-')}-diff-s*"))
        place = out / "experts" / expert
        stage("harvest", output=place / "harvest", runs=[str(r) for r in runs])
        stage("label", output=place / "label", source=place / "harvest")
        stage("clean", output=place / "clean", source=place / "label", tokenizer=TINY, max_tokens=1024, suite="standard")
        stage("build", output=place / "build", source=place / "clean", validation=0.2, kto=False)
        more = {"steps": 200, "learning_rate": 3e-3, "model": TINY} if expert == BASE else {
            "steps": 300, "learning_rate": RATES.get(expert, 3e-3), "model": base, "lora": {"rank": 16, "alpha": 32}}  # fmt: skip
        stage("sft", output=place / "sft", dataset=place / "build/sft", **TRAIN, **more)
    return {
        "base": str(base),
        "experts": {e: str(out / "experts" / e / "sft/final") for e in EXPERTS},
        "rows": str(out / "validation/label"),
        "fresh": str(out / "gate/label"),
        "search_rows": 200,
        "fresh_rows": 600,
        "auc_weight": 0.0,  # rows of six tasks make an AUC too noisy to search by; it is shown
    }


def search(out: Path, section: dict, asked: argparse.Namespace) -> None:
    """`eft evaluate` of the loop alone, or what is left of it."""
    mutators = yaml.safe_load(asked.mutators.read_text()) if asked.mutators else {}
    config = {
        "output": str(out), "loops": {"merge": section}, "mutators": {"ast": {"kind": "ast"}, **mutators},
        "iterations": asked.iterations, "seeds": asked.seeds, "scaffold": asked.scaffold, "workers": 1, "prompt_format": "eft@1",
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmark.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    subprocess.run([sys.executable, "-m", "eft.cli", "evaluate", "--config", str(out / "benchmark.yaml")], check=True)


def show(out: Path, section: merge.Section, asked: argparse.Namespace) -> None:
    """Tables: values by contender, and the best recipes against each other on the fresh rows."""
    folder = out / "loops/merge"
    (task,) = merge.tasks(section, root=Path("."), out=folder)
    found = [SearchResult.load(f) for f in sorted(out.rglob(RESULT)) if SearchResult.load(f).task == task.name]
    mutators = sorted({r.mutator for r in found})
    best = {m: max((r for r in found if r.mutator == m), key=lambda r: r.best_raw).best_code for m in mutators}
    with merge.running(section, [task], root=Path("."), out=folder):
        asking = merge_controls.Asking(task)
        names = {f"{alias} alone": genome for alias, genome in asking.parents().items()}
        names = {"base": text("task_arithmetic", dict.fromkeys(asking.experts, 0.0)), **names, "uniform average": asking.uniform()}
        start = asking.fitness(task.seed(), "search")
        climbs = {}
        for seed in range(asked.seeds):
            for name, proposals in (("random recipes", merge_controls._random), ("CMA-ES", merge_controls._cma)):
                curve, genome = merge_controls.climb(asking, task.seed(), start, asked.iterations, proposals(section, asking, seed))
                climbs.setdefault(name, []).append((curve[-1], genome))
        names |= {f"{name}, best of {asked.seeds}": max(c)[1] for name, c in climbs.items()}
        names |= {f"{m}, best of {asked.seeds}": code for m, code in best.items()}
        print(f"\n{len(asking.experts)} experts, {asked.seeds} searches of {asked.iterations} candidates each\n")
        print("| | search rows | hidden rows | fresh rows: fitness | AUC | NLL |\n|---|---:|---:|---:|---:|---:|")
        for name, genome in names.items():
            f = asking.score(genome, "fresh")
            cells = [asking.fitness(genome, "search"), asking.fitness(genome, "hidden"), f["fitness"], f["auc"], f["nll"]]
            print(f"| {name} | " + " | ".join(f"{c:.4f}" for c in cells) + " |")
        print("\n| fresh rows | against | difference | 95 % |\n|---|---|---:|---:|")
        references = {"best parent": asking.best_parent(), "uniform average": asking.uniform()}
        references |= {n: g for n, g in names.items() if n.startswith("CMA")}
        ours = [n for n in names if n.split(",")[0] in (*mutators, "CMA-ES", "random recipes")]
        for name in ours:
            for reference, genome in references.items():
                if reference != name:
                    c = merge_controls.against(asking, names[name], genome, reference, section.auc_weight)
                    print(f"| {name} | {reference} | {c.difference:+.4f} | {c.low:+.4f} to {c.high:+.4f} |")
        for m, code in best.items():
            print(f"\nThe best recipe of {m}:\n\n```yaml\n{code.strip()}\n```")
    loaded = tables.load(out)
    for m in mutators:
        values = [s.final_raw for s in loaded.searches if s.mutator == m and s.final_raw is not None]
        print(f"\n{m}: {sum(values) / len(values):.4f} on the hidden rows, mean of {len(values)} searches")
    for name, c in climbs.items():
        print(f"{name}: {sum(value for value, _ in c) / len(c):.4f} on the search rows, mean of {len(c)}")


def speed(out: Path, section: merge.Section, count: int = 60) -> None:
    """Distinct recipes, one after the other, as a search asks for them."""
    from eft.tasks.evaluate import evaluate

    (task,) = merge.tasks(section, root=Path("."), out=out / "speed")
    with merge.running(section, [task], root=Path("."), out=out / "speed"):
        evaluate(task, task.seed())
        for method in ("task_arithmetic", "ties"):
            started = time.monotonic()
            for k in range(count):
                aliases = list(section.experts)
                evaluate(task, text(method, {a: {"weight": 0.1 + (k + i + time.time() % 1) / 200} for i, a in enumerate(aliases)}))
            took = time.monotonic() - started
            print(f"{method}: {count} recipes in {took:.1f} s: {60 * count / took:.0f} a minute")


def embedded(out: Path, section: dict, count: int) -> None:
    """Adapters with random weights on the embedded model: what an evaluation costs does not depend on the numbers."""
    import torch
    from peft import LoraConfig, get_peft_model

    from eft.models.load import load_model, write_base

    name = "embedded:smollm2-135m"
    for alias in ("one", "two"):
        if not (out / "embedded" / alias / "adapter_config.json").exists():
            torch.manual_seed(len(alias))
            lora = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
            get_peft_model(load_model(name), lora).save_pretrained(out / "embedded" / alias)
            write_base(out / "embedded" / alias, name)
    options = {**section, "base": name, "experts": {a: str(out / "embedded" / a) for a in ("one", "two")}, "threads": 2}
    own = merge.Section(**{**options, "search_rows": 24, "hidden_rows": 24, "fresh_rows": 24})
    (task,) = merge.tasks(own, root=Path("."), out=out / "embedded")
    started = time.monotonic()
    with merge.running(own, [task], root=Path("."), out=out / "embedded"):
        print(f"started in {time.monotonic() - started:.0f} s")
        asking = merge_controls.Asking(task)
        for k in range(count):
            started = time.monotonic()
            asking.score(text("task_arithmetic", {"one": 0.01 * k + time.time() % 1 / 1000, "two": 0.01}), "search")
            took = time.monotonic() - started
            print(f"24 rows: {took:.1f} s; 240 rows, 100 evaluations: {took * 10 * 100 / 3600:.1f} h")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--scaffold", default="tournament")
    parser.add_argument("--mutators", type=Path)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--embedded", type=int, default=0)
    parser.add_argument("--prepare", action="store_true", help="record and train, and no more")
    asked = parser.parse_args()
    out = asked.out.resolve()
    options = prepare(out)
    if asked.prepare:
        return None
    if asked.embedded:
        return embedded(out, options, asked.embedded)
    if asked.speed:
        return speed(out, merge.Section(**options))
    search(out / "evaluate", options, asked)
    return show(out / "evaluate", merge.Section(**options), asked)


if __name__ == "__main__":
    main()
