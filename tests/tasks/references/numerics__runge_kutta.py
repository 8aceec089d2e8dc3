"""The witness of the best known value of numerics/runge_kutta.

Our optimum: Nelder-Mead from Kutta's, Heun's and Ralston's methods.
"""


def run():
    return [[0.7564991629], [0.7260477076, 0.02172001304], [0.2259131078, -9.226031606, 9.999999995]]
