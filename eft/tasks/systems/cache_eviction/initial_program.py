# EVOLVE-BLOCK-START
AGE_GAIN = 0.1
COUNT_GAIN = 0.5
SIZE_GAIN = 0.2
PRICE_GAIN = 0.1


def keep(age, count, size, price):
    """Worth of keeping an object; the least worth is evicted first."""
    value = COUNT_GAIN * count
    value = value - AGE_GAIN * age
    value = value - SIZE_GAIN * size
    value = value + PRICE_GAIN * price
    return value
# EVOLVE-BLOCK-END
