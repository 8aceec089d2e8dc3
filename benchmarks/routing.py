"""What searches for routing policies reach on a public table, against every control, over repeated splits.

    python benchmarks/routing.py ../shared/data/routing/frontier_cs_llm_router_365.csv [options]
        --splits 20 --seeds 1 --iterations 150 --workers 2 --scaffold tournament
        --settings across,within,named     splits by data set; within data sets; within, and told the data set's name
        --mutators FILE                    YAML of further mutators of `eft evaluate`, by name (default: ast alone)
        --out FOLDER                       kept, so that a killed run goes on (default: a temporary one)
    python benchmarks/routing.py TABLE --speed           policy evaluations a minute, one process, nothing else running

Every split is a task of the loop `routing`: a policy is searched for on its search rows and measured once on its hidden
rows. Values are Frontier-CS's score, accuracy - 150 x mean cost in percent of the oracle. A search starts from the best
single model (chosen on the search rows), so a contender's difference to it is what was found. Two 95 % intervals of its
mean: over these splits of this table, and for fresh prompts (Nadeau and Bengio's correction for splits that share rows;
much wider).
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import yaml

from eft.evaluate import results as tables
from eft.loops import routing
from eft.loops.routing_metrics import over_splits
from eft.mutators import ast_edits
from eft.tasks.evaluate import evaluate

SETTINGS = {
    "across": {"split": "across"},
    "within": {"split": "within"},
    "named": {"split": "within", "names": True},
}
HIDDEN = 0.4


def search(out: Path, section: dict, asked: argparse.Namespace) -> None:
    """`eft evaluate` of the loop alone, or what is left of it."""
    mutators = yaml.safe_load(asked.mutators.read_text()) if asked.mutators else {}
    config = {
        "output": str(out), "loops": {"routing": section}, "mutators": {"ast": {"kind": "ast"}, **mutators},
        "iterations": asked.iterations, "seeds": asked.seeds, "scaffold": asked.scaffold, "workers": asked.workers,
        "prompt_format": "eft@1", "max_tokens": 256, "serving": {"max_model_len": 2048, "dtype": "bfloat16"},
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmark.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    command = [sys.executable, "-m", "eft.cli", "evaluate", "--config", str(out / "benchmark.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def collect(out: Path, section: dict, seeds: int) -> dict[str, list[float]]:
    """Final values by contender, one for every split (the mean over its seeds)."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for s in tables.load(out).searches:
        if s.final_raw is not None:
            values[s.mutator][s.task].append(s.final_raw)
    options = routing.Section(**section)
    folder = out / "loops" / "routing"
    names = []
    for task in routing.tasks(options, root=Path("."), out=folder):
        names.append(task.name)
        for c in routing.controls(options, task, root=Path("."), out=folder, evaluations=0, seeds=range(max(seeds, 5))):
            values[c.name][task.name].append(c.final_raw)
    return {m: [sum(v[n]) / len(v[n]) for n in names] for m, v in values.items() if all(v.get(n) for n in names)}


def show(setting: str, values: dict[str, list[float]]) -> None:
    base = values["best single"]
    print(
        f"\n{setting}: {len(base)} splits\n\n| | % of the oracle | above the best single model | 95 %, these splits | fresh prompts |"
    )
    print("|---|---:|---:|---:|---:|")
    for name, own in sorted(values.items(), key=lambda v: -sum(v[1])):
        told = over_splits([a - b for a, b in zip(own, base, strict=True)], HIDDEN)
        cells = [f"{sum(own) / len(own):.1f}", f"{told['mean']:+.1f}"]
        for low, high in (("low", "high"), ("fresh_low", "fresh_high")):
            cells.append(
                "" if name == "best single" or math.isnan(told[low]) else f"{told[low]:+.1f} to {told[high]:+.1f}"
            )
        print(f"| {name} | " + " | ".join(cells) + " |")


def speed(table: Path, seconds: float = 20.0) -> None:
    """Evaluations of distinct policies, one after the other in one process."""
    import random

    with tempfile.TemporaryDirectory() as folder:
        task = routing.tasks(routing.Section(table=table, splits=1), root=Path("."), out=Path(folder))[0]
        rng, code, count = random.Random(0), task.seed(), 0
        evaluate(task, code)
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            change = ast_edits.propose(task.seed(), rng)
            evaluate(task, change.child)
            count += 1
        took = time.monotonic() - started
    print(f"{count} policies in {took:.1f} s: {60 * count / took:.0f} a minute")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    for name, default in (("splits", 20), ("seeds", 1), ("iterations", 150), ("workers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--settings", default="across,within,named")
    parser.add_argument("--scaffold", default="tournament")
    parser.add_argument("--mutators", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--speed", action="store_true")
    asked = parser.parse_args()
    if asked.speed:
        return speed(asked.table)
    kept = tempfile.TemporaryDirectory() if asked.out is None else None
    out = Path(kept.name) if kept else asked.out
    for setting in asked.settings.split(","):
        section = {"table": str(asked.table.resolve()), "splits": asked.splits, "hidden": HIDDEN, **SETTINGS[setting]}
        started = time.monotonic()
        search(out / setting, section, asked)
        print(f"{setting}: searched in {time.monotonic() - started:.0f} s", file=sys.stderr)
        show(setting, collect(out / setting, section, asked.seeds))


if __name__ == "__main__":
    main()
