"""Inventory control: the mean daily cost of holding stock, of backlog and of changing the order, over six years of 60
days.

The candidate hands back its orders; the warehouse is simulated again here.
"""

import math
from functools import partial

from eft.tasks import scoring

YEARS, DAYS, DELAY = 6, 60, 3
HOLDING, BACKLOG, CHANGE = 1.0, 4.0, 0.5

DRIVER = """
def drive(order, years, delay):
    plans = []
    for demands in years:
        stock, pipeline, demand, plan = 20.0, [8.0] * delay, 8.0, []
        for next_demand in demands:
            amount = float(order(stock, sum(pipeline), demand))
            plan.append(amount)
            pipeline.append(amount)
            demand = next_demand
            stock += pipeline.pop(0) - demand
        plans.append(plan)
    return plans
"""


def year(seed):
    """Daily demand: a season, a slow drift and noise."""
    draw = scoring.stream(2000 + seed)
    phase, height = 6.28 * draw(), 2 + 3 * draw()
    season = [8 + height * math.sin(phase + day / 7) for day in range(DAYS)]
    return [max(0.0, level + 3 * (draw() + draw() + draw() - 1.5)) for level in season]


SEARCH = [year(seed) for seed in range(YEARS)]
HIDDEN = [year(100 + seed) for seed in range(2 * YEARS)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of orders per year is needed")
    total = 0.0
    for demands, plan in zip(data, value, strict=True):
        stock, pipeline, last = 20.0, [8.0] * DELAY, 8.0
        for demand, amount in zip(demands, scoring.numbers(plan, DAYS, "orders", 0.0, 1e4), strict=True):
            pipeline.append(amount)
            stock += pipeline.pop(0) - demand
            total += HOLDING * max(stock, 0.0) + BACKLOG * max(-stock, 0.0) + CHANGE * abs(amount - last)
            last = amount
    cost = total / len(data) / DAYS
    return {"combined_score": 10 / (1 + cost), "daily_cost": cost}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="order", driver=DRIVER, apart=True, args=(data, DELAY), score=partial(score, data)
    )
