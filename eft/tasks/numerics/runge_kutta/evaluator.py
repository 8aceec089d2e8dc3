"""An explicit three-stage Runge-Kutta method: the root mean square of its errors on four initial value problems.

The method is run here, ten steps for each problem. Problems are autonomous and have known solutions.
"""

import math

from eft.tasks import scoring

# (derivative, start, length of a step, exact end after ten steps)
PROBLEMS = (
    (lambda y: [-y[0]], [1.0], 0.2, [math.exp(-2.0)]),
    (lambda y: [y[0] * (1 - y[0])], [0.1], 0.4, [1 / (1 + 9 * math.exp(-4.0))]),
    (lambda y: [y[1], -y[0]], [1.0, 0.0], 0.25, [math.cos(2.5), -math.sin(2.5)]),
    (lambda y: [-y[0] * y[0]], [2.0], 0.2, [2.0 / (1 + 2 * 2.0)]),
)


def score(value):
    if not isinstance(value, list) or len(value) != 3:
        raise scoring.Invalid("the method must be [second, third, weights]")
    (a21,) = scoring.numbers(value[0], 1, "second", -10.0, 10.0)
    a31, a32 = scoring.numbers(value[1], 2, "third", -10.0, 10.0)
    b1, b2, b3 = scoring.numbers(value[2], 3, "weights", -10.0, 10.0)
    total = 0.0
    for derivative, start, h, exact in PROBLEMS:
        y = start
        for _ in range(10):
            k1 = derivative(y)
            k2 = derivative([u + h * a21 * s for u, s in zip(y, k1, strict=True)])
            k3 = derivative([u + h * (a31 * s + a32 * t) for u, s, t in zip(y, k1, k2, strict=True)])
            y = [u + h * (b1 * s + b2 * t + b3 * v) for u, s, t, v in zip(y, k1, k2, k3, strict=True)]
        total += sum((u - v) ** 2 for u, v in zip(y, exact, strict=True))
    if not total < 1e12:
        raise scoring.Invalid("the method is unstable: its solutions grow without bound")
    error = math.sqrt(total / len(PROBLEMS))
    return {"combined_score": scoring.digits(error), "rms_error": error}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
