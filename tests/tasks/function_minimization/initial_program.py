# EVOLVE-BLOCK-START
"""Function minimization: find the lowest point of a bumpy function of two variables."""
import numpy as np


def search_algorithm(iterations=1000, bounds=(-5, 5)):
    """Random search. Returns (x, y, value) of the best point found."""
    best_x = np.random.uniform(bounds[0], bounds[1])
    best_y = np.random.uniform(bounds[0], bounds[1])
    best_value = evaluate_function(best_x, best_y)
    for _ in range(iterations):
        x = np.random.uniform(bounds[0], bounds[1])
        y = np.random.uniform(bounds[0], bounds[1])
        value = evaluate_function(x, y)
        if value < best_value:
            best_value, best_x, best_y = value, x, y
    return best_x, best_y, best_value


# EVOLVE-BLOCK-END


def evaluate_function(x, y):
    """The function to minimize: many local minima, the global one near (-1.704, 0.678) with the value -1.519."""
    return np.sin(x) * np.cos(y) + np.sin(x * y) + (x**2 + y**2) / 20


def run_search():
    return search_algorithm()
