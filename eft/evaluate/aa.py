"""eft aa: the same mutator against itself, many times over. How often does the comparison see a difference?

    eft aa out/ast_seeds --runs 200
    eft aa out/loops --loop merge

Contract. RESULTS is an evaluation (its folder or results.json) with many seeds of a mutator on every task. Every run
draws, on each task, disjoint seeds of that one mutator for two sides (or more: `comparisons`), compares them exactly
as a report would, and counts what it would have claimed. There is nothing to find, so it may claim something in at most
5 % of the runs. Loops are dealt apart (`loop`); a loop's own controls can be dealt like mutators. Nothing is searched:
recorded searches are dealt anew. Writes a JSON object; exits with an error where the comparison rejects more often than
it says.

Honest limits: the dealt runs share one pool of searches, so the rate is that of this pool; 200 runs tell 5 % from 10 %,
not from 6 %.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from eft import manifest
from eft.config import StageConfig
from eft.errors import EftError, UsageError, nearest
from eft.evaluate import metrics, parts, text
from eft.evaluate import results as tables
from eft.evaluate.combine import shown
from eft.evaluate.compare import Found, adjust, found_by, pair
from eft.evaluate.comparison import Pair
from eft.evaluate.contenders import METHOD, separated
from eft.evaluate.results import Results
from eft.evaluate.significance import ALPHA
from eft.evaluate.stats import wilson
from eft.evaluate.verdict import strength

DOUBT = 0.01  # more rejections than alpha allows, with this chance of being luck: the comparison is wrong

# what is counted -> in words
CLAIMS = {
    "verdict": "the report claims a difference",
    "these": "the interval over seeds leaves out zero",
    "such": "the interval over tasks and seeds leaves out zero",
    "over_searches": "signed-rank test over searches, after Holm",
    "over_tasks": "signed-rank test over tasks, after Holm",
    "by_sign": "sign test, after Holm",
}


class Config(StageConfig):
    """Options of `eft aa`."""

    positional: ClassVar[str | None] = "results"

    results: Path = Field(Path("evaluate"), description="an evaluation's folder, or its results.json")
    output: Path | None = Field(Path("aa.json"), description="the JSON file")
    loop: str = Field("", description="which loop's searches; default: programs, or the first one that there is")
    mutator: str = Field("", description="whose searches; default: the one with the most seeds")
    seeds: int | None = Field(None, ge=2, description="seeds a side; default: as many as the results have, 5 at most")
    comparisons: int = Field(1, ge=1, description="references that the one side is compared with at once")
    runs: int = Field(200, ge=1, description="how often the seeds are dealt")
    draws: int = Field(1000, ge=100, description="bootstrap resamples of an interval")
    seed: int = Field(0, ge=0, description="decides how the seeds are dealt")


def _file(config: Config) -> Path:
    path = config.path(config.results)
    return path / tables.NAME if path.is_dir() else path


def pools(results: Results) -> dict[str, dict[str, list[int]]]:
    """mutator -> task -> the seeds of its finished searches with a final value, sorted."""
    found: dict[str, dict[str, set[int]]] = {}
    for s in results.searches:
        if s.status == "done" and metrics.known(s.best_raw) is not None:
            found.setdefault(s.mutator, {}).setdefault(s.task, set()).add(s.seed)
    return {m: {t: sorted(seeds) for t, seeds in tasks.items()} for m, tasks in found.items()}


def chosen(config: Config, available: Mapping[str, Mapping[str, Sequence[int]]]) -> tuple[str, int]:
    """(the mutator, seeds a side). Raises UsageError where its results have too few seeds to be dealt."""
    sides = 1 + config.comparisons
    if config.mutator and config.mutator not in available:
        way_out = nearest(config.mutator, available) if available else "run 'eft evaluate' first"
        raise UsageError(f"no finished search of '{config.mutator}'", where=_file(config), way_out=way_out)
    most = {m: max(map(len, tasks.values()), default=0) for m, tasks in available.items()}
    name = config.mutator or max(sorted(most), key=lambda m: most[m], default="")
    seeds = config.seeds or min(5, most.get(name, 0) // sides)
    if seeds < 2 or sides * seeds > most.get(name, 0):
        raise UsageError(
            f"{max(seeds, 2)} seeds for each of {sides} sides are more than '{shown(name)}' has", where=_file(config),
            why=f"no task has more than {most.get(name, 0)}",
            way_out=f"run 'eft evaluate --seeds {sides * max(seeds, 2)}' with a mutator that costs nothing (ast)",
        )  # fmt: skip
    return name, seeds


def _side(found: Found, dealt: Mapping[str, Sequence[int]]) -> Found:
    """The searches of the dealt seeds, renumbered, so that they pair with another side's in the order of dealing."""

    def of(table: Mapping) -> dict:
        return {task: {place: table[task][seed] for place, seed in enumerate(seeds) if seed in table.get(task, {})}
                for task, seeds in dealt.items()}  # fmt: skip

    return Found(of(found.gaps), of(found.raws), {}, of(found.searches))  # nothing is claimed of areas


def replay(results: Results, name: str, seeds: int, config: Config) -> list[list[Pair]]:
    """The comparisons of every run. Deterministic; tasks with too few seeds are left out."""
    import numpy as np

    tasks = {t.name: t for t in results.tasks}
    final = {t: bool(metrics.measured_finally(s for s in results.searches if s.task == t)) for t in tasks}
    everything = found_by([s for s in results.searches if s.mutator == name], tasks, final)
    sides = 1 + config.comparisons
    pool = {t: sorted(v) for t, v in sorted(everything.raws.items()) if len(v) >= sides * seeds}
    rng, runs = np.random.default_rng(config.seed), []
    for _ in range(config.runs):
        dealt = {t: rng.permutation(v)[: sides * seeds].tolist() for t, v in pool.items()}
        cut = [{t: v[k * seeds : (k + 1) * seeds] for t, v in dealt.items()} for k in range(sides)]
        own, *others = (_side(everything, c) for c in cut)
        runs.append(adjust([pair("A", own, f"A{k}", other, draws=config.draws) for k, other in enumerate(others, 1)]))
    return runs


def claimed(p: Pair) -> dict[str, bool | None]:
    """What one comparison would have claimed; None where the data allow no such claim at all."""
    d = p.difference
    found: dict[str, bool | None] = {"verdict": strength(p) not in ("open", "same", "none")}
    for key in ("these", "such"):
        interval = getattr(d, key) if d else None
        found[key] = None if interval is None else bool(interval.sign)
    for key in ("over_searches", "over_tasks", "by_sign"):
        test = getattr(p, key)
        found[key] = None if test is None else test.adjusted <= ALPHA
    return found


def summary(runs: Sequence[Sequence[Pair]], alpha: float = ALPHA) -> list[dict[str, Any]]:
    """One row per kind of claim: in how many runs it was made at least once, and whether that is too often.

    Only the intervals are not corrected for several comparisons; everything else must keep `alpha` over a whole run.
    """
    from scipy.stats import binomtest

    rows = []
    for key, words in CLAIMS.items():
        made = [[claimed(p)[key] for p in run] for run in runs]
        told = [any(c for c in run if c is not None) for run in made if any(c is not None for c in run)]
        if not told:
            continue
        low, high = wilson(sum(told), len(told))
        chance = float(binomtest(sum(told), len(told), alpha, alternative="greater").pvalue)
        corrected = len(runs[0]) == 1 or key not in ("these", "such")
        rows.append({"claim": key, "words": words, "rejected": sum(told), "runs": len(told),
                     "share": sum(told) / len(told), "low": low, "high": high,
                     "too_often": corrected and chance < DOUBT})  # fmt: skip
    return rows


def run(config: Config) -> dict[str, Any]:
    """Deal, compare, count. Returns the counts.

    Raises UsageError for results that cannot be dealt, EftError where too much is rejected.
    """
    out = config.out()
    found = tables.load(_file(config))
    loop = config.loop or parts.headliner(found)
    if loop not in parts.loops(found):
        raise UsageError(f"these results have no loop '{loop}'", where=_file(config),
                         way_out=nearest(loop, parts.loops(found)))  # fmt: skip
    results = separated(parts.part(found, loop))
    of_controls = config.mutator and config.mutator in {m.name for m in results.mutators if m.kind == METHOD}
    name, seeds = chosen(config, pools(results if of_controls else parts.searched(results)))
    runs = replay(results, name, seeds, config)
    rows = summary(runs)
    tasks = len(runs[0][0].tasks)
    counts = {"loop": loop, "mutator": name, "seeds": seeds, "tasks": tasks, "comparisons": config.comparisons,
              **{r["claim"]: r["rejected"] for r in rows}, "runs": config.runs}  # fmt: skip
    manifest.write_json(out, {**counts, "alpha": ALPHA, "claims": rows})
    size = f"{text.plural(tasks, 'task')} with a gap, {text.plural(seeds, 'seed')} a side"
    which = "" if loop == tables.PROGRAMS else f" ({loop})"
    runs_of = text.plural(config.runs, "run")
    head = f"{shown(name)} against itself{which}, {size}, {runs_of}, α {text.percent(ALPHA)}"
    print(f"aa: {head}", file=sys.stderr)
    for r in rows:
        share = f"{text.percent(r['share'])} ({text.percent(r['low'])} to {text.percent(r['high'])})"
        print(f"  {r['rejected']:>4} of {r['runs']}  {share:<24} {r['words']}", file=sys.stderr)
    if wrong := [r["words"] for r in rows if r["too_often"]]:
        raise EftError("the comparison rejects more often than its α", where=out, why="; ".join(wrong),
                       way_out="trust no difference in these results; report it as a bug, with the file")  # fmt: skip
    return counts
