"""Cache eviction: the share of the fetching cost that the cache saves, over four traces of 500 requests.

Objects differ in size and in the price of fetching them. When room is needed, the object with the least
keep(age, count, size, price) goes. The candidate hands back its evictions; the cache is run again here.
"""

from functools import partial

from eft.tasks import scoring

TRACES, REQUESTS, OBJECTS, ROOM = 4, 500, 60, 60

DRIVER = """
def drive(keep, traces, room):
    plans = []
    for objects, trace in traces:
        inside, counts, used, plan = {}, {}, 0, []
        for now, name in enumerate(trace):
            counts[name] = counts.get(name, 0) + 1
            if name not in inside:
                size = objects[name][0]
                if used + size > room:
                    names = list(inside)
                    values = keep.many([(now - inside[o], counts[o], objects[o][0], objects[o][1]) for o in names])
                    least = sorted(range(len(names)), key=values.__getitem__)
                    out = []
                    while used + size > room:
                        worst = names[least[len(out)]]
                        del inside[worst]
                        used -= objects[worst][0]
                        out.append(worst)
                    plan.append([now, out])
                used += size
            inside[name] = now
        plans.append(plan)
    return plans
"""


def trace(seed):
    """Objects (size, price), and requests by a skewed popularity that drifts, with short bursts of one object."""
    draw = scoring.stream(7000 + seed)
    objects = [(1 + int(9 * draw() ** 2), 1 + 9 * draw()) for _ in range(OBJECTS)]
    requests, recent = [], [0]
    for now in range(REQUESTS):
        if draw() < 0.3:
            name = recent[int(len(recent) * draw())]
        else:
            name = (int(OBJECTS * draw() ** 2.5) + now // 60) % OBJECTS
        requests.append(name)
        recent = [*recent[-7:], name]
    return objects, requests


SEARCH = [trace(seed) for seed in range(TRACES)]
HIDDEN = [trace(100 + seed) for seed in range(2 * TRACES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of evictions per trace is needed")
    paid = full = 0.0
    for (objects, requests), plan in zip(data, value, strict=True):
        if not isinstance(plan, list) or not all(
            isinstance(p, list) and len(p) == 2 and isinstance(p[1], list) for p in plan
        ):
            raise scoring.Invalid("an eviction must be [time, objects]")
        due = {scoring.number(p[0], "time"): p[1] for p in plan}
        inside: set[int] = set()
        used = 0
        for now, name in enumerate(requests):
            full += objects[name][1]
            if name in inside:
                continue
            paid += objects[name][1]
            for other in due.get(now, ()):
                if other not in inside:
                    raise scoring.Invalid("an object that is not in the cache was evicted")
                inside.remove(other)
                used -= objects[other][0]
            inside.add(name)
            used += objects[name][0]
            if used > ROOM:
                raise scoring.Invalid("the cache holds more than it has room for")
    saved = 1 - paid / full
    return {"combined_score": saved, "saved_share": saved}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="keep", driver=DRIVER, apart=True, args=(data, ROOM), score=partial(score, data)
    )
