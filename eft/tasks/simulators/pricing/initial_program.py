# EVOLVE-BLOCK-START
START_PRICE = 60.0
SEAT_GAIN = 0.1
DAY_GAIN = 0.2
SALES_GAIN = 0.1


def price(days_left, seats_left, sold_today):
    """Tomorrow's ticket price; 120 seats are for sale over 40 days."""
    amount = START_PRICE
    amount = amount - SEAT_GAIN * seats_left
    amount = amount + DAY_GAIN * days_left
    amount = amount + SALES_GAIN * sold_today
    return max(amount, 1.0)
# EVOLVE-BLOCK-END
