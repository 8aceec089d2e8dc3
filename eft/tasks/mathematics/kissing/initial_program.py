# EVOLVE-BLOCK-START
NORM = 4
MODULUS = 5
WEIGHT = 0.4
START = 1


def run():
    """Integer vectors in 7 dimensions, offered in turn as directions of touching balls."""
    offers = []
    for k in range(3**7):
        vector = [k // 3**j % 3 - 1 for j in range(7)]
        norm = code = 0
        for j in range(7):
            norm = norm + abs(vector[j])
            code = code + (j + START) * abs(vector[j])
        rank = abs(norm - NORM)
        rank = rank + WEIGHT * (code % MODULUS)
        offers.append([rank, vector])
    return [vector for rank, vector in sorted(offers)]
# EVOLVE-BLOCK-END
