# EVOLVE-BLOCK-START
LIMIT = 1.0
FLAT = 0.3
STEEP = 0.5
CURVE = 0.1


def limit(ratio):
    """Share of the correction to a flux; ratio: slope behind a cell's face over slope at it."""
    if ratio <= 0:
        return 0.0
    share = STEEP * ratio
    share = share + CURVE * ratio * ratio
    share = min(share, LIMIT)
    share = share + FLAT * (1 - share)
    return share * ratio / (ratio + 0.5)
# EVOLVE-BLOCK-END
