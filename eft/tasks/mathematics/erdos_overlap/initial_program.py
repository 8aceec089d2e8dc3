import math

# EVOLVE-BLOCK-START
MIDDLE = 0.8
FALL = 0.6
WAVE = 0.2
FREQUENCY = 6.0


def run():
    """21 steps of a density; they are shifted, and cut to 0 … 1, until their mean is 1/2."""
    heights = []
    for k in range(21):
        u = (k - 10) / 10.5
        h = MIDDLE - FALL * u * u
        h = h + WAVE * math.cos(FREQUENCY * u)
        h = h + 0.05 * u
        heights.append(h)
    return heights
# EVOLVE-BLOCK-END
