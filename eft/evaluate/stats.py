"""The two intervals that an evaluation needs, as pure functions on numbers (numpy and scipy only).

`mean_interval`: a mean over tasks of means over seeds, with two 95 % intervals for two different claims.
    *these tasks*: only the seeds are resampled. What more seeds on the very same tasks would give.
    *such tasks*: tasks and seeds are resampled (hierarchical bootstrap). What other tasks of this kind would give.
  The percentile bootstrap gives both their shape. Its size is wrong with few clusters (three tasks: it covers about
  75 %; noisy seeds: they count twice), so it is scaled to Student's t times the standard error of a nested design,
  with Satterthwaite's degrees of freedom (one noisy task among quiet ones is worth the seeds of that task alone).
  The second claim never has a shorter interval than the first. With one task it has none at all.
`rate`: a share of proposals. Proposals of one search depend on each other (they share parents), so Wilson's interval
  is taken at the effective number of proposals: n over the design effect, the cluster-robust variance in units of the
  binomial one.

Everything is deterministic and does not depend on the order of the input.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95
DRAWS = 4000


@dataclass(frozen=True)
class Interval:
    """A point estimate and its bounds, all in the unit of the data. `n`: how many independent units it rests on."""

    point: float
    low: float
    high: float
    n: int

    @property
    def sign(self) -> int:
        """+1 or -1 where the interval lies on one side of zero, else 0."""
        return (self.low > 0) - (self.high < 0)


@dataclass(frozen=True)
class Mean:
    """A mean over tasks of means over seeds. `these`, `such`: its intervals (None where the data allow none)."""

    point: float
    these: Interval | None
    such: Interval | None
    tasks: int
    values: int


@dataclass(frozen=True)
class Rate:
    """`successes` of `trials`, as shares in [0, 1]; `effective`: how many independent trials they are worth."""

    point: float
    low: float
    high: float
    successes: int
    trials: int
    effective: float


def _z(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(0.5 + level / 2))


def _scaled(draws, point: float, error: float, freedom: float, level: float, n: int) -> Interval:
    """The percentile interval of `draws` (resampled means), rescaled to the standard error `error` and Student's t.

    Neither side is shorter than Student's: one huge value among few makes the resampled means lean to its side, and
    would leave out zero for no better reason.
    """
    import numpy as np
    from scipy.stats import t

    spread, reach = float(draws.std()), float(t.ppf(0.5 + level / 2, freedom)) * error
    scale = reach / _z(level) / spread if spread > 0 else 1.0
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    low, high = point + (float(low) - point) * scale, point + (float(high) - point) * scale
    return Interval(point, min(low, point - reach), max(high, point + reach), n)


def error_of_seeds(groups: Sequence) -> tuple[float, float]:
    """(standard error, degrees of freedom) of the mean of the groups' means, the groups being fixed.

    `groups`: one array of values per task. A task with one seed borrows the spread within the others. The degrees of
    freedom are Satterthwaite's, at least 1; 0 where no task has two seeds.
    """
    count, tasks = sum(len(g) for g in groups), len(groups)
    most = count - tasks
    if not most:
        return 0.0, 0.0
    pooled = sum(((g - g.mean()) ** 2).sum() for g in groups) / most
    shares = [(g.var(ddof=1) if len(g) > 1 else pooled) / len(g) for g in groups]
    total = float(sum(shares))
    spread = float(sum(v * v / (len(g) - 1) for v, g in zip(shares, groups, strict=True) if len(g) > 1))
    freedom = min(max(total * total / spread, 1.0), most) if spread > 0 else float(most)
    return math.sqrt(total) / tasks, freedom


def mean_interval(
    values: Mapping[str, Mapping[Hashable, float]], *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> Mean | None:
    """The mean over tasks of means over seeds. `values`: task -> seed -> finite number; tasks without one are ignored.

    Returns None where there is no value at all. `these` needs a task with two seeds, `such` two tasks.
    """
    import numpy as np

    groups = [
        np.array([group[k] for k in sorted(group, key=str)], float) for _, group in sorted(values.items()) if group
    ]
    if not groups:
        return None
    means = np.array([g.mean() for g in groups])
    point, tasks, count = float(means.mean()), len(groups), sum(len(g) for g in groups)
    rng = np.random.default_rng(seed)

    def resampled(group, times: int):
        """`times` means over resampled seeds of one task."""
        return group[rng.integers(len(group), size=(times, len(group)))].mean(axis=1)

    these = such = None
    seeds_error, freedom = error_of_seeds(groups)
    if freedom:
        drawn = np.mean([resampled(g, draws) for g in groups], axis=0)
        these = _scaled(drawn, point, seeds_error, freedom, level, count)
    if tasks > 1:
        sums = np.zeros(draws)
        chosen = rng.integers(tasks, size=(draws, tasks))
        for slot in range(tasks):
            for t in range(tasks):
                rows = np.flatnonzero(chosen[:, slot] == t)
                sums[rows] += resampled(groups[t], len(rows))
        # Task means that agree by luck do not make the seeds' noise go away: it bounds the error from below.
        error = max(float(means.std(ddof=1)) / math.sqrt(tasks), seeds_error)
        such = _scaled(sums / tasks, point, error, tasks - 1, level, tasks)
        if these is not None:
            such = Interval(point, min(such.low, these.low), max(such.high, these.high), tasks)
    return Mean(point, these, such, tasks, count)


def wilson(successes: float, trials: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a share; (0, 1) where there was no trial. Works at 0 and at all."""
    if trials <= 0:
        return 0.0, 1.0
    z, p = _z(level), successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, min(centre - half, p)), min(1.0, max(centre + half, p))


def rate(clusters: Iterable[tuple[int, int]], level: float = LEVEL) -> Rate | None:
    """The pooled share over `clusters` of (successes, trials), one per search; None where there was no trial."""
    pairs = sorted((k, n) for k, n in clusters if n > 0)
    if not pairs:
        return None
    successes, trials, m = sum(k for k, _ in pairs), sum(n for _, n in pairs), len(pairs)
    p = successes / trials
    binomial = p * (1 - p) * trials
    effect = 1.0
    if m > 1 and binomial > 0:
        robust = m / (m - 1) * math.fsum((k - p * n) ** 2 for k, n in pairs)
        effect = max(1.0, robust / binomial)  # below 1 is luck of few clusters, not knowledge
    effective = trials / effect
    low, high = wilson(p * effective, effective, level)
    return Rate(p, min(low, p), max(high, p), successes, trials, effective)
