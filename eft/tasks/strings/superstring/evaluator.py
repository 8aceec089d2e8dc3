"""Shortest common superstring: 16 sets of 14 fragments are merged pair by pair until one string is left.

The pair with the largest rank(overlap, left_rival, right_rival, length) is merged first: overlap of the left piece's
end with the right one's start, the best overlap that the left piece's end has with any other, that the right piece's
start has with any other, and the merged length. The candidate hands back the order of the fragments. The raw metric is
the mean length of the superstring, as a share of all the fragments' characters.
"""

from functools import partial

from eft.tasks import scoring

SETS, FRAGMENTS = 16, 14

DRIVER = """
def drive(rank, sets):
    orders = []
    for fragments, overlaps in sets:
        chains = [[i] for i in range(len(fragments))]
        sizes = [len(f) for f in fragments]
        while len(chains) > 1:
            starts, ends = [c[0] for c in chains], [c[-1] for c in chains]
            from_left = [top_two(overlaps[e][s] for b, s in enumerate(starts) if b != a) for a, e in enumerate(ends)]
            from_right = [top_two(overlaps[e][s] for a, e in enumerate(ends) if a != b) for b, s in enumerate(starts)]
            best = None
            for a, end in enumerate(ends):
                for b, start in enumerate(starts):
                    if a == b:
                        continue
                    overlap = overlaps[end][start]
                    left_rival = from_left[a][overlap == from_left[a][0]]
                    right_rival = from_right[b][overlap == from_right[b][0]]
                    value = rank(overlap, left_rival, right_rival, sizes[a] + sizes[b] - overlap)
                    if best is None or value > best[0]:
                        best = (value, a, b)
            _, a, b = best
            sizes[a] += sizes[b] - overlaps[chains[a][-1]][chains[b][0]]
            chains[a] = chains[a] + chains[b]
            del chains[b], sizes[b]
        orders.append(chains[0])
    return orders

def top_two(values):
    first = second = 0
    for value in values:
        if value > first:
            first, second = value, first
        elif value > second:
            second = value
    return first, second
"""


def overlap(left, right):
    """Characters of the longest end of `left` that starts `right`, short of either."""
    return next((k for k in range(min(len(left), len(right)) - 1, 0, -1) if left[-k:] == right[:k]), 0)


def fragments(seed):
    """Pieces of a text of few letters; none lies in another. With their overlaps."""
    draw = scoring.stream(25000 + seed)
    period = 2 + int(3 * draw())
    text = ""
    while len(text) < 48:  # repeats make the best overlap a trap
        text += text[-period:] if text and draw() < 0.25 else "abc"[int(3 * draw())]
    pieces: list[str] = []
    while len(pieces) < FRAGMENTS:
        start, length = int(38 * draw()), 6 + int(6 * draw())
        piece = text[start : start + length]
        if draw() < 0.15:
            piece = piece[:-1] + "abc"[int(3 * draw())]
        if not any(piece in other or other in piece for other in pieces):
            pieces.append(piece)
    return pieces, [[overlap(a, b) for b in pieces] for a in pieces]


SEARCH = [fragments(seed) for seed in range(SETS)]
HIDDEN = [fragments(1000 + seed) for seed in range(2 * SETS)]  # for the final score


def score(data, value):
    if not isinstance(value, list) or len(value) != len(data):
        raise scoring.Invalid("one order per set is needed")
    total = 0.0
    for (pieces, overlaps), order in zip(data, value, strict=True):
        scoring.order(order, FRAGMENTS, "order")
        characters = sum(map(len, pieces))
        saved = sum(overlaps[a][b] for a, b in zip(order, order[1:], strict=False))
        total += 1 - saved / characters
    share = total / len(data)
    return {"combined_score": 0.1 / (share - 0.2), "length_share": share}


def evaluate(program_path, hidden=False):
    data = HIDDEN if hidden else SEARCH
    return scoring.evaluate(program_path, entry="rank", driver=DRIVER, args=(data,), score=partial(score, data))
