"""Made-up results of an evaluation with loops: programs, merge and routing, with controls, a bound and confirmations."""

from __future__ import annotations

import dataclasses

import numpy as np
from made_up_results import HOSTILE, SHAPES, results, search

from eft.evaluate.results import Confirmed, Method, Results, TaskInfo

MERGE = (
    TaskInfo("merge/experts", "merge", "max", "auc", 0.55, 0.55, 0.68, "CMA-ES, 2000 evaluations", "isolated", True,
             0.54, 0.66, loop="merge"),
)  # fmt: skip
ROUTING = tuple(
    TaskInfo(f"routing/bench-split{k}", "routing", "max", "share", 52.6, 52.6, 100.0, "oracle", "isolated", True,
             51.0 + k, 100.0, loop="routing", family="splits of bench")
    for k in range(5)
)  # fmt: skip
METHODS = {
    "merge": {"best parent": 0.35, "uniform average": 0.5, "random recipes": 0.45, "CMA-ES": 0.7},
    "routing": {"best single": 0.1, "logistic": 0.3, "kNN": 0.28, "oracle": 1.0},
}


def with_loops(seeds: int = 5, iterations: int = 20, hostile: bool = False, random: int = 5, effect: bool = True) -> Results:
    """`effect` False: everybody draws from the same distribution (for A/A)."""
    rng = np.random.default_rng(random)
    base = results(seeds=seeds, iterations=iterations, hostile=hostile, random=random)
    searches, methods = [], []
    for t in (*MERGE, *ROUTING):
        start, best = t.hidden_start_raw, t.hidden_best_known
        for name in SHAPES:
            for seed in range(seeds):
                s = search(rng, name if effect else "ast", t, seed, iterations)
                done = (s.best_raw - t.start_raw) / (t.best_known - t.start_raw)
                searches.append(dataclasses.replace(
                    s, mutator=name, final_raw=start + 0.9 * done * (best - start), start_final_raw=start,
                    scaffold="best_of_n" if name == "best_of_sft" else "openevolve", sandbox="rlimits",
                ))  # fmt: skip
        for name, share in METHODS[t.loop].items():
            for seed in range(seeds):
                at = share * (1 if name in ("best parent", "oracle") else float(rng.uniform(0.9, 1.1)))
                steps = iterations if name in ("random recipes", "CMA-ES") else 1
                curve = [t.start_raw + at * (k / steps) * (t.best_known - t.start_raw) for k in range(steps + 1)]
                methods.append(Method(name, t.name, seed, start + at * 0.9 * (best - start), tuple(curve), steps,
                                      name == "oracle", HOSTILE if hostile else ""))  # fmt: skip
    confirmed = tuple(
        Confirmed(m, "merge/experts", 2, reference, 0.61, 0.58, 0.03 if m == "kto" else -0.01, 0.01 if m == "kto" else -0.03,
                  0.05 if m == "kto" else 0.01, 480, "transitions of the gate role", HOSTILE if hostile else "")
        for m in ("sft", "kto") for reference in ("best parent", "uniform average")
    )  # fmt: skip
    everything = (*base.searches, *searches)
    return dataclasses.replace(
        base, tasks=(*base.tasks, *MERGE, *ROUTING), searches=everything, planned=len(everything),
        planned_of={"programs": len(base.searches), "merge": seeds * len(SHAPES), "routing": 5 * seeds * len(SHAPES)},
        methods=tuple(methods), confirmed=confirmed,
        troubles={"routing": HOSTILE} if hostile else {},
    )  # fmt: skip
