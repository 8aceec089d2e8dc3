"""Which mutator takes the next step: policies fitted on recorded searches, then confirmed in live ones.

    python benchmarks/routing_steps.py [--out FOLDER] [--iterations 30] [--seeds 2] [--splits 4] [--live 4] [--workers 2]

1. Records searches of `ast` and of `ast` with lookahead (a step of which costs several evaluations) on the embedded
   suite's training tasks. 2. Searches for policies on the recorded steps (loop `routing`, setting `searches`; half of the
   tasks hidden), where a second of asking has a price. 3. Runs live searches on the held-out tasks with the policy that was
   best on its search games, in a mutator of kind `routed`, beside each mutator alone, paired by task and seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import yaml

from eft.evaluate import results as tables
from eft.loops import routing
from eft.loops.routing_metrics import over_splits
from eft.search.spec import RESULT, SearchResult
from eft.tasks.task import find_task, gap_closed

ARMS = {"ast": {"kind": "ast"}, "look4": {"kind": "ast", "lookahead": 4}}


def run(out: Path, **options: object) -> None:
    """`eft evaluate`, or what is left of it."""
    out.mkdir(parents=True, exist_ok=True)
    base = {"output": str(out), "scaffold": "tournament", "prompt_format": "eft@1", "baseline": "ast"}
    (out / "benchmark.yaml").write_text(yaml.safe_dump({**base, **options}, sort_keys=False))
    started = time.monotonic()
    command = [sys.executable, "-m", "eft.cli", "evaluate", "--config", str(out / "benchmark.yaml")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{out.name}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def seconds_of(folder: Path) -> dict[str, dict[tuple[str, int], float]]:
    """Seconds of asking, by mutator, task and seed."""
    found: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for file in folder.glob(f"*/*/*/{RESULT}"):
        r = SearchResult.load(file)
        found[r.mutator][r.task, r.seed] = sum(c.seconds or 0.0 for c in r.candidates)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("iterations", 30),
        ("seeds", 2),
        ("splits", 4),
        ("live", 4),
        ("workers", 2),
        ("proposals", 100),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--price", type=float, default=0.002, help="share of the way that a second of asking costs")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    kept = tempfile.TemporaryDirectory() if asked.out is None else None
    out = Path(kept.name) if kept else asked.out.resolve()
    shared = {"workers": asked.workers}
    run(
        out / "recorded",
        mutators=ARMS,
        suite="embedded",
        role="train",
        iterations=asked.iterations,
        seeds=asked.seeds,
        **shared,
    )

    section = {"searches": str(out / "recorded"), "splits": asked.splits, "hidden": 0.5, "step_price": asked.price,
               "plays": 3, "budget": asked.iterations}  # fmt: skip
    run(
        out / "fitted",
        mutators={"ast": {"kind": "ast"}},
        loops={"routing": section},
        iterations=asked.proposals,
        seeds=1,
        **shared,
    )
    values: dict[str, list[float]] = defaultdict(list)
    results = tables.load(out / "fitted")
    best: tuple[float, Path | None] = (-np.inf, None)
    options = routing.Section(**section)
    folder = out / "fitted" / "loops" / "routing"
    for task in routing.tasks(options, root=Path("."), out=folder):
        own = next(s for s in results.searches if s.task == task.name)
        values["ast's policies"].append(own.final_raw)
        gap = gap_closed(task, own.best_raw) or 0.0
        place = next((out / "fitted" / "ast").glob(f"{task.name.replace('/', '-')}/*/{RESULT}"))
        best = max(best, (gap, place), key=lambda b: b[0])
        for c in routing.controls(options, task, root=Path("."), out=folder, evaluations=0, seeds=range(5)):
            values[c.name].append(c.final_raw) if c.seed == 0 or c.name == "random" else None
    print(
        f"\nGames on held-out tasks, {asked.splits} splits: percent of the way, minus {100 * asked.price:g} for a second\n"
    )
    count = asked.splits
    for name, own in sorted(values.items(), key=lambda v: -np.mean(v[1])):
        means = np.array(own).reshape(count, -1).mean(axis=1)
        told = over_splits(means - np.array(values["best single"]), 0.5)
        print(f"| {name} | {means.mean():.1f} | {told['mean']:+.1f} ({told['low']:+.1f} to {told['high']:+.1f}) |")

    policy = out / "policy.py"
    policy.write_text(json.loads(best[1].read_text())["best_code"])
    mutators = {**ARMS, "routed": {"kind": "routed", "policy": str(policy), "among": list(ARMS)}}
    run(
        out / "live",
        mutators=mutators,
        suite="embedded",
        role="heldout",
        iterations=asked.iterations,
        seeds=asked.live,
        **shared,
    )
    spent, gaps = seconds_of(out / "live"), defaultdict(lambda: defaultdict(list))
    infos = {t.name: find_task(t.name) for t in tables.load(out / "live").tasks}
    for s in tables.load(out / "live").searches:
        gap = gap_closed(infos[s.task], s.final_raw, hidden=True)
        gaps[s.mutator][s.task].append(100 * (gap or 0.0))
    print(f"\nLive, held-out tasks: gap closed in {asked.iterations} steps, seconds of asking, and both together\n")
    worths = {}
    for m, by_task in gaps.items():
        time_ = float(np.mean(list(spent[m].values())))
        task_means = np.array([np.mean(v) for _, v in sorted(by_task.items())])
        cost = np.array([np.mean([v for (t, _), v in spent[m].items() if t == name]) for name in sorted(by_task)])
        worths[m] = task_means - 100 * asked.price * cost
        print(f"| {m} | {task_means.mean():.1f} % | {time_:.1f} s | {worths[m].mean():.1f} |")
    for m in ARMS:
        told = over_splits(list(worths["routed"] - worths[m]), 0.5)
        print(
            f"routed - {m}: {told['mean']:+.1f} ({told['low']:+.1f} to {told['high']:+.1f}), over {len(worths[m])} tasks"
        )


if __name__ == "__main__":
    main()
