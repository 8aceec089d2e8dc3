"""The witness of the best known value of structures/search_tree.

Ours: the entropy that a root leaves, with further terms, constants tuned by random search and Nelder-Mead.
"""

import math

C = (1.01771, 0.456574, 0.0714825, 14.2074, -0.642321, -1.23384)


def cost(left, right, own, left_count, right_count):
    value = 0.0
    for weight, count in ((left, left_count), (right, right_count)):
        if weight > 0:
            value += weight * (C[0] * math.log2(weight + 1e-9) + C[2] * math.log2(count + 1e-9))
            value += C[3] * weight * weight
    return value - C[1] * own + C[4] * abs(left - right) + C[5] * own * max(left, right)
