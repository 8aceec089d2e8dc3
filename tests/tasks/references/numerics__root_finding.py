"""The witness of the best known value of numerics/root_finding."""


def improve(x, f, slope, curvature):
    """Halley's step, and a little more for large values."""
    step = f / slope
    bend = step * curvature / slope
    return x - step / (0.9999999753916222 - 0.5000429441829263 * bend - 0.03565630951607415 * f * f)
