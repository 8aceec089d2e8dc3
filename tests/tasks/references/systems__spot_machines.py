"""The witness of the best known value of systems/spot_machines.

Ours: a stronger hand-written rule, constants tuned by random search and Nelder-Mead.
"""

C = (-0.0742192, 2.94778, 0.409113, 0.100951, -0.025384, 1.72611, -0.0802814)


def demand(work_left, time_left, spot, running, share):
    value = work_left - time_left + C[0] + C[1] * running + C[2] * time_left * (1 - share) + C[3] * share
    return value - C[4] * spot * time_left * share - C[5] * spot + C[6] * running * time_left
