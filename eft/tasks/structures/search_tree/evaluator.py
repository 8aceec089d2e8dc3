"""Binary search trees for keys of known weight: 16 sets of 32 keys; the comparisons of a mean search, hits and misses.

In every range of keys, the root is the key with the least cost(left, right, own, left_count, right_count): the weights
and the numbers of keys left and right of it, and its own weight, as shares of the range. The candidate hands back the
roots in preorder. The raw metric is the mean number of comparisons, over that of the best tree (Knuth, 1971).
"""

from functools import partial

from eft.tasks import scoring

SETS, KEYS = 16, 32

DRIVER = """
def drive(cost, sets):
    plans = []
    for keys, _ in sets:
        sums = [0.0]
        for hit, miss in keys:
            sums.append(sums[-1] + hit + miss)
        plan, ranges = [], [(0, len(keys))]
        while ranges:
            low, high = ranges.pop()
            if low == high:
                continue
            whole, count = sums[high] - sums[low], high - low
            best = None
            for root in range(low, high):
                left, right, own = sums[root] - sums[low], sums[high] - sums[root + 1], keys[root][0]
                value = cost(left / whole, right / whole, own / whole, (root - low) / count, (high - root - 1) / count)
                if best is None or value < best[0]:
                    best = (value, root)
            root = best[1]
            plan.append(root)
            ranges += [(root + 1, high), (low, root)]
        plans.append(plan)
    return plans
"""


def keys(seed):
    """For each key: how often it is sought, and how often something just above it."""
    draw = scoring.stream(26000 + seed)
    skew, misses = 1 + 4 * draw(), draw() ** 2
    return [(draw() ** skew + 0.01, misses * draw() ** skew) for _ in range(KEYS)]


def best(keys):
    """Comparisons of the best tree, by dynamic programming."""
    sums = [0.0]
    for hit, miss in keys:
        sums.append(sums[-1] + hit + miss)
    cost = [[0.0] * (KEYS + 1) for _ in range(KEYS + 1)]
    for length in range(1, KEYS + 1):
        for low in range(KEYS + 1 - length):
            high = low + length
            least = min(cost[low][root] + cost[root + 1][high] for root in range(low, high))
            cost[low][high] = least + sums[high] - sums[low]
    return cost[0][KEYS]


def prepared(seeds):
    return [(k, best(k)) for k in map(keys, seeds)]


SEARCH = prepared(range(SETS))
HIDDEN = prepared(range(1000, 1000 + 2 * SETS))  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one tree per set is needed")
    total = 0.0
    for (keys, least), plan in zip(data, value, strict=True):
        roots = iter(scoring.order(plan, KEYS, "roots"))
        ranges, comparisons = [(0, KEYS)], 0.0
        while ranges:
            low, high = ranges.pop()
            if low == high:
                continue
            root = next(roots)
            if not low <= root < high:
                raise scoring.Invalid("a root lies outside its range of keys")
            comparisons += sum(hit + miss for hit, miss in keys[low:high])
            ranges += [(root + 1, high), (low, root)]
        total += comparisons / least
    ratio = total / len(data)
    return {"combined_score": 0.1 / (ratio - 0.9), "comparisons": ratio}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    sent = [(keys, 0) for keys, _ in data]
    return scoring.evaluate(program_path, entry="cost", driver=DRIVER, args=(sent,), score=partial(score, data))
