"""The witness of the best known value of heuristics/set_cover.

Ours: the greedy rule (elements for the price) with further terms, constants tuned by random search and Nelder-Mead.
"""

C = (2.68842, -0.181383, 0.791264, 0.0803034, -0.0301749, 0.278942)


def worth(cost, fresh, size, rarity):
    value = C[0] * fresh + C[1] * rarity + C[3] * (size - fresh)
    return value / cost ** C[2] - C[4] * cost + C[5] * rarity / fresh
