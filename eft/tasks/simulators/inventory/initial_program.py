# EVOLVE-BLOCK-START
TARGET = 30.0
STOCK_GAIN = 0.5
INCOMING_GAIN = 0.2
DEMAND_GAIN = 0.2


def order(stock, incoming, demand):
    """Units to order today; they arrive in three days. stock < 0: backlog."""
    gap = TARGET - stock
    amount = STOCK_GAIN * gap
    amount = amount - INCOMING_GAIN * incoming
    amount = amount + DEMAND_GAIN * demand
    return max(amount, 0.0)
# EVOLVE-BLOCK-END
