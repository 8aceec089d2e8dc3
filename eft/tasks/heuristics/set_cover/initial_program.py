# EVOLVE-BLOCK-START
COST_LOSS = 0.3
FRESH_GAIN = 0.1
SIZE_GAIN = 0.3
RARITY_GAIN = 0.1


def worth(cost, fresh, size, rarity):
    """The set with the largest worth is taken next."""
    value = FRESH_GAIN * fresh
    value = value + SIZE_GAIN * size
    value = value + RARITY_GAIN * rarity
    value = value - COST_LOSS * cost
    return value
# EVOLVE-BLOCK-END
