# EVOLVE-BLOCK-START
FULL = 1.0
HALF = 2.0
BLOCK = 0.3
WARM = 0.1
CURVE = 0.0


def predict(food, poison, heat):
    """Rate of a reaction: amounts of food (0 to 6) and poison (0 to 3), heat (-1 to 1)."""
    rate = FULL * food / (HALF + food)
    rate = rate - BLOCK * poison
    rate = rate + WARM * heat
    rate = rate + CURVE * food * food
    return rate
# EVOLVE-BLOCK-END
