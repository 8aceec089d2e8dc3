"""The witness of the best known value of packing/vector_bins.

Ours: a stronger hand-written rule, its constants tuned by random search and Nelder-Mead.
"""

C = (1.94248, 1.19629, 1.13931, 0.98772, 1.21018, 0.391083, 0.393176)


def fit(cpu, memory, free_cpu, free_memory):
    dot = cpu * free_cpu + C[0] * memory * free_memory
    left, right = free_cpu - cpu, free_memory - memory
    size = C[1] * cpu + C[2] * memory
    return dot + size - C[3] * abs(left - right) ** abs(C[4]) - C[5] * (left + right) ** 0.5 + C[6] * (left * right)
