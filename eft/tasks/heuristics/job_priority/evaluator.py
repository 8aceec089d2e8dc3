"""Dispatching rule for one machine: the mean weighted tardiness over 24 instances of 20 jobs.

Whenever the machine is free, the waiting job with the largest priority(weight, time, slack) runs. The candidate hands
back the order of each instance; tardiness is computed here.
"""

from functools import partial

from eft.tasks import scoring

INSTANCES, JOBS = 24, 20

DRIVER = """
def drive(priority, instances):
    orders = []
    for jobs in instances:
        waiting, order, now = list(range(len(jobs))), [], 0.0
        while waiting:
            best = max(waiting, key=lambda j: priority(jobs[j][0], jobs[j][1], jobs[j][2] - now - jobs[j][1]))
            waiting.remove(best)
            order.append(best)
            now += jobs[best][1]
        orders.append(order)
    return orders
"""


def instance(seed):
    """Jobs (weight 1..10, time 1..10, due date): load and spread of the due dates vary over the instances."""
    draw = scoring.stream(seed)
    jobs = [(1 + 9 * draw(), 1 + 9 * draw()) for _ in range(JOBS)]
    total = sum(time for _, time in jobs)
    center, spread = 0.35 + 0.35 * draw(), 0.4 + 0.5 * draw()
    return [(weight, time, max(time, total * (center + spread * (draw() - 0.5)))) for weight, time in jobs]


SEARCH = [instance(seed) for seed in range(INSTANCES)]
HIDDEN = [instance(100 + seed) for seed in range(2 * INSTANCES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one order per instance is needed")
    total = 0.0
    for jobs, order in zip(data, value, strict=True):
        now = 0.0
        for j in scoring.order(order, JOBS, "order"):
            weight, time, due = jobs[j]
            now += time
            total += weight * max(0.0, now - due)
    tardiness = total / len(data) / JOBS
    return {"combined_score": 100 / (20 + tardiness), "tardiness": tardiness}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="priority", driver=DRIVER, args=(data,), score=partial(score, data))
