"""The witness of the best known value of scheduling/project.

Ours: a stronger hand-written rule, its constants tuned by random search and Nelder-Mead.
"""

C = (0.508095, 0.736307, 0.0838302, 3.02719, 0.0365274, -0.000652167, 0.428761, -0.0326352)


def priority(time, tail, followers, need):
    value = C[0] * time + C[1] * tail + C[2] * followers + C[3] * need
    return value + C[4] * need * time + C[5] * tail * tail / 20 + C[6] * followers * need + C[7] * time * time / 5
