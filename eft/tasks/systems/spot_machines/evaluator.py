"""A job with a deadline on spot machines: its cost, over 40 traces of 60 slots.

In each slot the job runs on a spot machine (cheap, not always there), on one on demand (always there), or waits. Where
demand(work_left, time_left, spot, running, share) is above 0 it runs on demand, else on spot if there is one (spot: 1
or 0; running: 1 if it ran on demand in the last slot; share: of the slots so far that had a spot machine). Changing
machines loses most of a slot. Work that is left at the deadline costs five times the price on demand. The candidate
hands back its choices; the cost is computed here.
"""

from functools import partial

from eft.tasks import scoring

TRACES, SLOTS, WORK = 40, 60, 34.0
CHEAP, DEAR, LATE, RESTART = 0.3, 1.0, 5.0, 0.8

DRIVER = """
def drive(demand, traces, slots, work, restart):
    count = len(traces)
    plans, left, last, seen = [[] for _ in traces], [work] * count, [0] * count, [0] * count
    for now in range(slots):  # all traces go on together: one question a slot
        values = demand.many(
            [(left[t], slots - now, traces[t][now], int(last[t] == 2), (1 + seen[t]) / (2 + now)) for t in range(count)]
        )
        for t, value in enumerate(values):
            kind = 0 if left[t] <= 0 else 2 if value > 0 else traces[t][now]
            if kind:
                left[t] -= 1 - restart if kind != last[t] else 1
            plans[t].append(kind)
            last[t] = kind
            seen[t] += traces[t][now]
    return plans
"""


def trace(seed):
    """Whether a spot machine is there in each slot: spells of both kinds, their mean lengths vary over the traces."""
    draw = scoring.stream(30000 + seed)
    lose, gain = 0.05 + 0.25 * draw(), 0.08 + 0.35 * draw()
    spots, there = [], draw() < 0.6
    for _ in range(SLOTS):
        there = draw() >= lose if there else draw() < gain
        spots.append(int(there))
    return spots


SEARCH = [trace(seed) for seed in range(TRACES)]
HIDDEN = [trace(1000 + seed) for seed in range(2 * TRACES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of choices per trace is needed")
    total = 0.0
    for trace, plan in zip(data, value, strict=True):
        left, last = WORK, 0
        for spot, chosen in zip(trace, scoring.numbers(plan, SLOTS, "choices", 0, 2), strict=True):
            kind = int(chosen)
            if kind == 1 and not spot:
                raise scoring.Invalid("there is no spot machine in this slot")
            if kind:
                left -= 1 - RESTART if kind != last else 1
                total += CHEAP if kind == 1 else DEAR
            last = kind
        total += LATE * max(left, 0.0)
    cost = total / len(data)
    return {"combined_score": 20 / cost, "cost": cost}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    args = (data, SLOTS, WORK, RESTART)
    return scoring.evaluate(
        program_path, entry="demand", driver=DRIVER, apart=True, args=args, score=partial(score, data)
    )
