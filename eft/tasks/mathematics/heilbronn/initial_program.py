import math

# EVOLVE-BLOCK-START
TURN = 1.9
INNER = 0.15
GROW = 0.4
LIFT = 0.03


def run():
    """9 points [x, y] in the unit square, no three near one line."""
    points = []
    for k in range(9):
        angle = TURN * k
        radius = INNER + GROW * k / 9
        x = 0.5 + radius * math.cos(angle)
        y = 0.5 + radius * math.sin(angle)
        y = y + LIFT * k * (1 - x)
        x = min(max(x, 0.0), 1.0)
        y = min(max(y, 0.0), 1.0)
        points.append([x, y])
    return points
# EVOLVE-BLOCK-END
