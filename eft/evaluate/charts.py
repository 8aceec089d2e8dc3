"""Geometry of the report's charts: numbers in, positions out. The template draws them, so all text is escaped there.

Horizontal charts are positioned in percent of a track's width (plain HTML and CSS: text keeps its size on a phone);
curves are SVG paths in the units of their view box. Nothing here knows colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eft.evaluate.stats import Interval


@dataclass(frozen=True)
class Axis:
    """A linear axis over [low, high] with round ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Position of `value` in percent, not outside 0…100."""
        return round(100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0), 3)


def axis(values: Iterable[float], *, target: int = 5, include: Iterable[float] = ()) -> Axis:
    """The smallest axis with round ends that holds `values` and `include`. `target`: about how many steps."""
    known = [v for v in (*values, *include) if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    rough = (high - low) / target
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(0.0 if k == 0 else k * step for k in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


@dataclass(frozen=True)
class Bar:
    """An interval on a track: `left` and `width` in percent; `cut_low`/`cut_high`: it goes on beyond the axis."""

    left: float
    width: float
    cut_low: bool
    cut_high: bool


def bar(on: Axis, interval: Interval | None) -> Bar | None:
    """Where an interval lies on an axis."""
    if interval is None:
        return None
    left, right = on.at(interval.low), on.at(interval.high)
    return Bar(left, round(right - left, 3), interval.low < on.low, interval.high > on.high)


def interval_axis(
    points: Sequence[float], intervals: Sequence[Interval | None], include: Iterable[float] = (0.0,)
) -> Axis:
    """An axis for points with intervals. Very wide intervals (few tasks) may be cut, so that the points stay apart."""
    known = [i for i in intervals if i is not None]
    core = [*points, *include, *(v for i in known for v in ((i.point + i.low) / 2, (i.point + i.high) / 2))]
    low, high = min(core), max(core)
    room = 0.25 * (high - low)
    ends = [min(max(v, low - room), high + room) for i in known for v in (i.low, i.high)]
    return axis([*core, *ends])


WIDTH, HEIGHT = 340.0, 200.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 8.0, 10.0, 26.0


@dataclass(frozen=True)
class Line:
    """One curve: `key` (whose), SVG path data of the median and of its band, and the end of the line."""

    key: str
    path: str
    band: str
    end: tuple[float, float]


@dataclass(frozen=True)
class Plot:
    """A small chart. Ticks are (position, label) in view-box units; `note` stands in where there is nothing to draw."""

    title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    note: str = ""


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """Path data of a step line: a best-so-far holds until the next proposal."""
    if not points:
        return ""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    parts += [f"H{x:.1f}V{y:.1f}" for x, y in points[1:]]
    return "".join(parts)


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def plot(
    title: str,
    curves: Sequence[tuple[str, Sequence[tuple[float, float, float]]]],
    *,
    label,
    include: Iterable[float] = (),
    xs: Sequence[float] | None = None,
    step: bool = True,
    across: Sequence[float] = (),
) -> Plot:
    """A small chart of (key, [(low, middle, high), …]) curves. `label`: tick value -> text. `xs`: where they stand
    (default 0, 1, 2, …). `step`: a staircase (best so far) or straight lines (losses). `across`: the ends of the x axis
    where they are not those of `xs`."""
    drawn = [(key, list(c)) for key, c in curves if c]
    if not drawn:
        return Plot(title, (), (), (), "nothing to draw: no finished search")
    length = max(len(c) for _, c in drawn)
    places = list(xs) if xs is not None else [float(i) for i in range(length)]
    y = axis([v for _, c in drawn for low, _, high in c for v in (low, high)], target=4, include=include)
    start, end = (across[0], across[-1]) if across else (places[0], places[-1])
    end = end if end > start else start + 1
    x = axis([start, end], target=4)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def px(v: float) -> float:
        return round(LEFT + width * (v - start) / (end - start), 2)

    def py(v: float) -> float:
        return round(TOP + height * (1 - y.at(v) / 100), 2)

    lines = []
    for key, c in drawn:
        middle = [(px(places[i]), py(m)) for i, (_, m, _) in enumerate(c)]
        upper = [(px(places[i]), py(h)) for i, (_, _, h) in enumerate(c)]
        lower = [(px(places[i]), py(v)) for i, (v, _, _) in enumerate(c)]
        area = ""
        if any(low != high for low, _, high in c):
            if step:  # the lower edge runs back as the same staircase
                area = _steps(upper) + "".join(f"V{y:.1f}H{x:.1f}" for x, y in lower[-2::-1]) + "Z"
            else:
                area = _joined(upper + lower[::-1]) + "Z"
        lines.append(Line(key, _steps(middle) if step else _joined(middle), area, middle[-1]))
    x_ticks = tuple((px(t), f"{t:g}") for t in x.ticks if start <= t <= end)
    return Plot(title, tuple(lines), x_ticks, tuple((py(t), label(t)) for t in y.ticks))
