"""A battery on the electricity market: the mean daily profit over 20 days of 48 half hours, at prices seen one by one.

The candidate hands back its wishes for power; what battery and grid make of them is computed here.
"""

import math
from functools import partial

from eft.tasks import scoring

DAYS, SLOTS, RATE, LOSS, WEAR = 20, 48, 0.25, 0.06, 1.0

DRIVER = """
def drive(charge, days, step):
    scope = {}
    exec(step, scope)
    plans = []
    for prices in days:
        level, last, plan = 0.5, prices[0], []
        for price in prices:
            power = float(charge(price, last, level))
            plan.append(power)
            level, last = scope["step"](level, power)[0], price
        plans.append(plan)
    return plans
"""

STEP = f"""
def step(level, power):
    flow = min(max({RATE} * min(max(power, -1.0), 1.0), -level), 1.0 - level)
    return level + flow, flow
"""


def day(seed):
    """Half-hourly prices: two peaks, a random walk that returns to its mean, and noise."""
    draw = scoring.stream(5000 + seed)
    base, walk, prices = 35 + 15 * draw(), 0.0, []
    for slot in range(SLOTS):
        walk = 0.85 * walk + 14 * (draw() - 0.5)
        peaks = 18 * math.exp(-(((slot - 17) / 4) ** 2)) + 25 * math.exp(-(((slot - 38) / 5) ** 2))
        prices.append(max(1.0, base + peaks + walk - 8))
    return prices


SEARCH = [day(seed) for seed in range(DAYS)]
HIDDEN = [day(100 + seed) for seed in range(2 * DAYS)]  # for the final score
_scope: dict = {}
exec(STEP, _scope)
step = _scope["step"]


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of powers per day is needed")
    total = 0.0
    for prices, plan in zip(data, value, strict=True):
        level = 0.5
        for price, power in zip(prices, scoring.numbers(plan, SLOTS, "powers"), strict=True):
            level, flow = step(level, power)
            total -= price * flow + LOSS * price * abs(flow) + WEAR * flow * flow
        total += (level - 0.5) * sum(prices) / SLOTS  # what is left counts at the day's mean price
    profit = total / len(data)
    return {"combined_score": (profit + math.sqrt(profit * profit + 25)) / 100, "profit": profit}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="charge", driver=DRIVER, apart=True, args=(data, STEP), score=partial(score, data)
    )
