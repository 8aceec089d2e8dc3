"""The witness of the best known value of simulators/pricing.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def price(days_left, seats_left, sold_today):
    time = days_left / 40
    share = seats_left / 120
    amount = 143.0511756 + -49.32150227 * time + 485.8024109 * time * time + -18.03506842 * sold_today
    amount = amount - 50.06211062 * share + 78.47307379 * share / (time + 3.958425343)
    pace = seats_left / (days_left + 1.571628922)
    amount = amount + 65.8298101 * sold_today / (pace + 0.5)
    amount = amount + -496.7726468 * time * share
    return max(amount, 1.0)
