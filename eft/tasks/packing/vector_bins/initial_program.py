# EVOLVE-BLOCK-START
CPU_GAIN = 0.1
MEMORY_GAIN = -0.5
WASTE_GAIN = 0.2
BALANCE_GAIN = 0.1


def fit(cpu, memory, free_cpu, free_memory):
    """The fitting job with the largest value goes onto the machine."""
    value = CPU_GAIN * cpu
    value = value + MEMORY_GAIN * memory
    rest = (free_cpu - cpu) + (free_memory - memory)
    value = value - WASTE_GAIN * rest
    tilt = abs((free_cpu - cpu) - (free_memory - memory))
    value = value - BALANCE_GAIN * tilt
    return value
# EVOLVE-BLOCK-END
