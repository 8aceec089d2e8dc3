"""The witness of the best known value of systems/log_cleaning.

Ours: cost and benefit as log-structured file systems weigh them, constants tuned by random search and Nelder-Mead.
"""

C = (9.90215, -0.170289, -0.865158, -10.2693, 15.5079, 0.0596478)


def benefit(live, age, quiet):
    gain = (1 - live) / (C[5] ** 2 + live)
    return gain ** abs(C[0]) * (abs(C[3]) + age) ** C[1] * (abs(C[4]) + quiet) ** C[2]
