"""A flux limiter for advection: profiles are carried once around a ring of 32 cells, and compared with what they were.

The candidate's function is asked for 201 slope ratios; the scheme (upwind flux plus limited Lax-Wendroff correction,
Courant number 0.5) runs here on that table, linear between its entries. So profiles never leave this process. The raw
metric is the mean absolute error per cell over the profiles; hidden profiles are others of the same kinds: boxes,
triangles, waves and bells.
"""

import math

from eft.tasks import scoring

CELLS, COURANT = 32, 0.5
STEPS = int(CELLS / COURANT)
REACH, PER_UNIT = 5, 20  # the table holds ratios from -5 to 5
RATIOS = [k / PER_UNIT - REACH for k in range(2 * REACH * PER_UNIT + 1)]

DRIVER = """
def drive(limit, ratios):
    return [float(limit(ratio)) for ratio in ratios]
"""


def profile(kind, seed):
    """Cell values of a profile on the ring."""
    draw = scoring.stream(13000 + seed)
    middle, width, height = CELLS * draw(), CELLS * (0.15 + 0.15 * draw()), 0.6 + 0.6 * draw()
    turns = 2 * math.pi * (1 + int(2 * draw()))
    values = []
    for k in range(CELLS):
        away = abs((k - middle + CELLS / 2) % CELLS - CELLS / 2) / width
        values.append(height * {
            "box": 1.0 if away < 1 else 0.0,
            "triangle": max(1 - away, 0.0),
            "wave": 0.5 + 0.5 * math.sin(turns * (k - middle) / CELLS),
            "bell": math.exp(-2 * away * away),
        }[kind])  # fmt: skip
    return values


KINDS = ("box", "triangle", "wave", "bell")
SEARCH = [profile(kind, k) for k, kind in enumerate(KINDS * 2)]
HIDDEN = [profile(kind, 20 + k) for k, kind in enumerate(KINDS * 2)]


def carry(cells, table):
    """Cell values after one turn around the ring."""
    last, half = len(table) - 1, 0.5 * (1 - COURANT)
    for _ in range(STEPS):
        slopes = [here - behind for behind, here in zip([cells[-1], *cells], cells, strict=False)]
        fluxes = []  # through the face above each cell
        for here, behind, slope in zip(cells, slopes, slopes[1:] + slopes[:1], strict=True):
            if -1e-9 < slope < 1e-9:
                fluxes.append(here)
                continue
            place = (behind / slope + REACH) * PER_UNIT
            if place <= 0:
                share = table[0]
            elif place >= last:
                share = table[last]
            else:
                left = int(place)
                share = table[left] + (place - left) * (table[left + 1] - table[left])
            fluxes.append(here + half * share * slope)
        cells = [v - COURANT * (out - in_) for v, in_, out in zip(cells, [fluxes[-1], *fluxes], fluxes, strict=False)]
        if not max(cells) - min(cells) < 1e3:
            raise scoring.Invalid("the scheme is unstable: its values grow without bound")
    return cells


def score(value, profiles):
    table = scoring.numbers(value, len(RATIOS), "shares", -10.0, 10.0)
    total = sum(abs(a - b) for exact in profiles for a, b in zip(carry(exact, table), exact, strict=True))
    error = total / CELLS / len(profiles)
    return {"combined_score": 0.05 / (0.02 + error), "error_per_cell": error}


def evaluate(program_path, hidden=False):
    profiles = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="limit", driver=DRIVER, args=(RATIOS,), score=lambda value: score(value, profiles)
    )
