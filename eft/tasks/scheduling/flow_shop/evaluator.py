"""Flow shop: every job passes the five machines in the same order; 20 instances of 15 jobs, in the order of their rank.

rank(first, middle, last, slope, total) sees a job's times on machine 1, on the three in the middle together and on
machine 5, Palmer's slope index and the sum. The candidate hands back the order of each instance. The raw metric is the
mean of makespan / lower bound - 1 (the bound: each machine's work, with the least work before and after it).
"""

from functools import partial

from eft.tasks import scoring

INSTANCES, JOBS, MACHINES = 20, 15, 5

DRIVER = """
def drive(rank, instances):
    orders = []
    for jobs in instances:
        values = []
        for times in jobs:
            slope = sum((2 * k - len(times) + 1) * t for k, t in enumerate(times))
            values.append(rank(times[0], sum(times[1:-1]), times[-1], slope, sum(times)))
        orders.append(sorted(range(len(jobs)), key=lambda j: values[j]))
    return orders
"""


def instance(seed):
    """Jobs with times 1 … 10; machines are loaded differently, and a job's times lean to the start or to the end."""
    draw = scoring.stream(22000 + seed)
    loads = [0.6 + 0.8 * draw() for _ in range(MACHINES)]
    jobs = []
    for _ in range(JOBS):
        lean = 1.2 * (draw() - 0.5)
        jobs.append([(1 + 9 * draw()) * loads[k] * (1 + lean * (k / 2 - 1)) for k in range(MACHINES)])
    return jobs


def bound(jobs):
    """No schedule is shorter."""
    best = 0.0
    for k in range(MACHINES):
        before, after = min(sum(t[:k]) for t in jobs), min(sum(t[k + 1 :]) for t in jobs)
        best = max(best, before + sum(t[k] for t in jobs) + after)
    return best


SEARCH = [instance(seed) for seed in range(INSTANCES)]
HIDDEN = [instance(1000 + seed) for seed in range(2 * INSTANCES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one order per instance is needed")
    total = 0.0
    for jobs, order in zip(data, value, strict=True):
        free = [0.0] * MACHINES
        for j in scoring.order(order, JOBS, "order"):
            ready = 0.0
            for k in range(MACHINES):
                ready = free[k] = max(ready, free[k]) + jobs[j][k]
        total += free[-1] / bound(jobs) - 1
    excess = total / len(data)
    return {"combined_score": 0.1 / (0.05 + excess), "excess": excess}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="rank", driver=DRIVER, args=(data,), score=partial(score, data))
