"""The witness of the best known value of systems/load_balancing.

Ours: a stronger hand-written rule, its constants tuned by differential evolution and Nelder-Mead.
"""


def cost(queue, work, speed, size):
    load = 0.24743129 * work + -0.1409793303 * queue + size
    value = load / speed**0.3131399574
    value = value + 0.596206873 * queue + 0.3062781405 * speed + 0.1705706637 * size * speed
    return value + -0.4624454292 * speed / (size + 0.1074161433)
