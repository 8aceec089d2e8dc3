"""Deliveries: choose 14 of 40 orders, and a round trip that fetches each before it brings it; eight towns.

A C++ program reads, on stdin, the number of orders n, how many to take m and n lines `a b c d` (fetched at (a, b),
brought to (c, d), within 0 … 400), and prints the 2 m stops of the trip: k fetches order k, -k brings it (orders count
from 1). The trip starts and ends at (200, 200); streets run along the axes. The raw metric is the mean length.
"""

from functools import partial

from eft.tasks import sandbox, scoring

TOWNS, ORDERS, TAKEN, SIDE = 8, 40, 14, 400
LIMITS = sandbox.Limits(cpu_s=1, memory_mb=256, output_kb=16)


def town(seed):
    """Orders (a, b, c, d); half of the places lie around two squares."""
    draw = scoring.stream(33000 + seed)
    squares = [(SIDE * draw(), SIDE * draw()) for _ in range(2)]

    def place():
        if draw() < 0.5:
            return int((SIDE + 1) * draw()), int((SIDE + 1) * draw())
        x, y = squares[int(2 * draw())]
        return tuple(int(min(max(v + 160 * (draw() + draw() - 1), 0), SIDE)) for v in (x, y))

    return [(*place(), *place()) for _ in range(ORDERS)]


SEARCH = [town(seed) for seed in range(TOWNS)]
HIDDEN = [town(1000 + seed) for seed in range(2 * TOWNS)]  # for the final score


def score(data, outputs):
    total = 0
    for orders, output in zip(data, outputs, strict=True):
        x = y = SIDE // 2
        fetched, brought = set(), set()
        for stop in scoring.integers(output, 2 * TAKEN, "stops", -ORDERS, ORDERS):
            k = abs(stop)
            if stop == 0 or k in (fetched if stop > 0 else brought):
                raise scoring.Invalid(f"{stop} is no stop, or a second time the same")
            if stop < 0 and k not in fetched:
                raise scoring.Invalid(f"order {k} is brought before it is fetched")
            (fetched if stop > 0 else brought).add(k)
            a, b = orders[k - 1][:2] if stop > 0 else orders[k - 1][2:]
            total += abs(a - x) + abs(b - y)
            x, y = a, b
        if fetched != brought:
            raise scoring.Invalid("an order was fetched and not brought")
        total += abs(x - SIDE // 2) + abs(y - SIDE // 2)
    length = total / len(data)
    return {"combined_score": 1000 / length, "length": length}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    inputs = [f"{ORDERS} {TAKEN}\n" + "".join(f"{a} {b} {c} {d}\n" for a, b, c, d in orders) for orders in data]
    return scoring.evaluate_cpp(program_path, inputs=inputs, score=partial(score, data), limits=LIMITS)
