"""Do the gates keep their promises where the true values are known? Error rates, power, items, reuse, harm.

    python benchmarks/gate.py [--runs 20000] [--seed 0] [-o gate.md]

Items are ±1 or 0 (binary scores, a share `discordance` of the items differs), values are advantages in points (0.01).
Fixed methods decide by eft.gate.decide, sequential ones by its stopping times, thousands of paths at once. Prints
Markdown; about a minute and a half on one core. Exits with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np

from eft.gate import bounds, regret, sequential
from eft.gate.decide import FIXED, Rule, Verdict, decide

Q = 0.2  # discordance of the tables
# Power that a simulation of these methods had before any of this was written: (n, effect) -> method -> share
TABLED = {
    (64, 0.05): {"tau": 0.769, "mcnemar": 0.139, "midp": 0.213, "bernstein": 0, "betting": 0.063, "gsprt": 0.005},
    (128, 0.05): {"tau": 0.868, "mcnemar": 0.274, "midp": 0.338, "bernstein": 0, "betting": 0.148, "gsprt": 0.08},
    (128, 0.10): {"tau": 0.995, "mcnemar": 0.788, "midp": 0.830, "bernstein": 0, "betting": 0.573, "gsprt": 0.455},
    (256, 0.05): {"tau": 0.951, "mcnemar": 0.503, "midp": 0.546, "bernstein": 0.001, "betting": 0.287, "gsprt": 0.333},
    (512, 0.05): {"tau": 0.995, "mcnemar": 0.784, "midp": 0.809, "bernstein": 0.027, "betting": 0.533, "gsprt": 0.665},
    (512, 0.02): {"tau": 0.845, "mcnemar": 0.227, "midp": 0.255, "bernstein": 0.001, "betting": 0.105, "gsprt": 0.170},
    (1024, 0.05): {"tau": 1.0, "mcnemar": 0.969, "midp": 0.974, "bernstein": 0.374, "betting": 0.832, "gsprt": 0.865},
}
CERTIFIED = ("hoeffding", "bernstein", "bootstrap", "mcnemar", "midp", "betting", "gsprt")


def counts(rng: np.random.Generator, value: np.ndarray, n: int, q: float = Q) -> tuple[np.ndarray, np.ndarray]:
    """(wins, losses) of candidates with these true values on n items each."""
    win, lose = (q + value) / 2, (q - value) / 2
    wins = rng.binomial(n, win)
    return wins, rng.binomial(n - wins, lose / (1 - win))


def paths(rng: np.random.Generator, value: np.ndarray, n: int, q: float = Q) -> np.ndarray:
    """Differences item by item, shape (values, n)."""
    u = rng.random((len(value), n), dtype=np.float32)
    win, lose = ((q + value) / 2)[:, None], ((q - value) / 2)[:, None]
    return (u < win).astype(np.float32) - ((u >= win) & (u < win + lose))


@cache
def fixed(rule: Rule, n: int, wins: int, losses: int) -> bool:
    """Does this rule commit on so many wins and losses among n items?"""
    d = np.concatenate([np.ones(wins), -np.ones(losses), np.zeros(n - wins - losses)])
    return decide(d, rule).verdict is Verdict.COMMIT


def commits(
    rule: Rule, rng: np.random.Generator, value: np.ndarray, n: int, q: float = Q
) -> tuple[np.ndarray, np.ndarray]:
    """(committed, items used) of a rule with a budget of n items, on candidates with these true values."""
    if not rule.sequential:
        wins, losses = counts(rng, value, n, q)
        done = np.fromiter(
            (fixed(rule, n, int(b), int(c)) for b, c in zip(wins, losses, strict=True)), bool, len(value)
        )
        return done, np.full(len(value), n)
    committed, used = np.zeros(len(value), bool), np.zeros(len(value), int)
    size = max(1, 1_000_000 // n)
    for start in range(0, len(value), size):
        part = slice(start, start + size)
        d = paths(rng, value[part], n, q)
        if rule.method == "betting":
            commit, reject = sequential.betting_stops(d, rule.level, rule.beta, rule.margin)
        else:
            commit, reject = sequential.gsprt_stops(d, rule.level, rule.beta, rule.margin, rule.effect)
        ok = (commit > 0) & ((reject == 0) | (commit <= reject))
        used[part] = np.where(ok, commit, np.where(reject > 0, reject, n))
        if rule.undecided == "tau":
            middle = rule.margin + (rule.effect / 2 if rule.method == "gsprt" else 0)
            ok |= (commit == 0) & (reject == 0) & (d.mean(axis=1) > middle)
        committed[part] = ok
    return committed, used


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def errors(rng: np.random.Generator, runs: int, broken: list[str]) -> str:
    """False commits at a true value of exactly 0, the worst harmless-looking case, alpha 0.05."""
    rows = []
    for method in CERTIFIED:
        rule, worst = Rule(method), (0.0, "")
        few = runs if not rule.sequential else max(2000, runs // 4)
        cells = []
        for q in (0.05, 0.2, 0.5):
            rates = [commits(rule, rng, np.zeros(few), n, q)[0].mean() for n in (64, 256, 1024)]
            worst = max(worst, *((r, f"q {q}") for r in rates))
            cells.append(" / ".join(f"{100 * r:.1f}" for r in rates))
        limit = rule.alpha + 3 * math.sqrt(rule.alpha * (1 - rule.alpha) / few)
        if worst[0] > limit:
            broken.append(f"{method}: false commits {worst[0]:.4f} at {worst[1]}, limit {limit:.4f}")
        rows.append([method, *cells, f"{100 * worst[0]:.1f}"])
    return table(["method", "discordance 0.05", "0.2", "0.5", "worst"], rows)


def power(rng: np.random.Generator, runs: int, broken: list[str]) -> str:
    methods = (*FIXED, "betting", "gsprt")
    rows = []
    for (n, effect), known in TABLED.items():
        row: list[object] = [n, f"{100 * effect:.0f}"]
        for method in methods:
            rule = Rule(method)
            few = runs if not rule.sequential else max(2000, runs // 4)
            done, used = commits(rule, rng, np.full(few, effect), n)
            rate = done.mean()
            row.append(f"{rate:.3f} ({used.mean():.0f})" if rule.sequential else f"{rate:.3f}")
            if method in known and rate < known[method] - 3 * math.sqrt(
                max(known[method] * (1 - known[method]), 1e-4) * (1 / few + 1 / 2000)
            ):
                broken.append(f"{method}: power {rate:.3f} at n={n}, effect {effect}, tabulated {known[method]}")
        rows.append(row)
    return table(["items", "true value", *methods], rows)


def savings(rng: np.random.Generator, runs: int, broken: list[str]) -> str:
    """GSPRT against the fixed mid-p test that has its power."""
    rows = []
    for effect in (0.05, 0.1):
        rule = Rule("gsprt", effect=effect)
        done, used = commits(rule, rng, np.full(runs, effect), 3000)
        null, idle = commits(rule, rng, np.zeros(runs), 3000)
        reached = done.mean()
        low, high = 8, 4000
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if bounds.fixed_power(middle, effect, Q, 0.05) >= reached else (middle + 1, high)
        saved = 1 - used.mean() / low
        if saved < 0.3 or 1 - idle.mean() / low < 0.3:
            broken.append(f"gsprt saves only {saved:.0%}")
        rows.append(
            [
                f"{100 * effect:.0f}",
                f"{reached:.3f}",
                f"{100 * null.mean():.1f}",
                low,
                f"{used.mean():.0f}",
                f"{idle.mean():.0f}",
                f"{saved:.0%}",
                f"{1 - idle.mean() / low:.0%}",
            ]
        )
    return table(
        [
            "effect",
            "power",
            "false commits %",
            "mid-p items",
            "GSPRT items, value = effect",
            "value 0",
            "saved",
            "saved at 0",
        ],
        rows,
    )


def reuse(rng: np.random.Generator, runs: int, broken: list[str]) -> str:
    """K branches, none of them better than the root: confirm the winner of screening on what, at which alpha?"""
    rows, n = [], 256
    for k in (1, 4, 16):
        b, c = counts(rng, np.zeros((runs, k)), n)
        winner = (b - c).argmax(axis=1)[:, None]
        b, c = (np.take_along_axis(x, winner, 1)[:, 0] for x in (b, c))
        cells = []
        for rule in (Rule("midp"), Rule("midp", branches=k)):
            cells.append(np.mean([fixed(rule, n, int(x), int(y)) for x, y in zip(b, c, strict=True)]))
        fresh = commits(Rule("midp"), rng, np.zeros(runs), n)[0].mean()
        limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
        if max(cells[1], fresh) > limit or (k > 1 and cells[0] <= limit):
            broken.append(f"reuse, K={k}: {cells}, fresh {fresh}")
        rows.append([k, *(f"{100 * x:.1f}" for x in (*cells, fresh))])
    return table(["branches", "screening evidence again, alpha", "again, alpha / K", "fresh items, alpha"], rows)


def rounds(rng: np.random.Generator, runs: int) -> str:
    """K branches worth N(-1, 3) points, the best by 128 screening items, then 128 fresh ones or none."""
    rows, n = [], 128
    for k in (1, 4, 16):
        value = np.clip(rng.normal(-0.01, 0.03, (runs, k)), -Q + 1e-6, Q - 1e-6)
        b, c = counts(rng, value.ravel(), n)
        seen = ((b - c) / n).reshape(runs, k)
        winner = seen.argmax(axis=1)
        true, shown = value[np.arange(runs), winner], seen.max(axis=1)
        for name, rule in (("screening > 0", None), ("fresh, τ", Rule("tau")), ("fresh, mid-p", Rule("midp"))):
            done = shown > 0 if rule is None else commits(rule, rng, true, n)[0]
            parts = [
                regret.split(v, int(w), float(t), bool(x)) for v, w, t, x in zip(value, winner, true, done, strict=True)
            ]
            rows.append(
                [
                    k,
                    name,
                    f"{100 * shown.mean():+.1f} / {100 * true.mean():+.1f}",
                    f"{100 * (true[done] <= 0).mean():.0f}",
                    f"{100 * np.where(done, true, 0).mean():+.2f}",
                    f"{100 * np.mean([p.selection for p in parts]):.2f}",
                    f"{100 * np.mean([p.confirmation for p in parts]):.2f}",
                ]
            )
    return table(
        [
            "branches",
            "commit if",
            "winner: seen / true",
            "harmful %",
            "gain",
            "selection regret",
            "confirmation regret",
        ],
        rows,
    )


# (share that is harmful, what, rule, budget): the smallest of a grid that reach 16 % and 78 %
SETTINGS = [
    (0.47, "inherit all", None, 0),
    (0.47, "τ-gate", Rule("tau"), 64),
    (0.47, "τ-gate", Rule("tau"), 256),
    (0.47, "τ-gate", Rule("tau", margin=0.002), 640),
    (0.47, "GSPRT ±1.5 points", Rule("gsprt", alpha=0.1, beta=0.2, margin=-0.015, effect=0.03, undecided="tau"), 768),
    (0.77, "inherit all", None, 0),
    (0.77, "τ-gate", Rule("tau"), 64),
    (0.77, "τ-gate", Rule("tau"), 256),
    (0.77, "τ-gate", Rule("tau", margin=0.003), 2048),
    (
        0.77,
        "GSPRT 0.2 ± 2 points",
        Rule("gsprt", alpha=0.02, beta=0.04, margin=-0.018, effect=0.04, undecided="tau"),
        3072,
    ),
]


def harm(rng: np.random.Generator, runs: int, broken: list[str]) -> str:
    """Branches worth N(m, 3 points), m such that the share is harmful."""
    from scipy.stats import norm

    rows = []
    for share, name, rule, budget in SETTINGS:
        value = np.clip(rng.normal(-norm.ppf(share) * 0.03, 0.03, runs), -Q + 1e-6, Q - 1e-6)
        done, used = (np.ones(runs, bool), np.zeros(runs)) if rule is None else commits(rule, rng, value, budget)
        harmful, kept = (value[done] <= 0).mean(), done[value > 0].mean()
        if budget >= 512 and (harmful > 0.16 or kept < 0.78):
            broken.append(f"harm: {name} at {share}: {harmful:.3f} harmful, {kept:.3f} kept")
        margin = (
            "" if rule is None or rule.method != "tau" or not rule.margin else f", τ = {100 * rule.margin:g} points"
        )
        rows.append(
            [
                f"{share:.0%}",
                f"{name}{margin}",
                budget,
                f"{used.mean():.0f}",
                f"{100 * done.mean():.0f}",
                f"{100 * harmful:.1f}",
                f"{100 * kept:.1f}",
                f"{100 * np.where(done, value, 0).mean():+.2f}",
            ]
        )
    return table(
        [
            "harmful",
            "gate",
            "budget",
            "mean items",
            "committed %",
            "harmful among them %",
            "useful kept %",
            "gain a round, points",
        ],
        rows,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rng, runs, broken, started = np.random.default_rng(options.seed), options.runs, [], time.time()
    parts = [
        f"False commits in %, true value 0, alpha 5 %, at 64 / 256 / 1024 items ({runs} decisions a cell, sequential "
        f"ones {max(2000, runs // 4)}):\n\n" + errors(rng, runs, broken),
        f"Power (items used), alpha 5 %, discordance {Q}, true value in points:\n\n" + power(rng, runs, broken),
        "Items that the GSPRT needs, against the fixed mid-p test of the same power:\n\n"
        + savings(rng, max(2000, runs // 4), broken),
        "False commits in % where none of K branches is better, 256 items, mid-p, alpha 5 %:\n\n"
        + reuse(rng, runs, broken),
        "The winner's curse and the regret of a round (points; 128 items each, branches worth N(-1, 3 points)):\n\n"
        + rounds(rng, max(2000, runs // 4)),
        f"Branches worth N(m, 3 points), discordance {Q}:\n\n" + harm(rng, runs, broken),
    ]
    text = "\n\n".join(parts) + "\n"
    print(text)
    print(f"{time.time() - started:.0f} s, seed {options.seed}", file=sys.stderr)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    for line in broken:
        print(f"BROKEN {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
