# EVOLVE-BLOCK-START
VALUE_POWER = 0.3
WEIGHT_GAIN = 0.1
VOLUME_GAIN = -0.3
COST_GAIN = 0.3
BASE = 5.0


def rank(value, weight, volume, cost):
    """Items are packed in the order of their rank, the largest first."""
    size = BASE
    size = size + WEIGHT_GAIN * weight
    size = size + VOLUME_GAIN * volume
    size = size + COST_GAIN * cost
    gain = value ** VALUE_POWER
    return gain / size
# EVOLVE-BLOCK-END
