"""A rule for building tours by insertion: the mean length over 48 instances of 12 cities.

Every step inserts the city and place with the least cost(detour, distance to the tour, distance to the middle, longer
new edge). The candidate hands back the tours; their lengths are computed here.
"""

import math
from functools import partial

from eft.tasks import scoring

INSTANCES, CITIES = 48, 12

DRIVER = """
import math

def drive(cost, instances):
    tours = []
    for cities in instances:
        n = len(cities)
        d = [[math.dist(a, b) for b in cities] for a in cities]
        middle = [sum(c[0] for c in cities) / n, sum(c[1] for c in cities) / n]
        center = [math.dist(c, middle) for c in cities]
        tour, left = [0, max(range(n), key=lambda c: d[0][c])], []
        left = [c for c in range(1, n) if c != tour[1]]
        near = {c: min(d[c][0], d[c][tour[1]]) for c in left}
        while left:
            best = None
            for c in left:
                row = d[c]
                for k in range(len(tour)):
                    a, b = tour[k - 1], tour[k]
                    value = cost(row[a] + row[b] - d[a][b], near[c], center[c], max(row[a], row[b]))
                    if best is None or value < best[0]:
                        best = (value, c, k)
            _, c, k = best
            tour.insert(k, c)
            left.remove(c)
            for other in left:
                near[other] = min(near[other], d[other][c])
        tours.append(tour)
    return tours
"""


def instance(seed):
    """Cities in the unit square, half of them around three centers."""
    draw = scoring.stream(6000 + seed)
    centers = [(draw(), draw()) for _ in range(3)]
    cities = [(draw(), draw()) for _ in range(CITIES // 2)]
    while len(cities) < CITIES:
        x, y = centers[len(cities) % 3]
        cities.append((x + 0.3 * (draw() - 0.5), y + 0.3 * (draw() - 0.5)))
    return cities


SEARCH = [instance(seed) for seed in range(INSTANCES)]
HIDDEN = [instance(100 + seed) for seed in range(2 * INSTANCES)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one tour per instance is needed")
    total = 0.0
    for cities, tour in zip(data, value, strict=True):
        scoring.order(tour, CITIES, "tour")
        total += sum(math.dist(cities[tour[k - 1]], cities[tour[k]]) for k in range(CITIES))
    length = total / len(data)
    return {"combined_score": 3 / length, "tour_length": length}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="cost", driver=DRIVER, args=(data,), score=partial(score, data))
