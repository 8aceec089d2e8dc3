# EVOLVE-BLOCK-START
REACH = 0.95
CUBE = 0.02
SHIFT = 0.01
FIRST = 0.01


def run():
    """10 places in [-1, 1] where a function is sampled for interpolation."""
    nodes = []
    for k in range(10):
        u = (2 * k - 9) / 9
        x = REACH * u
        x = x - CUBE * u * u * u
        x = x + SHIFT
        if k == 0:
            x = x - FIRST
        nodes.append(x)
    return nodes
# EVOLVE-BLOCK-END
