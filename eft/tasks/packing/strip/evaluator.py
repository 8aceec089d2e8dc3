"""Strip packing: rectangles onto a strip of width 1, as low as possible; 16 instances of 18 rectangles, not turned.

The lowest, leftmost gap of the skyline is filled first: of the rectangles that are narrow enough, the one with the
largest fit(width, height, gap, wall) goes to its left end (wall: how much higher the lower neighbour of the gap
stands). The candidate hands back (rectangle, x, y). The raw metric is the mean of height / (total area): 1 is a
packing without waste.
"""

from functools import partial

from eft.tasks import scoring

INSTANCES, RECTANGLES = 16, 18

DRIVER = """
def drive(fit, instances):
    plans = []
    for sizes in instances:
        waiting, plan = list(range(len(sizes))), []
        skyline = [[0.0, 1.0, 0.0]]  # left end, width, height
        while waiting:
            k = min(range(len(skyline)), key=lambda i: (skyline[i][2], skyline[i][0]))
            x, gap, y = skyline[k]
            walls = [skyline[i][2] for i in (k - 1, k + 1) if 0 <= i < len(skyline)]
            fitting = [r for r in waiting if sizes[r][0] <= gap + 1e-9]
            if fitting:
                wall = min(walls) - y if walls else 0.0
                best = max(fitting, key=lambda r: fit(sizes[r][0], sizes[r][1], gap, wall))
                waiting.remove(best)
                plan.append((best, x, y))
                width, height = sizes[best]
                skyline[k : k + 1] = [[x, width, y + height], [x + width, gap - width, y]]
            else:
                skyline[k][2] = min(walls)
            merged = []
            for s in skyline:
                if s[1] <= 1e-9:
                    continue
                if merged and abs(merged[-1][2] - s[2]) <= 1e-12:
                    merged[-1][1] += s[1]
                else:
                    merged.append(s)
            skyline = merged
        plans.append(plan)
    return plans
"""


def instance(seed):
    """Rectangles (width, height); how flat they are varies over the instances."""
    draw = scoring.stream(21000 + seed)
    wide, high = 0.3 + 0.35 * draw(), 0.3 + 0.35 * draw()
    return [(0.08 + wide * draw(), 0.05 + high * draw() ** 1.5) for _ in range(RECTANGLES)]


SEARCH = [instance(seed) for seed in range(INSTANCES)]
HIDDEN = [instance(1000 + seed) for seed in range(2 * INSTANCES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one packing per instance is needed")
    total = 0.0
    for sizes, plan in zip(data, value, strict=True):
        placed = [(x, y, *sizes[int(r)]) for r, x, y in scoring.points(plan, RECTANGLES, 3, "packing", 0.0, 1e3)
                  if r < RECTANGLES]  # fmt: skip
        scoring.order([p[0] for p in plan], RECTANGLES, "rectangles")
        for i, (x, y, width, height) in enumerate(placed):
            if x + width > 1 + 1e-6:
                raise scoring.Invalid("a rectangle sticks out of the strip")
            for a, b, wide, high in placed[:i]:
                if min(x + width, a + wide) - max(x, a) > 1e-6 and min(y + height, b + high) - max(y, b) > 1e-6:
                    raise scoring.Invalid("two rectangles overlap")
        area = sum(width * height for width, height in sizes)
        total += max(y + height for _, y, _, height in placed) / area
    height = total / len(data)
    return {"combined_score": 1 / (height - 0.9), "height": height}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="fit", driver=DRIVER, args=(data,), score=partial(score, data))
