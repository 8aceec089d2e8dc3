"""Two cemented lenses (crown, flint) that image a distant object onto a plane 100 mm behind the first surface.

Rays of three colors, parallel to the axis and tilted by one degree, are traced exactly through the three spherical
surfaces (in the meridional plane); the raw metric is the root mean square, in micrometers, of how far they miss their
image point, which lies at height 100 tan(tilt). A ray that misses a surface or is reflected back makes the
lens invalid.
"""

import math

from eft.tasks import scoring

PLANE = 100.0
HEIGHTS = [2.0 * k for k in range(-5, 6)]  # where rays cross the first surface's tangent plane, mm
TILTS = [0.0, math.radians(1.0)]
# refractive indices of crown and flint glass for blue, yellow and red
GLASSES = ((1.52238, 1.63208), (1.51680, 1.62004), (1.51432, 1.61503))


def trace(curvatures, places, indices, height, tilt):
    """The height of a ray at the image plane; a ray is a point and a direction (unit vector)."""
    z, y = 0.0, height
    dz, dy = math.cos(tilt), math.sin(tilt)
    for curvature, place, before, after in zip(curvatures, places, indices, indices[1:], strict=False):
        # to the tangent plane of the surface, then onto the sphere
        y += (place - z) * dy / dz
        half = dz - curvature * y * dy
        inside = half * half - curvature * curvature * y * y
        if inside < 0:
            raise scoring.Invalid("a ray misses a surface")
        way = curvature * y * y / (half + math.sqrt(inside)) if half > 0 else math.inf
        if not -50 < way < 50:
            raise scoring.Invalid("a ray misses a surface")
        z, y = place + way * dz, y + way * dy
        # Snell's law in vectors: the normal points along the ray
        nz, ny = 1 - curvature * (z - place), -curvature * y
        cosine = nz * dz + ny * dy
        ratio = before / after
        rest = 1 - ratio * ratio * (1 - cosine * cosine)
        if rest < 0 or cosine <= 0:
            raise scoring.Invalid("a ray is reflected back")
        bend = math.sqrt(rest) - ratio * cosine
        dz, dy = ratio * dz + bend * nz, ratio * dy + bend * ny
        if dz < 0.1:
            raise scoring.Invalid("a ray is bent too far")
    return y + (PLANE - z) * dy / dz


def score(value):
    if not isinstance(value, list) or len(value) != 2:
        raise scoring.Invalid("the lens must be [curvatures, thicknesses]")
    curvatures = scoring.numbers(value[0], 3, "curvatures", -0.1, 0.1)
    first, second = scoring.numbers(value[1], 2, "thicknesses", 0.5, 20.0)
    places = (0.0, first, first + second)
    # each glass must stay at least 0.2 mm thick over the whole aperture (half of it: 10 mm)
    sags = [(c * 100) / (1 + math.sqrt(1 - c * c * 100)) if c * c * 100 < 1 else None for c in curvatures]
    if None in sags:
        raise scoring.Invalid("a surface is too curved for the aperture")
    if first - sags[0] + sags[1] < 0.2 or second - sags[1] + sags[2] < 0.2:
        raise scoring.Invalid("a lens is too thin at its rim")
    total = count = 0
    for crown, flint in GLASSES:
        for tilt in TILTS:
            target = PLANE * math.tan(tilt)
            for height in HEIGHTS:
                miss = trace(curvatures, places, (1.0, crown, flint, 1.0), height, tilt) - target
                total += miss * miss
                count += 1
    blur = 1000 * math.sqrt(total / count)
    return {"combined_score": scoring.digits(blur / 10000), "blur": blur}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
