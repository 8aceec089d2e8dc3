import math

# EVOLVE-BLOCK-START
START = 0.5
LINEAR = 0.7
SQUARE = 1.3
TILT = 0.6


def run():
    """27 numbers whose signs make a sequence."""
    values = []
    for k in range(27):
        place = k + START
        angle = LINEAR * place
        angle = angle + SQUARE * place * place
        value = math.cos(angle)
        value = value + TILT * math.sin(2 * angle)
        values.append(value)
    return values
# EVOLVE-BLOCK-END
