# EVOLVE-BLOCK-START
SLOPE = 0.6
SAG = 0.8
EARLY = 0.2
LEAST = 0.05


def run():
    """How far 11 points of a slide lie below its start; it ends 1 below and 3 aside."""
    depths = []
    for k in range(11):
        u = (k + 1) / 12
        depth = SLOPE * u
        depth = depth + SAG * u * (1 - u)
        depth = depth + EARLY * (1 - u) * (1 - u)
        depth = max(depth, LEAST)
        depths.append(depth)
    return depths
# EVOLVE-BLOCK-END
