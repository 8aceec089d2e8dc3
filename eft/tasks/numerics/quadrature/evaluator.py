"""A quadrature rule on [0, 1] with three nodes: the root mean square of its relative errors on eight functions.

The raw metric is the number of correct digits, log10(1 + 1 / error). The rule is applied here. The functions rise,
fall, bend and oscillate; their integrals are known in closed form.
"""

import math

from eft.tasks import scoring

FUNCTIONS = (
    (lambda x: 1.0, 1.0),
    (lambda x: x, 0.5),
    (lambda x: x * x, 1 / 3),
    (math.exp, math.e - 1),
    (lambda x: 1 / (1 + x), math.log(2)),
    (lambda x: math.cos(2 * x), math.sin(2) / 2),
    (lambda x: math.sqrt(x + 0.2), (1.2**1.5 - 0.2**1.5) / 1.5),
    (lambda x: 1 / (1 + 4 * x * x), math.atan(2) / 2),
)


def score(value):
    rule = scoring.points(value, 3, 2, "rule", -10.0, 10.0)
    if any(not 0 <= node <= 1 for node, _ in rule):
        raise scoring.Invalid("nodes must lie in [0, 1]")
    total = 0.0
    for function, exact in FUNCTIONS:
        total += (sum(weight * function(node) for node, weight in rule) / exact - 1) ** 2
    error = math.sqrt(total / len(FUNCTIONS))
    digits = scoring.digits(error)
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
