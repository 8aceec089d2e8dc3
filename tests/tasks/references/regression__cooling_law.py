"""The witness of the best known value of regression/cooling_law.

The law behind the values, its constants fitted; the rest is noise.
"""


def predict(speed, heat):
    y = 0.4006351865 + 1.298244554 * heat * (0.2034055795 + speed) ** 0.4987061582 / (1 + 0.246410384 * heat)
    y = y + 0.1476331752 * heat * heat
    return y
