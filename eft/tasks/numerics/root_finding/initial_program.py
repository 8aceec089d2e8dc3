# EVOLVE-BLOCK-START
NEWTON = 0.6
BEND = 0.2
STEEP = 0.1


def improve(x, f, slope, curvature):
    """A better guess of where f is 0; only + - * /, at most 12 of them."""
    step = f / slope
    move = NEWTON * step
    move = move + BEND * step * curvature / slope
    move = move + STEEP * f
    return x - move
# EVOLVE-BLOCK-END
