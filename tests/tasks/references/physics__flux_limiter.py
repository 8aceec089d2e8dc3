"""The witness of the best known value of physics/flux_limiter."""


# (slope ratio, share), linear between them; 0 below, constant above
KNOTS = [
    [0.0, 0.0],
    [0.25, 0.9992367975945157],
    [0.5, 0.8039237188321456],
    [1.0, 1.0273572414485115],
    [1.5, 1.2053574808387908],
    [2.0, 3.6571435398026284],
    [3.0, 4.09757729059126],
    [5.0, 3.4932594154292986],
]


def limit(ratio):
    if ratio <= 0:
        return 0.0
    for (a, low), (b, high) in zip(KNOTS, KNOTS[1:], strict=False):
        if ratio <= b:
            return low + (ratio - a) / (b - a) * (high - low)
    return KNOTS[-1][1]
