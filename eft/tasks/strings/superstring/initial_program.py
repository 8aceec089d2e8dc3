# EVOLVE-BLOCK-START
OVERLAP_GAIN = 0.1
LEFT_GAIN = 0.2
RIGHT_GAIN = 0.1
LENGTH_GAIN = 0.05


def rank(overlap, left_rival, right_rival, length):
    """The pair of pieces with the largest rank is joined next."""
    value = OVERLAP_GAIN * overlap
    value = value + LEFT_GAIN * left_rival
    value = value + RIGHT_GAIN * right_rival
    value = value - LENGTH_GAIN * length
    return value
# EVOLVE-BLOCK-END
