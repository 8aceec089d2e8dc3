"""The witness of the best known value of packing/strip.

Ours: a stronger hand-written rule, its constants tuned by random search and Nelder-Mead.
"""

C = (1.53693, 0.722372, 0.407471, 0.545821, 1.38519, 0.360854, 1.34809, -0.152818)


def fit(width, height, gap, wall):
    rest, step = gap - width, height - wall
    value = C[0] * height + C[1] * width * height - C[2] * rest
    value = value + C[3] * (rest < 0.02) - C[4] * abs(step) + C[5] * (gap > 0.9) * height
    return value + C[6] * width + C[7] * height * height - 0.1 * C[2] * (0.02 < rest < 0.1)
