# EVOLVE-BLOCK-START
FIRST_GAIN = -0.2
MIDDLE_GAIN = -0.4
LAST_GAIN = 0.1
SLOPE_GAIN = 0.01
TOTAL_GAIN = 0.3


def rank(first, middle, last, slope, total):
    """Jobs run in the order of their rank, the smallest first."""
    value = FIRST_GAIN * first
    value = value + MIDDLE_GAIN * middle
    value = value - LAST_GAIN * last
    value = value - SLOPE_GAIN * slope
    value = value + TOTAL_GAIN * total
    return value
# EVOLVE-BLOCK-END
