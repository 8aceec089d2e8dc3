# EVOLVE-BLOCK-START
FIRST = 1.2
GROWTH = 0.3
BEND = 0.02
ODD = 0.8


def run():
    """Factors of 8 relaxation sweeps; a sweep scales an error part by 1 - factor * s."""
    factors = []
    for k in range(8):
        factor = FIRST + GROWTH * k
        factor = factor + BEND * k * k
        if k % 2 == 1:
            factor = factor * ODD
        factors.append(factor)
    return factors
# EVOLVE-BLOCK-END
