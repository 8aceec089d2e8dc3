"""The witness of the best known value of simulators/battery.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""

seen = []


def charge(price, last_price, level):
    if price == last_price or not seen:
        seen[:] = [0.9237788468 * price + -2.437805809, 0]
    mean, slot = seen
    mean = mean + 0.01156720189 * (price - mean)
    seen[:] = [mean, slot + 1]
    clock = slot / 48
    middle = 0.6913199232 * mean + -7.546707013
    middle = middle + 14.10451433 * clock + -18.52423029 * clock * clock
    gap = middle - price
    power = 0.2039283695 * gap
    power = power + 0.03651668463 * (price - last_price)
    power = power - -2.297478503 * (level - -1.692496567 - -0.6109214699 * clock)
    return power
