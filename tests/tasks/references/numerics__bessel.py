"""The witness of the best known value of numerics/bessel.

Our optimum: a rational function of degree 6/4 fitted by Nelder-Mead.
"""


def approximate(x):
    t = x * x
    a = -0.0001005255842
    a = 0.009313284611 + a * t
    a = -0.223414256 + a * t
    a = 0.9999813173 + a * t
    b = 0.0003594343276
    b = 0.0265120712 + b * t
    b = 1.0 + b * t
    return a / b
