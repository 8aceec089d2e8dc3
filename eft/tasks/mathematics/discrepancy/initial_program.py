# EVOLVE-BLOCK-START
STEP = 0.4
SHIFT_X = 0.0
SHIFT_Y = 0.1
SQUEEZE = 0.8


def run():
    """16 points [x, y] spread evenly over the unit square."""
    points = []
    for k in range(16):
        x = SHIFT_X + k / 16
        y = SHIFT_Y + STEP * k
        y = y % 1.0
        y = SQUEEZE * y
        points.append([x, y])
    return points
# EVOLVE-BLOCK-END
