"""The witness of the best known value of physics/flux_limiter."""


# (slope ratio, share), linear between them; 0 below, constant above
KNOTS = [
    [0.0, 0.0],
    [0.25, 0.9992958952046117],
    [0.5, 0.80393790021979],
    [1.0, 1.0273780603913325],
    [1.5, 1.2052519077914015],
    [2.0, 3.6606571638920298],
    [3.0, 4.099819607518588],
    [5.0, 3.489163242740165],
]


def limit(ratio):
    if ratio <= 0:
        return 0.0
    for (a, low), (b, high) in zip(KNOTS, KNOTS[1:]):
        if ratio <= b:
            return low + (ratio - a) / (b - a) * (high - low)
    return KNOTS[-1][1]
