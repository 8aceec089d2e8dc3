"""Cleaning a log-structured store: the copying that each write costs, over three traces of 600 writes.

Pages are always written to the end of a log of 21 segments of eight pages; the older version dies. When only two
segments are free, the one with the largest benefit(live, age, quiet) is cleaned: what lives in it is copied to the end
of the log (live: the share of its pages; age: time since it was filled; quiet: time since a page in it died last). The
candidate hands back the segments that it cleans; the store is run again here. The raw metric is the mean number of
pages written for each page that a user writes.
"""

from functools import partial

from eft.tasks import scoring

TRACES, WRITES, PAGES, SEGMENTS, SIZE = 3, 600, 120, 21, 8

# Both sides run this; `choose` gets [(segment, live pages, filled at, last death at)] and the time.
STORE = """
def store(trace, pages, segments, size, choose):
    where, live = {}, [0] * segments  # page -> segment, segment -> live pages
    filled, died, content = [0] * segments, [0] * segments, [[] for _ in range(segments)]
    free, head, written = list(range(1, segments)), 0, 0

    def write(page, now):
        nonlocal head, written
        if len(content[head]) == size:
            filled[head] = now
            head = free.pop(0)
            content[head] = []
        if page in where:
            live[where[page]] -= 1
            died[where[page]] = now
        where[page] = head
        live[head] += 1
        content[head].append(page)
        written += 1

    for now, page in enumerate(trace):
        write(page, now)
        while len(free) < 2:
            full = [s for s in range(segments) if s != head and s not in free and live[s] < size]
            victim = choose([(s, live[s], filled[s], died[s]) for s in full], now)
            if victim not in full:
                raise ValueError("no such segment")
            moved = [p for p in dict.fromkeys(content[victim]) if where[p] == victim]
            for p in moved:
                write(p, now)
            free.append(victim)
            content[victim] = []
    return written
"""

DRIVER = """
def drive(benefit, traces, sizes, code):
    scope = {}
    exec(code, scope)
    plans = []
    for trace in traces:
        plan = []

        def choose(full, now):
            values = benefit.many([(s[1] / sizes[2], now - s[2], now - max(s[2], s[3])) for s in full])
            plan.append(full[values.index(max(values))][0])
            return plan[-1]

        scope["store"](trace, *sizes, choose)
        plans.append(plan)
    return plans
"""


def trace(seed):
    """Writes: every page once, then mostly to a few hot pages; which ones are hot drifts slowly."""
    draw = scoring.stream(29000 + seed)
    skew, hot = 2.5 + 2.5 * draw(), int(PAGES * draw())
    writes = list(range(PAGES))
    for now in range(WRITES - PAGES):
        page = int(PAGES * draw() ** skew) if draw() < 0.9 else int(PAGES * draw())
        writes.append((hot + now // 40 + page * 37) % PAGES)  # spread over the pages: neighbours differ in heat
    return writes


SEARCH = [trace(seed) for seed in range(TRACES)]
HIDDEN = [trace(1000 + seed) for seed in range(2 * TRACES)]  # for the final score
_scope: dict = {}
exec(STORE, _scope)


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one list of segments per trace is needed")
    total = 0
    for trace, plan in zip(data, value, strict=True):
        if not isinstance(plan, list):
            raise scoring.Invalid("the segments to clean must be a list")
        chosen = iter(scoring.numbers(plan, len(plan), "segments", 0, SEGMENTS - 1))
        try:
            written = _scope["store"](trace, PAGES, SEGMENTS, SIZE, lambda *_, chosen=chosen: int(next(chosen, -1)))
        except ValueError:
            raise scoring.Invalid("a segment without dead pages was cleaned, or none when one was due") from None
        total += written
    writes = total / len(data) / WRITES
    return {"combined_score": 1 / (writes - 0.5), "writes": writes}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    args = (data, (PAGES, SEGMENTS, SIZE), STORE)
    return scoring.evaluate(
        program_path, entry="benefit", driver=DRIVER, apart=True, args=args, score=partial(score, data)
    )
