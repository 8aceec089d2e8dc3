"""A fishery: the mean yearly profit of eight waters over 40 seasons, with growth that depends on stock and warmth.

Stock grows logistically (least when small or crowded), warm seasons help; large catches cost more per ton. The
candidate hands back its catches; the waters are simulated again here.
"""

import math
from functools import partial

from eft.tasks import scoring

WATERS, SEASONS, START = 8, 40, 60.0

DRIVER = """
def drive(catch, waters, start, grow):
    scope = {}
    exec(grow, scope)
    count = len(waters)
    plans, stock, last = [[] for _ in waters], [start] * count, [start] * count
    for season in range(len(waters[0])):  # all waters go on together: one question a season
        amounts = catch.many([(stock[w], last[w], waters[w][season][0]) for w in range(count)])
        for w, amount in enumerate(map(float, amounts)):
            plans[w].append(amount)
            last[w] = stock[w]
            stock[w] = scope["grow"](stock[w] - min(max(amount, 0.0), 0.9 * stock[w]), *waters[w][season])
    return plans
"""

GROW = """
def grow(stock, warmth, luck):
    return max(1.0, stock + (0.45 + 0.25 * warmth) * stock * (1 - stock / 100) + luck)
"""


def water(seed):
    """For each season: warmth (slow waves, -1..1) and luck in tons."""
    draw = scoring.stream(4000 + seed)
    phase, pace = 6.28 * draw(), 0.4 + 0.6 * draw()
    return [(math.sin(phase + pace * year), 6 * (draw() - 0.5)) for year in range(SEASONS)]


SEARCH = [water(seed) for seed in range(WATERS)]
HIDDEN = [water(100 + seed) for seed in range(2 * WATERS)]  # for the final score
_scope: dict = {}
exec(GROW, _scope)
grow = _scope["grow"]


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of catches per water is needed")
    total = 0.0
    for seasons, plan in zip(data, value, strict=True):
        stock = START
        for (warmth, luck), amount in zip(seasons, scoring.numbers(plan, SEASONS, "catches", 0.0, 1e6), strict=True):
            caught = min(amount, 0.9 * stock)
            total += caught * (1 - 0.3 * caught / (5 + stock)) - 0.02 * caught * caught
            stock = grow(stock - caught, warmth, luck)
    profit = total / len(data) / SEASONS
    # A floor keeps the score of a ruined fishery above zero, and smooth.
    return {"combined_score": (profit + math.sqrt(profit * profit + 0.01)) / 20, "profit": profit}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="catch", driver=DRIVER, apart=True, args=(data, START, GROW), score=partial(score, data)
    )
