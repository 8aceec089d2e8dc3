# EVOLVE-BLOCK-START
ONE = 0.5
TWO = 0.3
NEIGHBOR = 0.2
ENDS = 0.1


def priority(vector):
    """How early a vector (6 entries of 0, 1, 2) is offered to the cap set."""
    value = 0.0
    for k in range(6):
        if vector[k] == 1:
            value = value + ONE * (1 + k % 2)
        if vector[k] == 2:
            value = value + TWO * (1 + k % 3)
        if vector[k] == vector[k - 1]:
            value = value - NEIGHBOR
    if vector[0] > vector[5]:
        value = value + ENDS
    return value
# EVOLVE-BLOCK-END
