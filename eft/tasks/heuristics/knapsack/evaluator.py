"""Knapsack with three limits: the mean packed value over 40 instances of 30 items, greedily by the candidate's rank.

The candidate hands back the order of the items of each instance; packing (an item that does not fit is skipped) is
done here.
"""

from functools import partial

from eft.tasks import scoring

INSTANCES, ITEMS = 40, 30

DRIVER = """
def drive(rank, instances):
    return [sorted(range(len(items)), key=lambda i: -rank(*items[i])) for items in instances]
"""


def instance(seed):
    """Items (value, weight, volume, cost); value grows with all three sizes, and each limit holds a third of the
    total."""
    draw = scoring.stream(1000 + seed)
    items = []
    for _ in range(ITEMS):
        weight, volume, cost = 1 + 9 * draw(), 1 + 9 * draw() ** 2, 1 + 9 * draw()
        value = (2 + 0.5 * weight + 0.3 * volume + 0.2 * cost) * (0.5 + draw())
        items.append((value, weight, volume, cost))
    return items


SEARCH = [instance(seed) for seed in range(INSTANCES)]
HIDDEN = [instance(100 + seed) for seed in range(2 * INSTANCES)]  # for the final score
SHARES = (0.3, 0.35, 0.45)


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one order per instance is needed")
    total = 0.0
    for items, order in zip(data, value, strict=True):
        room = [share * sum(item[k + 1] for item in items) for k, share in enumerate(SHARES)]
        for i in scoring.order(order, ITEMS, "order"):
            if all(size <= left for size, left in zip(items[i][1:], room, strict=True)):
                room = [left - size for size, left in zip(items[i][1:], room, strict=True)]
                total += items[i][0]
    packed = total / len(data)
    return {"combined_score": packed / 100, "packed_value": packed}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="rank", driver=DRIVER, args=(data,), score=partial(score, data))
