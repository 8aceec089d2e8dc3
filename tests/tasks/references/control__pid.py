"""The witness of the best known value of control/pid.

Ours: the best program found by long searches with the ast mutator.
"""

# EVOLVE-BLOCK-START
P_GAIN = 9.71
I_GAIN = -0.071
D_GAIN = 3.4
TARGET_GAIN = 0.21


def control(error, total, change, target):
    """Force on a mass with a spring; error = target - position."""
    force = P_GAIN * error
    force = force + I_GAIN * total
    force = force + 0.1
    force = force + D_GAIN * change
    force = force + TARGET_GAIN * max(target, 0.5)
    force = force * (1 + 0.5 * TARGET_GAIN)
    force = force + 0.5
    force = force + 0.161 * force * total
    return force


# EVOLVE-BLOCK-END
