"""Allotting land: 36 owners each want a rectangle of a certain area around a point of theirs; eight maps of 200 x 200.

A C++ program reads, on stdin, the number n and n lines `x y area`, and prints n lines `left bottom right top`:
rectangles within the map, without overlap, with left <= x < right and bottom <= y < top. Areas add up to the map's.
With r the smaller and s the larger of wanted and given area, an owner is satisfied to 1 - (1 - r / s)^2 (as in
AtCoder's first heuristic contest; 0 where his point lies outside). The raw metric is the mean satisfaction.
"""

from functools import partial

from eft.tasks import sandbox, scoring

MAPS, OWNERS, SIDE = 8, 36, 200
LIMITS = sandbox.Limits(cpu_s=1, memory_mb=256, output_kb=16)


def land(seed):
    """Owners (x, y, area): distinct points, areas as between random marks on a line."""
    draw = scoring.stream(32000 + seed)
    points: dict[tuple[int, int], None] = {}
    while len(points) < OWNERS:
        points[int(SIDE * draw()), int(SIDE * draw())] = None
    marks = sorted({1 + int((SIDE * SIDE - 1) * draw()) for _ in range(OWNERS - 1)})
    marks += [SIDE * SIDE] * (OWNERS - len(marks))
    areas = [max(b - a, 1) for a, b in zip([0, *marks], marks, strict=False)]
    return [(x, y, area) for (x, y), area in zip(points, areas, strict=True)]


SEARCH = [land(seed) for seed in range(MAPS)]
HIDDEN = [land(1000 + seed) for seed in range(2 * MAPS)]  # for the final score


def score(data, outputs):
    total = 0.0
    for owners, output in zip(data, outputs, strict=True):
        values = scoring.integers(output, 4 * OWNERS, "rectangles", 0, SIDE)
        rectangles = [tuple(values[k : k + 4]) for k in range(0, len(values), 4)]
        for i, (a, b, c, d) in enumerate(rectangles):
            if a >= c or b >= d:
                raise scoring.Invalid(f"rectangle {i} is empty")
            if any(a < g and e < c and b < h and f < d for e, f, g, h in rectangles[:i]):
                raise scoring.Invalid(f"rectangle {i} overlaps one before it")
            x, y, wanted = owners[i]
            if a <= x < c and b <= y < d:
                given = (c - a) * (d - b)
                total += 1 - (1 - min(wanted, given) / max(wanted, given)) ** 2
    satisfaction = total / len(data) / OWNERS
    return {"combined_score": satisfaction, "satisfaction": satisfaction}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    inputs = [f"{OWNERS}\n" + "".join(f"{x} {y} {area}\n" for x, y, area in owners) for owners in data]
    return scoring.evaluate_cpp(program_path, inputs=inputs, score=partial(score, data), limits=LIMITS)
