"""The kissing number in dimension 7: how many balls can touch one of the same size.

The candidate offers vectors of integers, the directions of the balls. They are taken in turn, a vector only where its
angle to all taken before is at least 60 degrees: 4 (u.v)^2 <= |u|^2 |v|^2 wherever u.v > 0, in integers. Only the first
400 count; the zero vector is passed over. The raw metric is how many are taken. The score adds less than 1/126 for how
soon they are.
"""

from operator import mul

from eft.tasks import scoring

DIMENSION, BEST, OFFERS = 7, 126, 400


def score(value):
    if not isinstance(value, list) or not value:
        raise scoring.Invalid("a list of vectors is needed")
    value, taken, places = value[:OFFERS], [], 0
    for place, vector in enumerate(scoring.points(value, len(value), DIMENSION, "vectors", -1000.0, 1000.0)):
        if any(v != int(v) for v in vector):
            raise scoring.Invalid("coordinates must be integers")
        vector = tuple(map(int, vector))
        norm = sum(map(mul, vector, vector))
        if norm == 0:  # has no direction
            continue
        for other, other_norm in taken:
            dot = sum(map(mul, vector, other))
            if dot > 0 and 4 * dot * dot > norm * other_norm:
                break
        else:
            taken.append((vector, norm))
            places += place
    size = len(taken)
    if not size:
        raise scoring.Invalid("only zero vectors are offered")
    return {"combined_score": (size + 1 - places / size / OFFERS) / BEST, "size": float(size)}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
