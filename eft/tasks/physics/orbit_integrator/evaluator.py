"""A splitting integrator with five drifts and four kicks per step, on orbits around a sun: how exact it is.

Each step moves the planet by the velocity (drift), then changes the velocity by the pull (kick), in turn. The orbits
run for one period; after every eighth step the place is compared with Kepler's. The raw metric is the number of
correct digits, log10(1 + 1 / root mean square error). Hidden orbits have other eccentricities and steps.
"""

import math

from eft.tasks import scoring

SEARCH = ((0.1, 40), (0.3, 56), (0.5, 96))  # eccentricity, steps per period
HIDDEN = ((0.0, 32), (0.2, 48), (0.4, 72), (0.55, 120))


def kepler(eccentricity, mean):
    """The place on an orbit with semi-major axis 1 at this mean anomaly (starts nearest to the sun)."""
    angle = mean + eccentricity * math.sin(mean)
    for _ in range(30):
        angle -= (angle - eccentricity * math.sin(angle) - mean) / (1 - eccentricity * math.cos(angle))
    return math.cos(angle) - eccentricity, math.sqrt(1 - eccentricity**2) * math.sin(angle)


EXACT = {(e, n): [kepler(e, 2 * math.pi * k / n) for k in range(8, n + 1, 8)] for e, n in (*SEARCH, *HIDDEN)}


def score(value, orbits):
    if not isinstance(value, list) or len(value) != 2:
        raise scoring.Invalid("the method must be [drifts, kicks]")
    drifts = scoring.numbers(value[0], 5, "drifts", -5.0, 5.0)
    kicks = scoring.numbers(value[1], 4, "kicks", -5.0, 5.0)
    total = count = 0
    for eccentricity, steps in orbits:
        h = 2 * math.pi / steps
        x, y = 1 - eccentricity, 0.0
        u, v = 0.0, math.sqrt((1 + eccentricity) / (1 - eccentricity))
        exact = EXACT[eccentricity, steps]
        for k in range(1, steps + 1):
            for drift, kick in zip(drifts, (*kicks, 0.0), strict=True):
                x += h * drift * u
                y += h * drift * v
                pull = h * kick / (x * x + y * y + 1e-9) ** 1.5
                u -= pull * x
                v -= pull * y
            if not abs(x) + abs(y) + abs(u) + abs(v) < 1e6:
                raise scoring.Invalid("the planet is lost: the method is unstable")
            if k % 8 == 0:
                total += (x - exact[k // 8 - 1][0]) ** 2 + (y - exact[k // 8 - 1][1]) ** 2
                count += 1
    digits = scoring.digits(math.sqrt(total / count))
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path, hidden=False):
    orbits = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, score=lambda value: score(value, orbits))
