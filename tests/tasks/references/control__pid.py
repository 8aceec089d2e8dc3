"""The witness of the best known value of control/pid.

Ours: the form of the best program of long searches with the ast mutator, its constants tuned by Nelder-Mead.
"""


def control(error, total, change, target):
    force = 12.701456713576485 * error + 10.194098240743592 * total + 4.148878046596105 * change
    force = force - 5.238829784589103 * target + 0.229164726005617
    force = force + 0.07209569115864202 * max(target, 70.59340656421065)
    force = force - 0.15140654071440304 * force * total
    return force - 1.7156987621263284 * abs(error) * error
