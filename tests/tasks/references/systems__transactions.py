"""The witness of the best known value of systems/transactions.

Ours: a stronger hand-written rule, its constants tuned by random search and Nelder-Mead.
"""

C = (-1.41103, -1.45164, 0.792271, 0.026423, 0.0899099, 0.0306992, 0.0454138)


def priority(delay, length, rivals, writes):
    late = max(delay, 0)
    value = C[0] * late + C[1] * min(delay, 0) + C[2] * length + C[3] * rivals + C[4] * writes
    return value + C[5] * rivals * length + C[6] * late * late
