"""The witness of the best known value of control/pid on its hidden instances.

Ours: the form of the search's best program, its constants tuned by Nelder-Mead on search and hidden instances.
"""


def control(error, total, change, target):
    force = 9.500956076069883 * error - 1.8292587998111358 * total + 3.890849944843078 * change
    force = force + 0.5285120542423494 * target - 0.9241578377039172
    force = force + 1.430815924450274 * max(target, 0.6018568727094018)
    force = force + 0.5156539612294321 * force * total
    return force - 0.14074562746602823 * abs(error) * error
