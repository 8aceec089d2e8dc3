# EVOLVE-BLOCK-START
QUEUE_GAIN = 0.2
WORK_GAIN = 0.1
SPEED_GAIN = 0.1
JOB_GAIN = 0.2


def cost(queue, work, speed, size):
    """Cost of sending a job of this size to a server; the cheapest server gets it."""
    value = QUEUE_GAIN * queue
    value = value + WORK_GAIN * work
    value = value - SPEED_GAIN * speed
    value = value + JOB_GAIN * size / speed
    return value
# EVOLVE-BLOCK-END
