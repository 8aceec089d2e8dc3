"""The witness of the best known value of mathematics/cap_set."""


# ten triples of places, each pair of places in two of them
TRIPLES = {(0, 1, 2), (0, 1, 3), (0, 2, 4), (0, 3, 5), (0, 4, 5), (1, 2, 5), (1, 3, 4), (1, 4, 5), (2, 3, 4), (2, 3, 5)}


def priority(vector):
    """80 vectors with one of the triples as support, and 32 without a 0 and with an even number of 2s: a cap of 112."""
    support = tuple(k for k in range(6) if vector[k])
    if support in TRIPLES:
        return 1.0
    return 1.0 if len(support) == 6 and vector.count(2) % 2 == 0 else 0.0
