# EVOLVE-BLOCK-START
X1 = 0.1
X2 = 0.4
X3 = 0.8
W1 = 0.3
W2 = 0.3
W3 = 0.3


def run():
    """Integral of f over [0, 1] as a sum of weight * f(node)."""
    rule = []
    rule.append([X1, W1])
    rule.append([X2, W2])
    rule.append([X3, W3])
    return rule
# EVOLVE-BLOCK-END
