"""Sixty-four real updates of the tiny model, audited: what inheriting them would have done, with a gate and without.

    python benchmarks/audit.py OUT [--updates 64] [--items 128] [--audit-items 384]

Searches of the `ast` teacher on training tasks give data; a root is trained on them from random weights; every update
is a LoRA (rank 8, at most 16 steps) of that root on a random part of the data, with a random learning rate, by SFT or
KTO. Everything is real: stages, trainings, log-likelihoods. Resumable; most of the time goes into the log-likelihoods.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import time
from collections import defaultdict
from pathlib import Path

from eft import manifest, stages
from eft.gate import native
from eft.gate.audit import NATIVE, Config, run
from eft.gate.run import Recording
from eft.gate.score import model_state
from eft.records import read_transitions

MODEL = "random:qwen3"
COMMON = {
    "launch": "cpu",
    "precision": "fp32",
    "global_batch": 8,
    "micro_batch": 4,
    "max_tokens": 1536,
    "eval_rows": 4,
    "activation_checkpointing": False,
    "save_every": 100,
}


def data(out: Path) -> None:
    """Searches on training tasks, and the training sets that follow from them."""
    chain = {
        "collect": {
            "role": "train",
            "seeds": 3,
            "iterations": 12,
            "mutator.lookahead": 8,
            "forms": "[diff]",
            "tasks": "[numerics/quadrature, numerics/bessel, heuristics/knapsack, heuristics/job_priority, "
            "mathematics/sphere_points, mathematics/circle_packing]",
            "output": out / "runs",
        },
        "harvest": {"runs": f"[{out / 'runs'}]", "output": out / "harvest"},
        "label": {"source": out / "harvest", "output": out / "label"},
        "clean": {"source": out / "label", "output": out / "clean", "tokenizer": MODEL, "max_tokens": 1536},
        "build": {"source": out / "clean", "output": out / "build", "validation": 0.2},
    }
    for verb, options in chain.items():
        stages.run(verb, sets=tuple(f"{k}={v}" for k, v in options.items()))


def train(verb: str, out: Path, dataset: Path, model: str, **changes) -> None:
    """One training in this process (a launch of its own would take longer than the training)."""
    from eft.train import kto, launch, sft

    module = {"sft": sft, "kto": kto}[verb]
    values = {**COMMON, "root": Path("."), "output": out, "dataset": dataset, "model": model, **changes}
    config = module.Config(**values)
    if manifest.read(out) is not None:
        return
    config.check()
    os.environ |= launch.environment(1)
    module.train(config, launch.Asked("cpu", cpu=True))


def part(source: Path, out: Path, rng: random.Random, labelled: bool) -> Path:
    """A random part of a training set: up to 48 rows of one or two tasks."""
    import pyarrow.parquet as pq

    table = pq.read_table(source / "train.parquet")
    names = sorted(set(table["task"].to_pylist()))
    chosen = set(rng.sample(names, rng.choice([1, 2])))
    rows = [i for i, t in enumerate(table["task"].to_pylist()) if t in chosen]
    rows = sorted(rng.sample(rows, min(48, len(rows))))
    out.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.take(rows), out / "train.parquet")
    pq.write_table(
        pq.read_table(source / "validation.parquet").slice(0, 4 if not labelled else 8), out / "validation.parquet"
    )
    return out


def updates(out: Path, count: int) -> list[Path]:
    """The update folders. Their recipes follow from their numbers alone."""
    made = []
    for k in range(count):
        rng = random.Random(f"update {k}")
        verb = "kto" if k % 4 == 3 else "sft"
        rate = 10 ** rng.uniform(-3.5, -1.7)
        folder, parts = out / "updates" / f"{k:03d}", out / "parts" / f"{k:03d}"
        if manifest.read(folder) is None:
            started = time.time()
            part(out / "build" / verb, parts, rng, verb == "kto")
            train(
                verb,
                folder,
                parts,
                str(out / "root" / "final"),
                learning_rate=rate,
                steps=rng.choice([4, 8, 16]),
                lora={"rank": 8, "alpha": 16},
                seed=k,
            )
            print(
                f"update {k}: {verb}, learning rate {rate:.1e}, {time.time() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        made.append(folder / "final")
    return made


def natives(out: Path, made: list[Path]) -> None:
    """native.json of every update: its own training's signals, on the states that it trained on."""
    import pyarrow.parquet as pq

    from eft import tokenizers
    from eft.models.load import load_model

    states: dict[str, list] = defaultdict(list)
    for row in read_transitions(out / "label"):
        if row.prompt_user and row.child_score is not None and row.response:
            states[row.prompt_user].append((row.response, row.child_score, row.prompt_system))
    root = None
    for folder in made:
        if (folder / NATIVE).exists():
            continue
        started = time.time()
        root = root or (load_model(str(out / "root" / "final")).eval(), tokenizers.load(str(out / "root" / "final")))
        rows = pq.read_table(out / "parts" / folder.parent.name / "train.parquet").to_pylist()[:12]
        shown, targets = [], []
        for row in rows:
            replies = states.get(row["prompt"][-1]["content"], [])
            shown.append({"messages": row["prompt"], "replies": sorted({(r, s) for r, s, _ in replies})})
            targets.append({"messages": row["prompt"], "answer": row["completion"][0]["content"]})
        update = (load_model(str(folder)).eval(), root[1])
        found = native.measure(root, update, shown, targets)
        manifest.write_json(folder / NATIVE, {**dataclasses.asdict(found), "accepted": found.accepted})
        print(f"{folder}: {found} {time.time() - started:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--updates", type=int, default=64)
    parser.add_argument("--items", type=int, default=128)
    parser.add_argument("--audit-items", type=int, default=384)
    parser.add_argument("--suite", default="embedded")
    parser.add_argument("--seeds", type=int, default=60, help="searches per gate task that the pool is recorded from")
    options = parser.parse_args()
    out, started = options.out.resolve(), time.time()
    out.mkdir(parents=True, exist_ok=True)
    data(out)
    train("sft", out / "root", out / "build" / "sft", MODEL, learning_rate=3e-3, steps=60)
    made = updates(out, options.updates)
    natives(out, made)
    names = [str(out / "root" / "final"), *map(str, made)]
    assert len({model_state(n).fingerprint for n in names}) == len(names)
    config = Config(
        states=names,
        suite=options.suite,
        pool=out / "pool",
        kind="judge",
        items=options.items,
        audit_items=options.audit_items,
        output=out / "audit",
        record=Recording(seeds=options.seeds, iterations=12, lookahead=6, shares=(0.05, 0.25, 0.7)),
    )
    report = run(config)
    with open(out / "hours.jsonl", "a") as f:  # resumed runs add up
        f.write(json.dumps({"seconds": round(time.time() - started)}) + "\n")
    off = [n["off_frontier"] for n in report["native"] if n["off_frontier"] is not None]
    print(
        f"off the frontier on independent replies: {sum(off) / len(off):.0%}; {time.time() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
