# EVOLVE-BLOCK-START
A21 = 0.4
A31 = 0.1
A32 = 0.4
B1 = 0.5
B2 = 0.2
B3 = 0.2


def run():
    """A three-stage Runge-Kutta method: k2 uses A21, k3 uses A31 and A32."""
    second = [A21]
    third = [A31, A32]
    weights = [B1, B2, B3]
    return [second, third, weights]
# EVOLVE-BLOCK-END
