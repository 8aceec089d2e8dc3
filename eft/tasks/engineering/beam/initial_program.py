# EVOLVE-BLOCK-START
ROOT_HEIGHT = 0.9
TIP_HEIGHT = 0.9
CURVE = 0.1
WIDTH = 0.4


def run():
    """[height, width] of 10 segments of a beam, from the wall to the loaded tip."""
    segments = []
    for k in range(10):
        u = k / 9
        height = ROOT_HEIGHT * (1 - u)
        height = height + TIP_HEIGHT * u
        height = height + CURVE * u * (1 - u)
        width = WIDTH
        segments.append([height, width])
    return segments
# EVOLVE-BLOCK-END
