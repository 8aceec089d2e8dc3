"""The witness of the best known value of systems/cache_eviction.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def keep(age, count, size, price):
    rate = (count + -0.7091460595) ** 0.5797017513 / (age + 0.6999980613) ** 0.6343064691
    return rate * (price + 0.3684611561) ** 1.44446238 / (size + -0.3692114394) ** 1.738044953
