import math

# EVOLVE-BLOCK-START
MIDDLE_X = 0.5
MIDDLE_Y = 0.5
RING = 0.24
PHASE = 0.2
STRETCH = 0.8


def run():
    """Centers [x, y] of 7 circles in the unit square."""
    centers = [[MIDDLE_X, MIDDLE_Y]]
    for k in range(6):
        angle = PHASE + k * math.pi / 3
        x = 0.5 + RING * math.cos(angle)
        y = 0.5 + STRETCH * RING * math.sin(angle)
        centers.append([x, y])
    return centers
# EVOLVE-BLOCK-END
