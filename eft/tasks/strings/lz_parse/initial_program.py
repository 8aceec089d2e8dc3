# EVOLVE-BLOCK-START
BASE = -0.5
LENGTH_GAIN = 0.3
DISTANCE_LOSS = 0.05
AFTER_GAIN = 0.5


def worth(length, distance, after):
    """The copy of the largest worth is taken; none above 0: a plain character."""
    value = BASE
    value = value + LENGTH_GAIN * length
    value = value - DISTANCE_LOSS * distance
    value = value + AFTER_GAIN * after
    return value
# EVOLVE-BLOCK-END
