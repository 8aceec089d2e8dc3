"""A slide of twelve straight pieces from (0, 0) to 3 aside and 1 below: how long a bead takes to slide down it.

Bead and slide meet a drag in proportion to length: the bead's energy falls by 0.1 per unit of length. Gravity is 1, so
v^2 / 2 = depth - 0.1 * length so far; acceleration is constant on a piece, and its time is length / mean speed. Where a
bead's energy is used up, it creeps on at 0.05.
"""

import math

from eft.tasks import scoring

PIECES, WIDTH, DROP, DRAG, CREEP = 12, 3.0, 1.0, 0.1, 0.05


def score(value):
    depths = [0.0, *scoring.numbers(value, PIECES - 1, "depths", -10.0, 10.0), DROP]
    length = time = speed = 0.0
    for above, below in zip(depths, depths[1:], strict=False):
        piece = math.hypot(WIDTH / PIECES, below - above)
        length += piece
        energy = below - DRAG * length
        after = math.sqrt(2 * energy) if energy > 0 else 0.0
        time += piece / (max((speed + after) / 2, CREEP) if energy > 0 else CREEP)
        speed = after
    return {"combined_score": 3 / time, "time": time}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
