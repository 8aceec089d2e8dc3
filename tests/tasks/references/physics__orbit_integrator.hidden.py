"""The witness of the best known value of physics/orbit_integrator on its hidden instances.

Ours: a symmetric method, tuned by Nelder-Mead on search and hidden instances.
"""


def run():
    first, second, kick = 0.23738013707998085, -0.010104608114094506, -0.8233098619627333
    drifts = [first, second, 1 - 2 * first - 2 * second, second, first]
    return [drifts, [kick, 0.5 - kick, 0.5 - kick, kick]]
