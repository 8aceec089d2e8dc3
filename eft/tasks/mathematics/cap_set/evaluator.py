"""A cap set in dimension 6: vectors over the integers modulo 3, no three of which lie on a line (add up to zero).

The candidate gives every vector a priority. Vectors are offered by descending priority, ties in lexicographic order,
and one is taken unless it completes a line. The raw metric is how many are taken. The score adds less than one part in
112 for how soon they are: programs that take equally many can still be told apart.
"""

from itertools import product

from eft.tasks import scoring

DIMENSION, BEST = 6, 112
VECTORS = list(product(range(3), repeat=DIMENSION))
INDEX = {vector: k for k, vector in enumerate(VECTORS)}

DRIVER = """
def drive(priority, vectors):
    return [float(priority(tuple(vector))) for vector in vectors]
"""


def score(value):
    priorities = scoring.numbers(value, len(VECTORS), "priorities")
    taken, blocked, places = [], set(), 0
    for place, k in enumerate(sorted(range(len(VECTORS)), key=lambda k: (-priorities[k], k))):
        if k in blocked:
            continue
        vector = VECTORS[k]
        for other in taken:
            blocked.add(INDEX[tuple([-(a + b) % 3 for a, b in zip(vector, other, strict=True)])])
        taken.append(vector)
        places += place
    size = len(taken)
    soon = 1 - places / size / len(VECTORS)  # in (0, 1)
    return {"combined_score": (size + soon) / BEST, "size": float(size)}


def evaluate(program_path):
    return scoring.evaluate(program_path, entry="priority", driver=DRIVER, args=(VECTORS,), score=score)
