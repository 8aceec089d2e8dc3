# EVOLVE-BLOCK-START
RESERVE = 20.0
SHARE = 0.2
TREND_GAIN = 0.1
COLD_GAIN = 0.1


def catch(stock, last_stock, warmth):
    """Tons of fish to catch this season; warmth is about -1 to 1."""
    spare = stock - RESERVE
    amount = SHARE * spare
    growth = stock - last_stock
    amount = amount - TREND_GAIN * growth
    amount = amount - COLD_GAIN * warmth
    return max(amount, 0.0)
# EVOLVE-BLOCK-END
