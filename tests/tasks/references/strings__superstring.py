"""The witness of the best known value of strings/superstring.

Ours: the greedy rule with regrets, constants tuned by random search and Nelder-Mead.
"""

C = (0.352609, -0.213551, -0.351763, 0.0471149, 0.0626477, 0.0447304, -0.00361405)


def rank(overlap, left_rival, right_rival, length):
    value = C[0] * overlap + C[1] * left_rival + C[2] * right_rival + C[3] * length
    value = value + C[4] * (overlap > max(left_rival, right_rival))
    return value + C[5] * overlap * overlap + C[6] * left_rival * right_rival
