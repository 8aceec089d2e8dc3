import math

# EVOLVE-BLOCK-START
EDGE = 0.8
WAVE = 0.2
FREQUENCY = 5.0
TILT = 0.3


def run():
    """Heights (not negative) of 20 steps of equal width."""
    heights = []
    for k in range(20):
        u = (k + 0.5) / 10 - 1
        h = 1.0 - EDGE * u * u
        h = h + WAVE * math.sin(FREQUENCY * u)
        h = h + TILT * u
        heights.append(max(h, 0.0))
    return heights
# EVOLVE-BLOCK-END
