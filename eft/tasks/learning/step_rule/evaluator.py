"""A rule for the steps of gradient descent: how far it gets in 25 steps on five smooth functions of two variables.

The mean over the functions of the share of the starting height (above the minimum) that is left, in a logarithm. The
candidate hands back its steps; the path is followed again here. Hidden functions are of the same kinds, with other
shapes and starts.
"""

import math

from eft.tasks import scoring

STEPS, BIGGEST_STEP = 25, 3.0

FUNCTIONS = """
import math

def bowl(a, b, turn):
    c, s = math.cos(turn), math.sin(turn)
    def height(x, y):
        u, v = c * x + s * y, c * y - s * x
        return a * u * u + b * v * v
    def slope(x, y):
        u, v = c * x + s * y, c * y - s * x
        return 2 * (a * u * c - b * v * s), 2 * (a * u * s + b * v * c)
    return height, slope

def valley(a):
    def height(x, y):
        return (1 - x) ** 2 + a * (y - x * x) ** 2
    def slope(x, y):
        return -2 * (1 - x) - 4 * a * x * (y - x * x), 2 * a * (y - x * x)
    return height, slope

def bend(a):
    def height(x, y):
        return math.sqrt(1 + x * x) + math.sqrt(1 + a * y * y) - 2
    def slope(x, y):
        return x / math.sqrt(1 + x * x), a * y / math.sqrt(1 + a * y * y)
    return height, slope
"""

# A candidate's process gets one of these lists, not both.
SEARCH = """
PROBLEMS = [
    (*bowl(0.5, 2.0, 0.4), (2.0, -1.5)),
    (*bowl(0.2, 5.0, 1.1), (-2.0, 1.0)),
    (*bowl(1.0, 1.5, 0.0), (1.5, 2.5)),
    (*valley(4.0), (-0.8, 0.6)),
    (*bend(6.0), (2.5, -1.5)),
]
"""
HIDDEN = """
PROBLEMS = [
    (*bowl(0.4, 2.5, 0.7), (-1.5, 2.0)),
    (*bowl(0.3, 4.0, 2.3), (2.5, 0.5)),
    (*bowl(0.8, 1.2, 1.5), (-1.0, -2.5)),
    (*valley(3.0), (-0.5, 1.2)),
    (*bend(4.0), (-2.0, 2.0)),
    (*bowl(0.25, 3.0, 2.9), (1.0, 2.0)),
]
"""

DRIVER = f"""
def drive(step, functions):
    scope = {{}}
    exec(functions, scope)
    problems = scope["PROBLEMS"]
    places = [start for _, _, start in problems]
    steps = [(0.0, 0.0) for _ in problems]
    paths = [[] for _ in problems]
    for time in range({STEPS}):
        calls = []
        for (_, slope, _), (x, y), (dx, dy) in zip(problems, places, steps):
            gx, gy = slope(x, y)
            calls += [[gx, dx, time], [gy, dy, time]]
        moves = [min(max(float(move), -{BIGGEST_STEP}), {BIGGEST_STEP}) for move in step.many(calls)]
        steps = list(zip(moves[::2], moves[1::2]))
        for k, (dx, dy) in enumerate(steps):
            paths[k].append([dx, dy])
            x, y = places[k]
            places[k] = min(max(x + dx, -10.0), 10.0), min(max(y + dy, -10.0), 10.0)
    return paths
"""


def problems(source):
    """[(height, slope, start), …] of one of the two lists."""
    scope: dict = {}
    exec(FUNCTIONS + source, scope)
    return scope["PROBLEMS"]


def score(value, functions):
    if not isinstance(value, list) or len(value) != len(functions):
        raise scoring.Invalid("one path per function is needed")
    total = 0.0
    for (height, _, (x, y)), path in zip(functions, value, strict=True):
        start = height(x, y)
        for dx, dy in scoring.points(path, STEPS, 2, "steps", -BIGGEST_STEP, BIGGEST_STEP):
            x, y = min(max(x + dx, -10.0), 10.0), min(max(y + dy, -10.0), 10.0)
        total += math.log10(1e-8 + height(x, y) / start)
    left = total / len(functions)  # from -8 (at the minimum) upwards
    return {"combined_score": math.log1p(math.exp(-left)), "log10_left": left}


def evaluate(program_path, hidden=False):
    source = HIDDEN if hidden else SEARCH
    functions = problems(source)
    return scoring.evaluate(
        program_path,
        entry="step",
        driver=DRIVER,
        apart=True,
        args=(FUNCTIONS + source,),
        score=lambda value: score(value, functions),
    )
