"""Project scheduling with two scarce resources: 10 projects of 24 activities with precedence.

Activities are planned one by one, each as early as precedence and resources allow: of those whose predecessors are
planned, the one with the largest priority(time, tail, followers, need) is next (tail: the longest chain that must come
after it; followers: how many activities wait for it; need: its share of the two resources). The candidate hands back
the order of planning. The raw metric is the mean of makespan / lower bound (critical path, work of a resource).
"""

from functools import partial

from eft.tasks import scoring

PROJECTS, ACTIVITIES, SUPPLY = 10, 24, (10.0, 10.0)

DRIVER = """
def drive(priority, projects):
    orders = []
    for activities in projects:
        n = len(activities)
        after = [[j for j in range(n) if i in activities[j][2]] for i in range(n)]
        tail, waiting = [0.0] * n, [set() for _ in range(n)]
        for i in reversed(range(n)):
            for j in after[i]:
                tail[i] = max(tail[i], activities[j][0] + tail[j])
                waiting[i] |= waiting[j] | {j}
        values = [
            priority(time, tail[i], len(waiting[i]), (needs[0] + needs[1]) / 20)
            for i, (time, needs, _) in enumerate(activities)
        ]
        order, left = [], list(range(n))
        while left:
            ready = [i for i in left if all(p not in left for p in activities[i][2])]
            best = max(ready, key=lambda i: values[i])
            left.remove(best)
            order.append(best)
        orders.append(order)
    return orders
"""


def project(seed):
    """Activities (time, needs of the two resources, predecessors); predecessors have smaller numbers."""
    draw = scoring.stream(23000 + seed)
    activities, density = [], 1 + 1.5 * draw()
    for i in range(ACTIVITIES):
        before = sorted({i - 1 - int(8 * draw()) for _ in range(int(density + draw()))})
        needs = (1 + int(6 * draw() ** 1.5), 1 + int(6 * draw() ** 1.5))
        activities.append((1 + int(9 * draw()), needs, [p for p in before if p >= 0]))
    return activities


def bound(activities):
    """No schedule is shorter."""
    ends = []
    for time, _, before in activities:
        ends.append(time + max((ends[p] for p in before), default=0))
    return max(max(ends), *(sum(t * needs[r] for t, needs, _ in activities) / SUPPLY[r] for r in (0, 1)))


SEARCH = [project(seed) for seed in range(PROJECTS)]
HIDDEN = [project(1000 + seed) for seed in range(2 * PROJECTS)]  # for the final score


def makespan(activities, order):
    """Serial schedule generation in this order."""
    free = [[SUPPLY[0], SUPPLY[1]] for _ in range(sum(a[0] for a in activities) + 1)]
    ends: dict[int, int] = {}
    for i in order:
        time, needs, before = activities[i]
        if any(p not in ends for p in before):
            raise scoring.Invalid("an activity was planned before its predecessors")
        start = max((ends[p] for p in before), default=0)
        while True:
            clash = [t for t in range(start, start + time) if free[t][0] < needs[0] or free[t][1] < needs[1]]
            if not clash:
                break
            start = clash[-1] + 1
        for t in range(start, start + time):
            free[t][0] -= needs[0]
            free[t][1] -= needs[1]
        ends[i] = start + time
    return max(ends.values())


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one order per project is needed")
    total = 0.0
    for activities, order in zip(data, value, strict=True):
        total += makespan(activities, scoring.order(order, ACTIVITIES, "order")) / bound(activities)
    length = total / len(data)
    return {"combined_score": 0.2 / (length - 0.9), "length": length}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="priority", driver=DRIVER, args=(data,), score=partial(score, data))
