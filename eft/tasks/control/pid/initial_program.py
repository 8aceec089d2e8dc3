# EVOLVE-BLOCK-START
P_GAIN = 0.5
I_GAIN = 0.05
D_GAIN = 0.1
TARGET_GAIN = 0.1


def control(error, total, change, target):
    """Force on a mass with a spring; error = target - position."""
    force = P_GAIN * error
    force = force + I_GAIN * total
    force = force + D_GAIN * change
    force = force + TARGET_GAIN * target
    return force
# EVOLVE-BLOCK-END
