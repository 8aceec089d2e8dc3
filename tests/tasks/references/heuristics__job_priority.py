"""The witness of the best known value of heuristics/job_priority.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""

import math


def priority(weight, time, slack):
    wait = max(slack + 0.07172708565, 0.0)
    value = weight / (time + -0.4957921597) ** 1.097548262
    value = value * math.exp(-wait / (0.1501067254 + 1.591668074 * time))
    return value + -0.0009521126179 * weight
