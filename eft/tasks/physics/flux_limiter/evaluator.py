"""A flux limiter for advection: profiles are carried once around a ring of 40 cells, and compared with what they were.

The candidate's function is asked for 201 slope ratios; the scheme (upwind flux plus limited Lax-Wendroff correction,
Courant number 0.5) runs here on that table, linear between its entries. So profiles never leave this process. The raw
metric is the mean absolute error per cell over the profiles; hidden profiles are others of the same kinds: boxes,
triangles, waves and bells.
"""

import math

from eft.tasks import scoring

CELLS, COURANT = 40, 0.5
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
SEARCH = [profile(kind, k) for k, kind in enumerate(KINDS)]
HIDDEN = [profile(kind, 10 + k) for k, kind in enumerate(KINDS * 2)]


def score(value, profiles):
    table = scoring.numbers(value, len(RATIOS), "shares", -10.0, 10.0)
    last = len(table) - 1
    error = 0.0
    for exact in profiles:
        cells = exact
        for _ in range(STEPS):
            slopes = [cells[k] - cells[k - 1] for k in range(CELLS)]  # at the face below cell k
            fluxes = []  # through the face above cell k
            for k in range(CELLS):
                slope = slopes[(k + 1) % CELLS]
                if abs(slope) < 1e-9:
                    fluxes.append(cells[k])
                    continue
                place = min(max((slopes[k] / slope + REACH) * PER_UNIT, 0.0), last - 1e-9)
                left = int(place)
                share = table[left] + (place - left) * (table[left + 1] - table[left])
                fluxes.append(cells[k] + 0.5 * (1 - COURANT) * share * slope)
            cells = [cells[k] - COURANT * (fluxes[k] - fluxes[k - 1]) for k in range(CELLS)]
            if not max(map(abs, cells)) < 1e3:
                raise scoring.Invalid("the scheme is unstable: its values grow without bound")
        error += sum(abs(a - b) for a, b in zip(cells, exact, strict=True)) / CELLS
    error /= len(profiles)
    return {"combined_score": 0.05 / (0.02 + error), "error_per_cell": error}


def evaluate(program_path, hidden=False):
    profiles = HIDDEN if hidden else SEARCH
    return scoring.evaluate(
        program_path, entry="limit", driver=DRIVER, args=(RATIOS,), score=lambda value: score(value, profiles)
    )
