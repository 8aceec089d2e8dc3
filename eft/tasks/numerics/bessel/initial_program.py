# EVOLVE-BLOCK-START
C0 = 1.0
C1 = -0.2
C2 = 0.01
C3 = 0.0
SCALE = 1.0


def approximate(x):
    """The Bessel function J0(x) for x in [0, 5]; only + - * /."""
    t = SCALE * x
    t = t * t
    y = C3
    y = C2 + y * t
    y = C1 + y * t
    y = C0 + y * t
    return y
# EVOLVE-BLOCK-END
