"""Weighted set cover: the mean cost of covering 40 elements with some of 36 sets, over 20 instances, greedily.

Until all is covered, the set with the largest worth(cost, fresh, size, rarity) is taken (fresh: its elements that are
not covered yet; size: all of its elements; rarity: the sum of 1 / (sets that hold it) over the fresh ones). The
candidate hands back the sets of each instance; they are checked and paid for here.
"""

from functools import partial

from eft.tasks import scoring

INSTANCES, ELEMENTS, SETS = 20, 40, 36

DRIVER = """
def drive(worth, instances):
    plans = []
    for sets in instances:
        holders = {}
        for _, members in sets:
            for e in members:
                holders[e] = holders.get(e, 0) + 1
        left, waiting, plan = set(holders), list(range(len(sets))), []
        while left:
            best = None
            for s in waiting:
                cost, members = sets[s]
                fresh = [e for e in members if e in left]
                if fresh:
                    value = worth(cost, len(fresh), len(members), sum(1 / holders[e] for e in fresh))
                    if best is None or value > best[0]:
                        best = (value, s)
            s = best[1]
            waiting.remove(s)
            plan.append(s)
            left -= set(sets[s][1])
        plans.append(plan)
    return plans
"""


def instance(seed):
    """Sets (cost, elements): larger ones cost more, but not in proportion; some elements are rare."""
    draw = scoring.stream(35000 + seed)
    power, rare = 0.6 + 0.5 * draw(), 1 + draw()
    sets = []
    for s in range(SETS):
        size = 3 + int(9 * draw() ** 1.5)
        members = {(s * 37) % ELEMENTS, (s * 37 + 36 * 37) % ELEMENTS}  # every element is in one set at least
        while len(members) < size:
            members.add(int(ELEMENTS * draw() ** rare))
        sets.append((len(members) ** power * (0.6 + 0.8 * draw()), sorted(members)))
    return sets


SEARCH = [instance(seed) for seed in range(INSTANCES)]
HIDDEN = [instance(1000 + seed) for seed in range(2 * INSTANCES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of sets per instance is needed")
    total = 0.0
    for sets, plan in zip(data, value, strict=True):
        if not isinstance(plan, list) or len(plan) > SETS:
            raise scoring.Invalid("the sets must be a list of at most all of them")
        taken = {int(s) for s in scoring.numbers(plan, len(plan), "sets", 0, SETS - 1)}
        if len({e for s in taken for e in sets[s][1]}) < ELEMENTS:
            raise scoring.Invalid("an element is not covered")
        total += sum(sets[s][0] for s in sorted(taken))
    cost = total / len(data)
    return {"combined_score": 20 / cost, "cost": cost}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="worth", driver=DRIVER, args=(data,), score=partial(score, data))
