"""The witness of the best known value of control/pid.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def control(error, total, change, target):
    force = (
        11.55272449 * error
        + 6.434971548 * total
        + 3.726097893 * change
        + -2.48131716 * target
        + -1.100799999 * target * target
        + 0.3193936204 * error * abs(error)
    )
    force = force + 0.1283132003 * change * abs(change) + 1.303970924 * abs(target)
    return force + -0.8961731904 * error * abs(target)
