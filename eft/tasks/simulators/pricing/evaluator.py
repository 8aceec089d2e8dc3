"""Ticket pricing: the mean revenue of 12 flights with 120 seats, sold over 40 days at the candidate's daily prices.

Early customers pay little, late ones more; demand differs from flight to flight and has to be learned from sales. The
candidate hands back the prices; sales are computed again here.
"""

import math
from functools import partial

from eft.tasks import scoring

FLIGHTS, DAYS, SEATS = 12, 40, 120.0

DRIVER = """
import math

def drive(price, flights, seats):
    plans, left, sold = [[] for _ in flights], [seats] * len(flights), [3.0] * len(flights)
    for day in range(len(flights[0])):  # all flights go on together: one question a day
        amounts = price.many([(len(flights[0]) - day, left[f], sold[f]) for f in range(len(flights))])
        for f, amount in enumerate(map(float, amounts)):
            customers, means = flights[f][day]
            plans[f].append(amount)
            sold[f] = min(left[f], customers * math.exp(-amount / means))
            left[f] -= sold[f]
    return plans
"""


def flight(seed):
    """For each day: how many customers look, and the scale of what they would pay."""
    draw = scoring.stream(3000 + seed)
    demand = 4 + 10 * draw()
    late = 0.5 + 1.5 * draw()
    return [(demand * (0.6 + 0.8 * draw()), 40 + 60 * (day / DAYS) ** 2 * late) for day in range(DAYS)]


SEARCH = [flight(seed) for seed in range(FLIGHTS)]
HIDDEN = [flight(100 + seed) for seed in range(2 * FLIGHTS)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of prices per flight is needed")
    total = 0.0
    for days, plan in zip(data, value, strict=True):
        left = SEATS
        for (customers, means), amount in zip(days, scoring.numbers(plan, DAYS, "prices", 0.0, 1e6), strict=True):
            sold = min(left, customers * math.exp(-amount / means))
            left -= sold
            total += sold * amount
    revenue = total / len(data)
    return {"combined_score": revenue / 10000, "revenue": revenue}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="price", driver=DRIVER, apart=True, args=(data, SEATS), score=partial(score, data)
    )
