"""An explicit three-stage Runge-Kutta method: the root mean square of its errors on five initial value problems.

The method is run here, ten steps for each problem, and compared with the known solution after every step. The raw
metric is the number of correct digits, log10(1 + 1 / error). Hidden problems are others.
"""

import math

from eft.tasks import scoring

STEPS = 10
# (derivative, start, length of a step, exact solution at time t); all are autonomous
SEARCH = (
    (lambda y: [-y[0]], [1.0], 0.2, lambda t: [math.exp(-t)]),
    (lambda y: [y[0] * (1 - y[0])], [0.1], 0.4, lambda t: [1 / (1 + 9 * math.exp(-t))]),
    (lambda y: [y[1], -y[0]], [1.0, 0.0], 0.25, lambda t: [math.cos(t), -math.sin(t)]),
    (lambda y: [-y[0] * y[0]], [2.0], 0.2, lambda t: [2 / (1 + 2 * t)]),
    (lambda y: [math.cos(y[0]) ** 2], [-1.0], 0.3, lambda t: [math.atan(t + math.tan(-1.0))]),
)
HIDDEN = (
    (lambda y: [-y[0]], [2.0], 0.3, lambda t: [2 * math.exp(-t)]),
    (lambda y: [y[0] * (1 - y[0])], [0.3], 0.5, lambda t: [3 / (3 + 7 * math.exp(-t))]),
    (
        lambda y: [y[1], -y[0]],
        [0.6, 0.8],
        0.2,
        lambda t: [0.6 * math.cos(t) + 0.8 * math.sin(t), 0.8 * math.cos(t) - 0.6 * math.sin(t)],
    ),
    (lambda y: [-(y[0] ** 3)], [1.0], 0.25, lambda t: [1 / math.sqrt(1 + 2 * t)]),
    (lambda y: [math.sqrt(1 + y[0] ** 2)], [-1.0], 0.2, lambda t: [math.sinh(t + math.asinh(-1.0))]),
)


def score(value, problems):
    if not isinstance(value, list) or len(value) != 3:
        raise scoring.Invalid("the method must be [second, third, weights]")
    (a21,) = scoring.numbers(value[0], 1, "second", -10.0, 10.0)
    a31, a32 = scoring.numbers(value[1], 2, "third", -10.0, 10.0)
    b1, b2, b3 = scoring.numbers(value[2], 3, "weights", -10.0, 10.0)
    total = 0.0
    for derivative, start, h, exact in problems:
        y = start
        for n in range(1, STEPS + 1):
            k1 = derivative(y)
            k2 = derivative([u + h * a21 * s for u, s in zip(y, k1, strict=True)])
            k3 = derivative([u + h * (a31 * s + a32 * t) for u, s, t in zip(y, k1, k2, strict=True)])
            y = [u + h * (b1 * s + b2 * t + b3 * v) for u, s, t, v in zip(y, k1, k2, k3, strict=True)]
            if not all(abs(u) < 1e6 for u in y):
                raise scoring.Invalid("the method is unstable: its solutions grow without bound")
            total += sum((u - v) ** 2 for u, v in zip(y, exact(n * h), strict=True))
    error = math.sqrt(total / len(problems) / STEPS)
    digits = scoring.digits(error)
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path, hidden=False):
    problems = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, score=lambda value: score(value, problems))
