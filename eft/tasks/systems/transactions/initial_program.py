# EVOLVE-BLOCK-START
DELAY_GAIN = -0.1
LENGTH_GAIN = -0.5
RIVALS_GAIN = -0.2
WRITES_GAIN = 0.2


def priority(delay, length, rivals, writes):
    """The transaction with the largest priority goes next into the schedule."""
    value = DELAY_GAIN * delay
    value = value + LENGTH_GAIN * length
    value = value + RIVALS_GAIN * rivals
    value = value + WRITES_GAIN * writes
    return value
# EVOLVE-BLOCK-END
