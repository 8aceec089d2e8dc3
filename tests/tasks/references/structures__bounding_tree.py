"""The witness of the best known value of structures/bounding_tree.

Ours: the surface area heuristic with further terms, constants tuned by random search and Nelder-Mead.
"""

C = (5.82206, -0.0390283, 0.0879292, 0.194132, 2.37049, 0.1546)


def cost(left_count, left_size, right_count, right_size):
    value = 0.0
    for count, size in ((left_count, left_size), (right_count, right_size)):
        value += (abs(size) + 1e-6) ** C[0] * count ** C[4] + C[1] * size + C[5] * size * size
    return value + C[2] * abs(left_count - right_count) + C[3] * max(left_size, right_size)
