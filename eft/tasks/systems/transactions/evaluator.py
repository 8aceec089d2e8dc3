"""Ordering a batch of transactions: the time until all are done, over 14 batches of 24.

A transaction reads and writes keys one after the other, one step each, without a pause. It starts as early as its keys
allow: no step may come before an earlier transaction's step on the same key if one of the two is a write. The next
transaction is the one with the largest priority(delay, length, rivals, writes): when it could end beyond the present
end of the schedule (may be negative), its steps, how many waiting transactions clash with it, and its writes. The
candidate hands back the order of each batch; the raw metric is the mean time.
"""

from functools import partial

from eft.tasks import scoring

BATCHES, TRANSACTIONS, KEYS = 14, 24, 40

DRIVER = """
def drive(priority, batches):
    orders = []
    for batch, clashes in batches:
        waiting, order, end = list(range(len(batch))), [], 0
        rivals = [len(c) for c in clashes]
        reads, writes = {}, {}  # key -> the first step that is free after reads, after writes
        while waiting:
            best = None
            for i in waiting:
                steps = batch[i]
                start = 0
                for at, (key, write) in enumerate(steps):
                    after = writes.get(key, 0)
                    if write:
                        after = max(after, reads.get(key, 0))
                    if after - at > start:
                        start = after - at
                value = priority(start + len(steps) - end, len(steps), rivals[i], sum(w for _, w in steps))
                if best is None or value > best[0]:
                    best = (value, i, start)
            _, i, start = best
            waiting.remove(i)
            order.append(i)
            for j in clashes[i]:
                rivals[j] -= 1
            for at, (key, write) in enumerate(batch[i]):
                table = writes if write else reads
                table[key] = max(table.get(key, 0), start + at + 1)
            end = max(end, start + len(batch[i]))
        orders.append(order)
    return orders
"""


def batch(seed):
    """Transactions [(key, is it a write)], a few keys hot; with the lists of those that each clashes with."""
    draw = scoring.stream(31000 + seed)
    skew, share = 1.5 + 1.5 * draw(), 0.25 + 0.35 * draw()
    found = []
    for _ in range(TRANSACTIONS):
        keys = {int(KEYS * draw() ** skew): None for _ in range(2 + int(6 * draw()))}
        found.append([(key, int(draw() < share)) for key in keys])
    return found, [
        [j for j in range(TRANSACTIONS) if j != i and clash(found[i], found[j])] for i in range(TRANSACTIONS)
    ]


def clash(one, other):
    return any(a == b and (v or w) for a, v in one for b, w in other)


SEARCH = [batch(seed) for seed in range(BATCHES)]
HIDDEN = [batch(1000 + seed) for seed in range(2 * BATCHES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one order per batch is needed")
    total = 0
    for (transactions, _), order in zip(data, value, strict=True):
        done: list[tuple[int, int, int]] = []  # (key, is it a write, step)
        end = 0
        for i in scoring.order(order, TRANSACTIONS, "order"):
            start = 0
            for at, (key, write) in enumerate(transactions[i]):
                start = max([start, *(t + 1 - at for k, w, t in done if k == key and (w or write))])
            done += [(key, write, start + at) for at, (key, write) in enumerate(transactions[i])]
            end = max(end, start + len(transactions[i]))
        total += end
    time = total / len(data)
    return {"combined_score": 20 / time, "time": time}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="priority", driver=DRIVER, args=(data,), score=partial(score, data))
