# EVOLVE-BLOCK-START
DETOUR_GAIN = 0.2
NEAR_GAIN = -0.4
CENTER_GAIN = 0.8
LONG_GAIN = 0.5


def cost(detour, nearest, center, longest):
    """Cost of inserting a city into a tour; the cheapest insertion is made."""
    value = DETOUR_GAIN * detour
    value = value + NEAR_GAIN * nearest
    value = value + CENTER_GAIN * center
    value = value + LONG_GAIN * longest
    return value
# EVOLVE-BLOCK-END
