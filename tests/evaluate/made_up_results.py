"""Made-up results of an evaluation: plausible, seeded, and as hostile as a model's text can be."""

from __future__ import annotations

import dataclasses

import numpy as np

from eft.evaluate.results import MutatorInfo, Results, Search, Step, TaskInfo

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} {% raw %} \"'&amp; "
    "\u202e\x00 </pre></html>"
)

TASKS = (
    TaskInfo("tour", "routing", "min", "length", 8.0, -8.0, 5.0, "exact solver, this repository"),
    TaskInfo("cache", "policies", "max", "hit_rate", 0.30, 0.30, 0.62, "Belady's optimum"),
    TaskInfo("pid", "control", "min", "cost", 2.0, -2.0, 0.4, "differential evolution, 20,000 evaluations"),
    TaskInfo("filter", "signals", "max", "snr", 0.0, 0.0, None, ""),
)

#        name      kind         role        strength  valid no-op
SHAPES = {
    "base": ("served", "baseline", 0.00, 0.01, 0.00),
    "sft": ("served", "tuned", 0.05, 0.62, 0.20),
    "kto": ("served", "tuned", 0.03, 0.46, 0.42),
    "ast": ("ast", "control", 0.11, 0.92, 0.00),
    "best_of_sft": ("best_of_n", "control", 0.025, 0.60, 0.18),
}


def search(rng: np.random.Generator, name: str, task: TaskInfo, seed: int, iterations: int) -> Search:
    """One search whose best value creeps towards the best known one."""
    kind, _, strength, valid, no_op = SHAPES[name]
    best = task.best_known if task.best_known is not None else 1.0
    gap, curve, improved = 0.0, [0.0], 0
    for _ in range(iterations):
        if rng.random() < valid * 0.35:
            gap, improved = gap + (1 - gap) * strength * rng.exponential(1.5), improved + 1
        curve.append(gap)
    raw = [task.start_raw + min(g, 0.99) * (best - task.start_raw) for g in curve]
    n_valid = max(improved, int(rng.binomial(iterations, valid)))
    n_noop = min(iterations - n_valid, int(rng.binomial(iterations, no_op)))
    left = iterations - n_valid - n_noop
    outcomes = {
        "improved": improved,
        "not_improved": n_valid - improved,
        "no_op": n_noop,
        "unmatched": left // 2,
        "no_edit": left - left // 2 - left // 4,
        "invalid:evaluator_error": left // 4,
    }
    unmatched = "<<<<<<< SEARCH\nx = 3\n=======\nx = 4\n>>>>>>> REPLACE"
    diff = f"--- start\n+++ best\n@@ -1,2 +1,2 @@\n-STEP = 0.1\n+STEP = {0.1 + gap:.3f}  # {HOSTILE[:40]}\n"
    return Search(
        mutator=name,
        task=task.name,
        seed=seed,
        iterations=iterations,
        best_score=raw[-1] * (-1 if task.direction == "min" else 1),
        best_raw=raw[-1],
        curve=tuple(raw),
        proposals=iterations,
        outcomes={k: v for k, v in outcomes.items() if v},
        distinct=int(n_valid * 0.8),
        evaluations=n_valid + 3,
        gain=gap * 1.4,
        prompt_tokens=None if kind == "ast" else 320 * iterations,
        completion_tokens=None if kind == "ast" else 61 * iterations,
        seconds=float(20 + 10 * rng.random()),
        examples={"unmatched": unmatched, "no_edit": "Sure! Here is an idea: " + HOSTILE} if left > 3 else {},
        best_diff=diff if gap else "",
    )


def results(
    seeds: int = 5,
    iterations: int = 20,
    names: tuple[str, ...] = tuple(SHAPES),
    tasks=TASKS,
    hostile=False,
    random: int = 0,
) -> Results:
    """A whole evaluation. `hostile`: models are named like attacks. `random`: seed of the made-up numbers."""
    rng = np.random.default_rng(random)

    def mutator(name: str) -> MutatorInfo:
        kind, role, *_ = SHAPES[name]
        model = HOSTILE if hostile else f"models/{name}" if kind == "served" else ""
        return MutatorInfo(name, kind, role, model, of="sft" if kind == "best_of_n" else "")

    searches = tuple(search(rng, n, t, s, iterations) for n in names for t in tasks for s in range(seeds))
    config = {
        "suite": "embedded", "role": "heldout", "scaffold": "openevolve", "iterations": iterations, "temperature": 0.7,
        "top_p": 0.95, "max_tokens": 256, "prompt_format": "eft@1", "edit": "diff", "workers": 8, "root": "out/demo",
    }  # fmt: skip
    return Results(
        tasks,
        tuple(mutator(n) for n in names),
        searches,
        planned=len(searches),
        seeds=tuple(range(seeds)),
        config=config,
        versions={"eft": "0.1.0", "python": "3.11.2", "openevolve": "0.4.1", "vllm": "0.33.0"},
        command="eft evaluate --config recipes/demo/evaluate.yaml",
        started=1_790_000_000.0,
        seconds=512.0,
    )


def rich(seeds: int = 5, iterations: int = 40, random: int = 3) -> Results:
    """Everything at once: two scaffolds, hidden instances, a format control, the base in two forms, lineage."""
    rng = np.random.default_rng(random)
    domains = ("routing", "policies", "control", "signals", "packing", "numerics")
    tasks = tuple(
        TaskInfo(
            f"{domains[k % 6]}/{word}", domains[k % 6], "min" if k % 2 else "max", "cost" if k % 2 else "value",
            8.0 if k % 2 else 0.3, -8.0 if k % 2 else 0.3, 5.0 if k % 2 else 0.7, "exact solver",
            isolation="contained" if k == 5 else "isolated", has_hidden=k % 3 == 0,
            hidden_start_raw=(8.2 if k % 2 else 0.29) if k % 3 == 0 else None,
            hidden_best_known=(5.3 if k % 2 else 0.68) if k % 3 == 0 else None,
        )
        for k, word in enumerate(("tour", "cache", "pid", "filter", "bins", "roots", "vehicles", "eviction",
                                  "pendulum", "denoise"))
    )  # fmt: skip
    mutators = (
        MutatorInfo("base", "served", "baseline", "base-135m", edit="diff"),
        MutatorInfo("base_rewrite", "served", "baseline", "base-135m", edit="rewrite"),
        MutatorInfo("sft", "served", "tuned", "models/sft", trained_on=("routing", "packing")),
        MutatorInfo("kto", "served", "tuned", "models/kto", trained_on=("routing", "packing", "numerics")),
        MutatorInfo("ast", "ast", "control"),
        MutatorInfo("random_edits", "served", "control", "models/random"),
        MutatorInfo("best_of_kto", "best_of_n", "control", of="kto"),
    )
    shape = {"base_rewrite": "base", "random_edits": "best_of_sft", "best_of_kto": "best_of_sft"}
    searches = []
    for m in mutators:
        for engine in ("",) if m.kind == "best_of_n" else ("openevolve", "tournament"):
            for t in tasks:
                for seed in range(seeds):
                    plain = dataclasses.replace(t, name=t.name)
                    s = search(rng, shape.get(m.name, m.name), plain, seed, iterations)
                    start = t.hidden_start_raw if t.has_hidden else t.start_raw
                    best = t.hidden_best_known if t.has_hidden else t.best_known
                    done = (s.best_raw - t.start_raw) / (t.best_known - t.start_raw)
                    final = s.best_raw if not t.has_hidden else start + 0.8 * done * (best - start)
                    if m.name == "base_rewrite" and rng.random() < 0.5:
                        final = start + 0.02 * (best - start)
                    way = (
                        Step(3, s.curve[3], "--- parent\n+++ proposal 3\n@@ -1,2 +1,2 @@\n-STEP = 0.1\n+STEP = 0.05\n"),
                        Step(9, s.best_raw, f"--- parent\n+++ proposal 9\n@@ -4 +4 @@\n+# {HOSTILE}\n"),
                    )
                    searches.append(dataclasses.replace(
                        s, mutator=m.name, scaffold=engine or "best_of_n", final_raw=final, start_final_raw=start,
                        final_score=final, sandbox="bubblewrap: no network, own file system", lineage=way,
                        outcomes={**s.outcomes, "invalid:timeout": 1, "invalid:syntax": 2}, proposals=iterations + 3,
                    ))  # fmt: skip
    base = results(seeds=1, iterations=iterations)
    return dataclasses.replace(
        base, tasks=tasks, mutators=mutators, searches=tuple(searches), planned=len(searches),
        seeds=tuple(range(seeds)),
        config={**base.config, "suite": "standard", "scaffold": ["openevolve", "tournament"], "iterations": iterations},
    )  # fmt: skip


# Small evaluations by hand: mutator -> task -> best raw value per seed.
MIN = TaskInfo("tour", "", "min", "length", start_raw=8.0, best_known=5.0)
MAX = TaskInfo("hits", "", "max", "share", start_raw=0.2, best_known=0.7)
ZERO = TaskInfo("zero", "", "max", "value", start_raw=0.0, best_known=None)


def evaluation(found: dict[str, dict[str, list[float]]], tasks: tuple[TaskInfo, ...]) -> Results:
    """mutator -> task -> best raw value per seed, as results. `base` is the baseline, `ast` a control."""
    roles = {"base": ("served", "baseline"), "ast": ("ast", "control")}
    mutators = tuple(MutatorInfo(n, *roles.get(n, ("served", "tuned"))) for n in found)
    searches = tuple(
        Search(
            n,
            t,
            seed,
            best_raw=raw,
            best_score=raw,
            proposals=4,
            outcomes={"improved": 1, "no_op": 1, "no_edit": 2},
            gain=0.1,
        )
        for n, by_task in found.items()
        for t, values in by_task.items()
        for seed, raw in enumerate(values)
    )
    return Results(tasks, mutators, searches, planned=len(searches), seeds=(0, 1))
