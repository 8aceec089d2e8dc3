"""The witness of the best known value of scheduling/flow_shop.

Ours: Palmer's slope index with further terms, constants tuned by random search and Nelder-Mead.
"""

C = (2.66197, -0.0795139, -1.37182, -1.2365, -0.620286, 0.953416, 0.218231, 0.164226)


def rank(first, middle, last, slope, total):
    value = C[0] * first + C[1] * middle + C[2] * last + C[3] * slope + C[4] * total
    return value + C[5] * slope * total / 30 + C[6] * min(first, last) + C[7] * (first - last) ** 2 / 5
