# EVOLVE-BLOCK-START
DEAD_GAIN = 0.5
AGE_GAIN = 0.01
QUIET_GAIN = -0.005


def benefit(live, age, quiet):
    """The segment with the largest benefit is cleaned; live is a share, the others times."""
    value = DEAD_GAIN * (1 - live)
    value = value + AGE_GAIN * age
    value = value + QUIET_GAIN * quiet
    return value
# EVOLVE-BLOCK-END
