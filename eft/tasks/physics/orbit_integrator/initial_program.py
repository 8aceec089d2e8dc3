# EVOLVE-BLOCK-START
D1 = 0.1
D2 = 0.3
K1 = 0.3
SKEW = 0.02


def run():
    """A step of an orbit: shares of its 5 drifts and 4 kicks, in turn; each adds up to 1."""
    drifts = [D1, D2]
    drifts.append(1 - 2 * D1 - 2 * D2)
    drifts.append(D2 + SKEW)
    drifts.append(D1 - SKEW)
    kicks = [K1, 0.5 - K1]
    kicks.append(0.5 - K1)
    kicks.append(K1)
    return [drifts, kicks]
# EVOLVE-BLOCK-END
