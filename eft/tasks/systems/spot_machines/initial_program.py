# EVOLVE-BLOCK-START
RESERVE = 12.0
SPOT_LOSS = 1.0
RUNNING_GAIN = 1.0
SHARE_LOSS = 1.0


def demand(work_left, time_left, spot, running, share):
    """Above 0: pay for a machine on demand; else take a spot machine, or wait."""
    value = work_left - time_left
    value = value + RESERVE
    value = value - SPOT_LOSS * spot
    value = value + RUNNING_GAIN * running
    value = value - SHARE_LOSS * share
    return value
# EVOLVE-BLOCK-END
