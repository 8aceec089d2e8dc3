# EVOLVE-BLOCK-START
WEIGHT_GAIN = 0.1
COUNT_GAIN = 0.4
OWN_GAIN = 0.5


def cost(left, right, own, left_count, right_count):
    """The key of the least cost becomes the root; all are shares of the range."""
    value = WEIGHT_GAIN * abs(left - right)
    value = value + COUNT_GAIN * abs(left_count - right_count)
    value = value - OWN_GAIN * own
    return value
# EVOLVE-BLOCK-END
