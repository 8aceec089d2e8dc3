# EVOLVE-BLOCK-START
MIDDLE = 40.0
PRICE_GAIN = 0.02
LEVEL_GAIN = 0.5
TREND_GAIN = 0.02


def charge(price, last_price, level):
    """Power into the battery, -1 to 1 (negative: sell); level is 0 to 1."""
    power = PRICE_GAIN * (MIDDLE - price)
    trend = price - last_price
    power = power + TREND_GAIN * trend
    power = power - LEVEL_GAIN * (level - 0.5)
    return power
# EVOLVE-BLOCK-END
