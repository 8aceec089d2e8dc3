"""The witness of the best known value of signals/smoothing.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def smooth(sample, level, trend):
    ahead = level + 0.006923513882 * trend
    surprise = sample - ahead
    size = abs(surprise)
    surprise = surprise / (1 + (size / 2.712596912) ** 168.5937544)
    level = ahead + 0.2899167209 * surprise
    trend = 0.7060268739 * trend + 2.589576696 * surprise + 1.097090252 * surprise * size
    return [level, trend]
