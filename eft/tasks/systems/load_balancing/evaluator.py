"""Load balancing: the mean slowdown (response time / size) of jobs on five servers of different speed, six traces of
120 jobs.

A server works through its queue in order. The amount of work in a queue is known only roughly (a noisy guess is
given), its length exactly. The candidate hands back its choices; the servers are run again here.
"""

import math
from functools import partial

from eft.tasks import scoring

TRACES, JOBS, SPEEDS = 6, 120, (0.5, 0.8, 1.0, 1.6, 2.4)

DRIVER = """
def drive(cost, traces, speeds):
    plans = [[] for _ in traces]
    queues = [[[] for _ in speeds] for _ in traces]
    for k in range(len(traces[0])):  # all traces go on together: one question a job
        asked = []
        for jobs, servers in zip(traces, queues):
            arrival, size, guess, noise = jobs[k]
            for s, speed in enumerate(speeds):
                servers[s] = [job for job in servers[s] if job[0] > arrival]
                asked.append((len(servers[s]), sum(job[1] for job in servers[s]) * noise[s], speed, guess))
        values = cost.many(asked)
        for t, (jobs, servers) in enumerate(zip(traces, queues)):
            arrival, size = jobs[k][:2]
            own = values[t * len(speeds) : (t + 1) * len(speeds)]
            s = own.index(min(own))
            plans[t].append(s)
            free = servers[s][-1][0] if servers[s] else arrival
            servers[s].append((free + size / speeds[s], size))
    return plans
"""


def trace(seed):
    """Jobs (arrival, size, guessed size, noise of each server's work): sizes are heavy-tailed, arrivals come in
    waves."""
    draw = scoring.stream(8000 + seed)
    jobs, now = [], 0.0
    for k in range(JOBS):
        now += -math.log(1 - draw()) * (0.17 + 0.08 * math.sin(k / 9))
        size = 0.4 / (1 - 0.97 * draw()) ** 0.6
        jobs.append((now, size, size * (0.7 + 0.6 * draw()), [0.6 + 0.8 * draw() for _ in SPEEDS]))
    return jobs


SEARCH = [trace(seed) for seed in range(TRACES)]
HIDDEN = [trace(100 + seed) for seed in range(2 * TRACES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of choices per trace is needed")
    total = 0.0
    for jobs, plan in zip(data, value, strict=True):
        free = [0.0] * len(SPEEDS)
        for (arrival, size, _, _), chosen in zip(
            jobs, scoring.numbers(plan, JOBS, "choices", 0, len(SPEEDS) - 1), strict=True
        ):
            s = int(chosen)
            free[s] = max(free[s], arrival) + size / SPEEDS[s]
            total += (free[s] - arrival) / size
    slowdown = total / len(data) / JOBS
    return {"combined_score": 2 / slowdown, "slowdown": slowdown}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="cost", driver=DRIVER, apart=True, args=(data, SPEEDS), score=partial(score, data)
    )
