"""Trees of bounding boxes: how many boxes a window query looks at, over eight sets of 40 rectangles with 30 windows
each.

A range of rectangles is sorted by the middle along x or y and cut in two; of all the cuts, the one with the least
cost(left_count, left_size, right_count, right_size) is made (size: the half perimeter of the bounding box, as a share
of the whole one's), until single rectangles are left. The candidate hands back the cuts (axis, count left) in
preorder; it never sees the windows. The raw metric is the mean number of boxes tested in a query.
"""

from functools import partial

from eft.tasks import scoring

SETS, RECTANGLES, WINDOWS = 8, 40, 30

DRIVER = """
def drive(cost, sets):
    plans = []
    for boxes in sets:
        plan, groups = [], [list(range(len(boxes)))]
        while groups:
            group = groups.pop()
            if len(group) < 2:
                continue
            best = None
            for axis in (0, 1):
                ordered = sorted(group, key=lambda i: (boxes[i][axis] + boxes[i][axis + 2], i))
                left, right = half_perimeters(boxes, ordered), half_perimeters(boxes, ordered[::-1])[::-1]
                whole, count = left[-1], len(group)
                for k in range(1, count):
                    value = cost(k / count, left[k - 1] / whole, 1 - k / count, right[k] / whole)
                    if best is None or value < best[0]:
                        best = (value, axis, k, ordered)
            _, axis, k, ordered = best
            plan.append((axis, k))
            groups += [ordered[k:], ordered[:k]]
        plans.append(plan)
    return plans

def half_perimeters(boxes, ordered):
    sizes, (a, b, c, d) = [], boxes[ordered[0]]
    for i in ordered:
        box = boxes[i]
        a, b, c, d = min(a, box[0]), min(b, box[1]), max(c, box[2]), max(d, box[3])
        sizes.append(c - a + d - b)
    return sizes
"""


def rectangles(seed):
    """Rectangles (left, bottom, right, top) in the unit square, many small and some large, around a few centers."""
    draw = scoring.stream(27000 + seed)
    centers = [(draw(), draw(), 0.05 + 0.3 * draw()) for _ in range(4)]
    boxes = []
    for _ in range(RECTANGLES):
        x, y, spread = centers[int(4 * draw())]
        x, y = x + spread * (draw() + draw() - 1), y + spread * (draw() + draw() - 1)
        width, height = 0.01 + 0.3 * draw() ** 4, 0.01 + 0.3 * draw() ** 4
        boxes.append((x, y, x + width, y + height))
    return boxes


def windows(seed):
    """Queries: small windows, most of them where rectangles are."""
    draw, boxes = scoring.stream(28000 + seed), rectangles(seed)
    found = []
    for _ in range(WINDOWS):
        box = boxes[int(RECTANGLES * draw())]
        x, y = (box[0] + 0.2 * (draw() - 0.5), box[1] + 0.2 * (draw() - 0.5)) if draw() < 0.7 else (draw(), draw())
        found.append((x, y, x + 0.1 * draw(), y + 0.1 * draw()))
    return found


SEARCH = [(rectangles(seed), windows(seed)) for seed in range(SETS)]
HIDDEN = [(rectangles(1000 + seed), windows(1000 + seed)) for seed in range(2 * SETS)]  # for the final score


def meet(a, b):
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of cuts per set is needed")
    total = 0
    for (boxes, queries), plan in zip(data, value, strict=True):
        cuts = iter(scoring.points(plan, RECTANGLES - 1, 2, "cuts", 0, RECTANGLES))
        groups = [(list(range(RECTANGLES)), queries)]  # with the queries that get this far
        while groups:
            group, asked = groups.pop()
            total += len(asked)
            if len(group) < 2:
                continue
            axis, k = map(int, next(cuts))
            if axis > 1 or not 0 < k < len(group):
                raise scoring.Invalid("a cut must be along axis 0 or 1 and leave rectangles on both sides")
            members = [boxes[i] for i in group]
            box = (min(b[0] for b in members), min(b[1] for b in members),
                   max(b[2] for b in members), max(b[3] for b in members))  # fmt: skip
            asked = [q for q in asked if meet(box, q)]
            ordered = sorted(group, key=lambda i: (boxes[i][axis] + boxes[i][axis + 2], i))
            groups += [(ordered[k:], asked), (ordered[:k], asked)]
    tests = total / len(data) / WINDOWS
    return {"combined_score": 5 / tests, "tests": tests}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    sent = [boxes for boxes, _ in data]
    return scoring.evaluate(program_path, entry="cost", driver=DRIVER, args=(sent,), score=partial(score, data))
