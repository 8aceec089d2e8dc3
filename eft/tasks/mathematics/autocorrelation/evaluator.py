"""First autocorrelation inequality with 20 steps: make max (f*f) / (integral of f)^2 small for f >= 0 on [-1/4, 1/4].

For heights a_i of n equal steps this is 2 n max_k sum_i a_i a_(k-i) / (sum a)^2; it is 2 for a constant f, and below
1.5029 for the best known f of any number of steps. The scale of heights does not matter.
"""

from eft.tasks import scoring

COUNT = 20


def score(value):
    heights = scoring.numbers(value, COUNT, "heights", 0.0)
    total = sum(heights)
    if total <= 1e-9:
        raise scoring.Invalid("all heights are zero")
    heights = [h / total for h in heights]
    most = 0.0
    for k in range(2 * COUNT - 1):
        most = max(most, sum(heights[i] * heights[k - i] for i in range(max(0, k - COUNT + 1), min(COUNT, k + 1))))
    ratio = 2 * COUNT * most
    return {"combined_score": 1.5 / ratio, "ratio": ratio}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
