"""A binary sequence of length 27 with low autocorrelation: its merit factor, 27^2 / (2 E), where E is the sum of the
squares of its autocorrelations at all shifts.

The candidate gives 27 numbers; a negative one is -1, any other +1. All is computed in integers.
"""

from eft.tasks import scoring

LENGTH = 27


def score(value):
    signs = [-1 if v < 0 else 1 for v in scoring.numbers(value, LENGTH, "values")]
    energy = sum(sum(a * b for a, b in zip(signs, signs[shift:], strict=False)) ** 2 for shift in range(1, LENGTH))
    merit = LENGTH**2 / (2 * energy)
    return {"combined_score": merit, "merit": merit}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
