# EVOLVE-BLOCK-START
RESERVE = 10.0
SHARE = 0.5
TREND_GAIN = 0.3
COLD_GAIN = 2.0


def catch(stock, last_stock, warmth):
    """Tons of fish to catch this season; warmth is about -1 to 1."""
    spare = stock - RESERVE
    amount = SHARE * spare
    growth = stock - last_stock
    amount = amount - TREND_GAIN * growth
    amount = amount - COLD_GAIN * warmth
    return max(amount, 0.0)
# EVOLVE-BLOCK-END
