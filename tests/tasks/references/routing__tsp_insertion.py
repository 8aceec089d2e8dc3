"""The witness of the best known value of routing/tsp_insertion.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def cost(detour, nearest, center, longest):
    value = detour + -0.7726490761 * nearest + -0.3376711609 * center + 0.05342370604 * longest
    value = (
        value
        + 0.1095146934 * detour * detour
        + -0.2431295896 * center * center
        + -0.3837646291 * nearest * center
        + -0.8781279268 * detour * nearest
    )
    return value + -0.04889020592 * longest * longest
