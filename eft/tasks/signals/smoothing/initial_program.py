# EVOLVE-BLOCK-START
LEVEL_GAIN = 0.15
TREND_GAIN = 0.02
DAMPING = 0.5
CLIP = 4.0


def smooth(sample, level, trend):
    """New [level, trend] of a noisy signal; the level is the estimate."""
    ahead = level + DAMPING * trend
    surprise = sample - ahead
    surprise = min(surprise, CLIP)
    surprise = max(surprise, -CLIP)
    level = ahead + LEVEL_GAIN * surprise
    trend = DAMPING * trend + TREND_GAIN * surprise
    return [level, trend]
# EVOLVE-BLOCK-END
