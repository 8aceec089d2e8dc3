"""Hadamard's problem for order 15: the largest determinant of a matrix of signs.

The candidate gives 15 x 15 numbers; a negative one is -1, any other +1. The determinant is computed in integers, by
Bareiss' elimination; it is a multiple of 2^14, and the raw metric is |determinant| / 2^14. The score is a logarithm, a
little above 0 for singular matrices.
"""

import math

from eft.tasks import scoring

ORDER, BEST = 15, 25515


def determinant(rows):
    """Of a square matrix of integers (which is used up): exact, by fraction-free elimination."""
    sign, last = 1, 1
    for k in range(len(rows) - 1):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            rows[k], rows[pivot] = rows[pivot], rows[k]
            sign = -sign
        for i in range(k + 1, len(rows)):
            for j in range(k + 1, len(rows)):
                rows[i][j] = (rows[i][j] * rows[k][k] - rows[i][k] * rows[k][j]) // last
        last = rows[k][k]
    return sign * rows[-1][-1]


def score(value):
    matrix = scoring.points(value, ORDER, ORDER, "rows")
    size = abs(determinant([[-1 if v < 0 else 1 for v in row] for row in matrix])) >> (ORDER - 1)
    return {"combined_score": math.log(1.5 + size) / math.log(1.5 + BEST), "determinant": float(size)}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
