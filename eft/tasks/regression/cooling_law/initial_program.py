# EVOLVE-BLOCK-START
BASE = 1.0
SPEED_GAIN = 0.5
HEAT_GAIN = 0.2
MIX_GAIN = 0.02
CURVE = 0.0


def predict(speed, heat):
    """Cooling measured at this wind speed (0 to 4) and heat (0 to 3)."""
    y = BASE
    y = y + SPEED_GAIN * speed
    y = y + HEAT_GAIN * heat
    y = y + MIX_GAIN * speed * heat
    y = y + CURVE * heat * heat
    return y
# EVOLVE-BLOCK-END
