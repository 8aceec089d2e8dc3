# EVOLVE-BLOCK-START
COUNT_GAIN = 0.4
SIZE_GAIN = 0.1
BALANCE_GAIN = -0.1


def cost(left_count, left_size, right_count, right_size):
    """The cut of the least cost is made; all are shares of the whole group."""
    value = COUNT_GAIN * max(left_count, right_count)
    value = value + SIZE_GAIN * (left_size + right_size)
    balance = abs(left_count * left_size - right_count * right_size)
    value = value + BALANCE_GAIN * balance
    return value
# EVOLVE-BLOCK-END
