"""Smoothing of a noisy signal with outliers, sample by sample: mean squared error against the clean signal, six
signals.

The candidate's process sees the noisy samples only, one by one; the clean signals never leave this one. There are six
hidden signals of the same kind.
"""

import math

from eft.tasks import scoring

SIGNALS, SAMPLES = 6, 150

DRIVER = """
def drive(smooth, signals):
    states = [[samples[0], 0.0] for samples in signals]
    estimates = [[] for _ in signals]
    for samples in zip(*signals):
        states = smooth.many([[sample, level, trend] for sample, (level, trend) in zip(samples, states)])
        for (level, trend), out in zip(states, estimates):
            out.append(float(level))
    return estimates
"""


def signal(seed):
    """(clean, noisy): two waves and a few jumps; noise, and one sample in fifteen an outlier."""
    draw = scoring.stream(10000 + seed)
    slow, fast, jump, clean, noisy = 0.03 + 0.03 * draw(), 0.1 + 0.1 * draw(), 0.0, [], []
    for k in range(SAMPLES):
        if draw() < 0.02:
            jump = 3 * (draw() - 0.5)
        clean.append(2 * math.sin(slow * k) + 0.6 * math.sin(fast * k + seed) + jump)
        noise = 1.6 * (draw() + draw() - 1)
        noisy.append(clean[-1] + noise + (8 * (draw() - 0.5) if draw() < 0.07 else 0.0))
    return clean, noisy


SEARCH = [signal(seed) for seed in range(SIGNALS)]
HIDDEN = [signal(100 + seed) for seed in range(SIGNALS)]


def score(value, signals):
    if not isinstance(value, list) or len(value) != SIGNALS:
        raise scoring.Invalid("one list of estimates per signal is needed")
    total = 0.0
    for (clean, _), estimate in zip(signals, value, strict=True):
        total += sum(
            (a - b) ** 2 for a, b in zip(clean, scoring.numbers(estimate, SAMPLES, "estimates", -1e4, 1e4), strict=True)
        )
    error = total / SIGNALS / SAMPLES
    return {"combined_score": 0.2 / (0.05 + error), "squared_error": error}


def evaluate(program_path, hidden=False):
    signals = HIDDEN if hidden else SEARCH
    samples = [noisy for _, noisy in signals]
    return scoring.evaluate(
        program_path,
        entry="smooth",
        driver=DRIVER,
        apart=True,
        args=(samples,),
        score=lambda value: score(value, signals),
    )
