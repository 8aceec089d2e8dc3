"""How often the 95 % intervals hold the truth, simulated: made-up tasks and seeds whose true mean is known."""

from __future__ import annotations

import numpy as np
import pytest

from eft.evaluate.stats import mean_interval

RUNS, DRAWS = 1000, 300
ERROR = 3 * (0.05 * 0.95 / RUNS) ** 0.5  # three standard errors of the simulated coverage


def normal(rng, task, seeds):
    return rng.normal(0, 1, seeds)


def unequal(rng, task, seeds):
    return rng.normal(0, 10.0 ** (-task / 2), seeds)


def zeros(rng, task, seeds):  # most searches find nothing, on both sides
    return np.where(rng.random(seeds) < 0.7, 0.0, rng.normal(0, 1, seeds))


def difference(rng, task, seeds):  # of two skewed gains, as a comparison has them
    return rng.exponential(1, seeds) ** 2 - rng.exponential(1, seeds) ** 2


def skewed(rng, task, seeds):  # one side alone, as a mutator's own gap closed is
    return rng.exponential(1, seeds) - 1


def coverage(noise, tasks: int, seeds: int, between: float) -> tuple[float, float]:
    """(of the interval over seeds, for these tasks; of the interval over tasks and seeds, for such tasks)."""
    rng = np.random.default_rng([tasks, seeds, int(10 * between)])
    here = such = 0
    for _ in range(RUNS):
        centres = rng.normal(0, between, tasks)
        values = {str(t): dict(enumerate(centres[t] + noise(rng, t, seeds))) for t in range(tasks)}
        mean = mean_interval(values, draws=DRAWS)
        assert mean is not None and mean.these is not None
        here += mean.these.low <= centres.mean() <= mean.these.high
        such += mean.such is None or mean.such.low <= 0 <= mean.such.high
    return here / RUNS, such / RUNS


@pytest.mark.slow
@pytest.mark.parametrize("size", [(3, 3), (8, 2), (8, 5), (16, 3)], ids=str)
@pytest.mark.parametrize("noise", [normal, unequal, zeros, difference])
@pytest.mark.parametrize("between", [0.0, 1.0])
def test_intervals_hold_the_truth(noise, size, between):
    here, such = coverage(noise, *size, between)
    print(f"{noise.__name__}, {size[0]} tasks, {size[1]} seeds, spread of tasks {between:g}: {here:.3f} {such:.3f}")
    assert here >= 0.93 - ERROR and such >= 0.94 - ERROR


@pytest.mark.slow
@pytest.mark.parametrize(("size", "least"), [((1, 5), 0.85), ((3, 3), 0.9), ((8, 5), 0.92)], ids=str)
def test_skewed_values_of_few_seeds_cover_less(size, least):
    """Known, and the reason why comparisons go by differences: Student's t of five skewed values covers 88 %."""
    here, _ = coverage(skewed, *size, 0.0)
    print(f"skewed, {size[0]} tasks, {size[1]} seeds: {here:.3f}")
    assert here >= least
