import math

# EVOLVE-BLOCK-START
ROW = 0.9
BOTH = 0.4
SQUARE = 0.2
TILT = 0.3


def run():
    """A 15 x 15 matrix of numbers whose signs count."""
    rows = []
    for i in range(15):
        row = []
        for j in range(15):
            angle = ROW * (i - j)
            angle = angle + SQUARE * (i - j) * (i - j)
            value = math.cos(angle) + TILT
            value = value + BOTH * math.sin(i * j)
            row.append(value)
        rows.append(row)
    return rows
# EVOLVE-BLOCK-END
