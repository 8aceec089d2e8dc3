# EVOLVE-BLOCK-START
WEIGHT_GAIN = 1.0
TIME_GAIN = 0.2
SLACK_GAIN = 0.5
LATE_BONUS = 1.0


def priority(weight, time, slack):
    """The job with the largest priority runs next; slack < 0: it will be late."""
    value = WEIGHT_GAIN * weight
    value = value - TIME_GAIN * time
    value = value - SLACK_GAIN * slack
    if slack < 0:
        value = value + LATE_BONUS
    return value
# EVOLVE-BLOCK-END
