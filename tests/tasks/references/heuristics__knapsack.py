"""The witness of the best known value of heuristics/knapsack.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def rank(value, weight, volume, cost):
    size = (
        3.503684865
        + 1.234680453 * weight
        + 0.4426237429 * volume
        + 0.09257168929 * cost
        + 0.1631440783 * weight * volume
        + 0.03430702866 * weight * weight
    )
    return value**1.079415317 / max(size, 0.01)
