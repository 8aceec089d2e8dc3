import math

# EVOLVE-BLOCK-START
TWIST = 2.0
HEIGHT = 0.8
OFFSET = 0.5
BEND = 0.3


def run():
    """Directions [x, y, z] of 10 points on a sphere."""
    points = []
    for k in range(10):
        z = 1 - 2 * (k + OFFSET) / 10
        z = HEIGHT * z
        z = z - BEND * z * z * z
        ring = math.sqrt(max(1 - z * z, 0.0))
        angle = TWIST * k
        x = ring * math.cos(angle)
        y = ring * math.sin(angle)
        points.append([x, y, z])
    return points
# EVOLVE-BLOCK-END
