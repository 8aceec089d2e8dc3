# EVOLVE-BLOCK-START
VALUE_POWER = 0.5
WEIGHT_GAIN = 1.0
VOLUME_GAIN = 0.2
COST_GAIN = 0.0
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
