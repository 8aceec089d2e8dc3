"""An iteration that finds roots from a function's value, slope and curvature, with at most 12 arithmetic operations:
how exact the roots are after two steps.

The candidate's function is called once, on symbols that record + - * / and negation; the recorded formula comes back as
data and is applied here, so a candidate can neither branch nor see a function, and operations are counted, not claimed.
The raw metric is the mean number of correct digits, log10(1 + 1 / error), over the starts of seven functions; hidden
functions and starts are others. A start that is led
more than 0.8 away from the root is lost, with no digit.
"""

import math

from eft.records import Validity
from eft.tasks import formula, scoring

OPERATIONS, STEPS, FARTHEST, GIVEN = 12, 2, 0.8, 4

DRIVER = formula.SYMBOL + """
def drive(improve):
    y = improve(*[Symbol([name]) for name in ("x", "f", "slope", "curvature")])
    return {"steps": Symbol.steps, "result": y.index if isinstance(y, Symbol) else [float(y)]}
"""


def function(kind, a):
    """(value, slope, curvature) of a function with a root at 0, bent as `a` says; all have a slope around 1 there."""
    return {
        "exponential": lambda x: ((math.exp(a * x) - 1) / a, math.exp(a * x), a * math.exp(a * x)),
        "cubic": lambda x: (x + a * x * x / 2 + x**3 / 6, 1 + a * x + x * x / 2, a + x),
        "sine": lambda x: (x + a * (1 - math.cos(x)), 1 + a * math.sin(x), a * math.cos(x)),
        "logarithm": lambda x: (
            math.log1p(x * x) * a + x, 2 * a * x / (1 + x * x) + 1, 2 * a * (1 - x * x) / (1 + x * x) ** 2
        ),
        "arctangent": lambda x: (
            math.atan(x) + a * x * x / 4, 1 / (1 + x * x) + a * x / 2, -2 * x / (1 + x * x) ** 2 + a / 2
        ),
        "fraction": lambda x: (
            x * (1 + a * x) ** -0.5,
            (1 + a * x / 2) * (1 + a * x) ** -1.5,
            -a * (1 + a * x / 4) * (1 + a * x) ** -2.5,
        ),
        "root": lambda x: (
            math.sqrt(1 + x * x) - 1 + a * x, x / math.sqrt(1 + x * x) + a, (1 + x * x) ** -1.5
        ),
    }[kind]  # fmt: skip


def problems(bends, starts):
    """Every function with its bend, from every start; roots are moved away from 0."""
    kinds = ("exponential", "cubic", "sine", "logarithm", "arctangent", "fraction", "root")
    return [
        (function(kind, bend), 0.3 + 0.2 * k, start)
        for k, (kind, bend) in enumerate(zip(kinds, bends, strict=True))
        for start in starts
    ]


SEARCH = problems((0.6, 0.5, 0.4, 0.3, 0.3, 0.5, 1.2), (-0.55, 0.5, 0.75))
HIDDEN = problems((0.9, 0.8, 0.3, 0.35, 0.2, 0.7, 1.4), (-0.6, -0.35, 0.4, 0.65, 0.8))


def score(value, instances):
    steps = formula.steps_of(value, GIVEN, OPERATIONS)
    count = len(instances)
    xs = [root + start for _, root, start in instances]
    for _ in range(STEPS):
        found = [f(x - root) for x, (f, root, _) in zip(xs, instances, strict=True)]
        given = [xs, *(list(column) for column in zip(*found, strict=True))]
        moved = formula.apply(steps, value.get("result"), given)
        if not all(map(math.isfinite, moved)):
            raise scoring.Invalid("the formula overflows", Validity.NON_FINITE)
        kept = [k for k, y in enumerate(moved) if abs(y - instances[k][1]) <= FARTHEST]
        xs, instances = [moved[k] for k in kept], [instances[k] for k in kept]
        if not kept:
            raise scoring.Invalid("every start is led away from its root")
    digits = sum(scoring.digits(abs(x - root)) for x, (_, root, _) in zip(xs, instances, strict=True)) / count
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path, hidden=False):
    instances = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="improve", driver=DRIVER, score=lambda value: score(value, instances))
