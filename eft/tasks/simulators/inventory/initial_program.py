# EVOLVE-BLOCK-START
TARGET = 40.0
STOCK_GAIN = 0.3
INCOMING_GAIN = 0.1
DEMAND_GAIN = 0.2


def order(stock, incoming, demand):
    """Units to order today; they arrive in three days. stock < 0: backlog."""
    gap = TARGET - stock
    amount = STOCK_GAIN * gap
    amount = amount - INCOMING_GAIN * incoming
    amount = amount + DEMAND_GAIN * demand
    return max(amount, 0.0)
# EVOLVE-BLOCK-END
