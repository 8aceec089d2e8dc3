"""The witness of the best known value of systems/spot_machines.

Ours: a stronger hand-written rule, constants tuned by random search and Nelder-Mead.
"""

C = (1.75642, 1.63086, 0.311608, 0.0207254, 0.0789424, 2.38602, -0.036584)


def demand(work_left, time_left, spot, running, share):
    value = work_left - time_left + C[0] + C[1] * running + C[2] * time_left * (1 - share) + C[3] * share
    return value - C[4] * spot * time_left * share - C[5] * spot + C[6] * running * time_left
