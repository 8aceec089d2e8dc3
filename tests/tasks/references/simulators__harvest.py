"""The witness of the best known value of simulators/harvest.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def catch(stock, last_stock, warmth):
    trend = stock - last_stock
    goal = 6.971557588 + 8.82739268 * warmth + -0.4971982348 * trend
    amount = 0.1332839977 * (stock - goal)
    amount = amount + 3.953952556 + 0.8484787677 * warmth + 0.01510593377 * warmth * stock
    return max(amount, 0.0)
