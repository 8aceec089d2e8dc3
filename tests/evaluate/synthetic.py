"""Made-up results of an evaluation: plausible, seeded, and as hostile as a model's text can be."""

from __future__ import annotations

import numpy as np

from eft.evaluate.results import MutatorInfo, Results, Search, TaskInfo

HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} {% raw %} "\'&amp; \u202e\x00 </pre></html>'

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
    _, _, strength, valid, no_op = SHAPES[name]
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
    outcomes = {"improved": improved, "not_improved": n_valid - improved, "no_op": n_noop, "unmatched": left // 2,
                "no_edit": left - left // 2 - left // 4, "invalid:syntax": left // 4}  # fmt: skip
    return Search(
        name, task.name, seed, iterations=iterations, best_score=raw[-1] * (-1 if task.direction == "min" else 1), best_raw=raw[-1], curve=tuple(raw),
        proposals=iterations, outcomes={k: v for k, v in outcomes.items() if v}, distinct=int(n_valid * 0.8), evaluations=n_valid + 3,
        gain=gap * 1.4, prompt_tokens=None if name == "ast" else 320 * iterations,
        completion_tokens=None if name == "ast" else 61 * iterations, seconds=float(20 + 10 * rng.random()),
        examples={"unmatched": "<<<<<<< SEARCH\nx = 3\n=======\nx = 4\n>>>>>>> REPLACE", "no_edit": "Sure! Here is an idea: " + HOSTILE}
        if left > 3 else {},
        best_diff=f"--- start\n+++ best\n@@ -1,2 +1,2 @@\n-STEP = 0.1\n+STEP = {0.1 + gap:.3f}  # {HOSTILE[:40]}\n" if gap else "",
    )  # fmt: skip


def results(seeds: int = 5, iterations: int = 20, names: tuple[str, ...] = tuple(SHAPES), tasks: tuple[TaskInfo, ...] = TASKS,
            hostile: bool = False, random: int = 0) -> Results:  # fmt: skip
    """A whole evaluation."""
    rng = np.random.default_rng(random)
    mutators = tuple(
        MutatorInfo(n, SHAPES[n][0], SHAPES[n][1], model=HOSTILE if hostile else f"models/{n}" if SHAPES[n][0] == "served" else "",
                    of="sft" if n == "best_of_sft" else "")
        for n in names
    )  # fmt: skip
    searches = tuple(search(rng, n, t, s, iterations) for n in names for t in tasks for s in range(seeds))
    return Results(
        tasks, mutators, searches, planned=len(searches), seeds=tuple(range(seeds)),
        config={"suite": "embedded", "role": "heldout", "scaffold": "openevolve", "iterations": iterations, "temperature": 0.7,
                "top_p": 0.95, "max_tokens": 256, "prompt_format": "eft@1", "edit": "diff", "workers": 8, "root": "out/demo"},
        versions={"eft": "0.1.0", "python": "3.11.2", "openevolve": "0.4.1", "vllm": "0.33.0"},
        command="eft evaluate --config recipes/demo/evaluate.yaml", started=1_790_000_000.0, seconds=512.0,
    )  # fmt: skip
