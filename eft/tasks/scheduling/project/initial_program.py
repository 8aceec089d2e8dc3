# EVOLVE-BLOCK-START
TIME_GAIN = -0.5
TAIL_GAIN = 0.05
FOLLOWERS_GAIN = -0.2
NEED_GAIN = -1.0


def priority(time, tail, followers, need):
    """The ready activity with the largest priority is planned next."""
    value = TIME_GAIN * time
    value = value + TAIL_GAIN * tail
    value = value + FOLLOWERS_GAIN * followers
    value = value + NEED_GAIN * need
    return value
# EVOLVE-BLOCK-END
