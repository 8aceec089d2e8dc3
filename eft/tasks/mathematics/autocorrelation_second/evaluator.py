"""Second autocorrelation inequality with 20 steps: make |f*f|_2^2 / (|f*f|_1 |f*f|_inf) large for f >= 0.

f*f is linear between its values at whole steps, so the integral of its square is exact: (a^2 + a b + b^2) / 3 per step.
The ratio is below 1; neither scale nor place of f matters.
"""

from eft.tasks import scoring

COUNT = 20


def score(value):
    heights = scoring.numbers(value, COUNT, "heights", 0.0)
    total = sum(heights)
    if total <= 1e-9:
        raise scoring.Invalid("all heights are zero")
    heights = [h / total for h in heights]
    values = [0.0]
    for k in range(2 * COUNT - 1):
        values.append(sum(heights[i] * heights[k - i] for i in range(max(0, k - COUNT + 1), min(COUNT, k + 1))))
    values.append(0.0)
    square = sum((a * a + a * b + b * b) / 3 for a, b in zip(values, values[1:], strict=False))
    ratio = square / sum(values) / max(values)
    return {"combined_score": ratio, "ratio": ratio}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
