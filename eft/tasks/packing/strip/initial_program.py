# EVOLVE-BLOCK-START
WIDTH_GAIN = -0.2
HEIGHT_GAIN = -0.1
GAP_GAIN = 0.1
STEP_GAIN = 0.3


def fit(width, height, gap, wall):
    """The rectangle with the largest value goes into the gap between two walls."""
    value = WIDTH_GAIN * width
    value = value + HEIGHT_GAIN * height
    value = value - GAP_GAIN * (gap - width)
    step = abs(height - wall)
    value = value - STEP_GAIN * step
    return value
# EVOLVE-BLOCK-END
