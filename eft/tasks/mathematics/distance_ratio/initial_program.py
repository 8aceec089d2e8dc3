import math

# EVOLVE-BLOCK-START
TURN = 2.0
INNER = 0.4
GROW = 0.7
SWAY = 0.1


def run():
    """16 points [x, y] in the plane."""
    points = []
    for k in range(16):
        angle = TURN * k
        radius = INNER + GROW * k / 16
        radius = radius + SWAY * math.cos(3 * angle)
        x = radius * math.cos(angle)
        y = radius * math.sin(angle)
        points.append([x, y])
    return points
# EVOLVE-BLOCK-END
