"""Packing jobs onto machines: each job needs a share of a machine's processor and of its memory; 16 instances of 40
jobs.

Machines are filled one after the other: of the jobs that still fit, the one with the largest fit(cpu, memory, free_cpu,
free_memory) goes in. The candidate hands back the jobs of each machine. The raw metric is the mean over the machines of
fullness squared (fullness: the mean of the two shares), which prefers full machines and an empty rest.
"""

from functools import partial

from eft.tasks import scoring

INSTANCES, JOBS = 16, 40

DRIVER = """
def drive(fit, instances):
    plans = []
    for jobs in instances:
        waiting, machines = list(range(len(jobs))), []
        while waiting:
            cpu, memory, machine = 1.0, 1.0, []
            while True:
                fitting = [j for j in waiting if jobs[j][0] <= cpu and jobs[j][1] <= memory]
                if not fitting:
                    break
                best = max(fitting, key=lambda j: fit(jobs[j][0], jobs[j][1], cpu, memory))
                waiting.remove(best)
                machine.append(best)
                cpu, memory = cpu - jobs[best][0], memory - jobs[best][1]
            machines.append(machine)
        plans.append(machines)
    return plans
"""


def instance(seed):
    """Jobs (cpu, memory): each a share of a machine. How far the two go together varies over the instances."""
    draw = scoring.stream(20000 + seed)
    together = 2 * draw() - 1
    jobs = []
    for _ in range(JOBS):
        cpu, other = draw(), draw()
        memory = abs(together) * (cpu if together > 0 else 1 - cpu) + (1 - abs(together)) * other
        jobs.append((0.06 + 0.44 * cpu, 0.06 + 0.44 * memory))
    return jobs


SEARCH = [instance(seed) for seed in range(INSTANCES)]
HIDDEN = [instance(1000 + seed) for seed in range(2 * INSTANCES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of machines per instance is needed")
    total = 0.0
    for jobs, machines in zip(data, value, strict=True):
        if not isinstance(machines, list) or not all(isinstance(m, list) and m for m in machines):
            raise scoring.Invalid("a machine must be a list of one job or more")
        scoring.order([j for m in machines for j in m], JOBS, "jobs")
        squares = 0.0
        for machine in machines:
            cpu, memory = sum(jobs[j][0] for j in machine), sum(jobs[j][1] for j in machine)
            if max(cpu, memory) > 1 + 1e-9:
                raise scoring.Invalid("a machine is overloaded")
            squares += ((cpu + memory) / 2) ** 2
        total += squares / len(machines)
    fill = total / len(data)
    return {"combined_score": fill, "fill": fill}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="fit", driver=DRIVER, args=(data,), score=partial(score, data))
