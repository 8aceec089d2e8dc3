import math

# EVOLVE-BLOCK-START
TURN = 2.2
TALL = 0.9
BULGE = 1.0
LIFT = 0.1


def run():
    """Places [x, y, z] of 13 atoms; their scale does not matter."""
    atoms = []
    for k in range(13):
        z = TALL * (k - 6) / 6
        ring = BULGE * math.sqrt(max(1.2 - z * z, 0.0))
        angle = TURN * k
        x = ring * math.cos(angle)
        y = ring * math.sin(angle)
        z = z + LIFT * math.cos(2 * angle)
        atoms.append([x, y, z])
    return atoms
# EVOLVE-BLOCK-END
