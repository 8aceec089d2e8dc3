"""The witness of the best known value of regression/enzyme_rate."""


import math


def predict(food, poison, heat):
    full = 2.3949822447668625 * math.exp(0.4502062665385195 * heat)
    half = 0.8071040811789925 * (1 + poison / 0.7123550579075011)
    return full * food / (half + food + food * food / 9.074071554535367)
