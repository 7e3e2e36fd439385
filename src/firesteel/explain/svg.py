"""Plots as inline SVG: a few kinds of marks on linear axes. Colours are the page's: light and dark both work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 14, 46  # around the axes; the legend is above
COLOURS = 6  # series colours of the page: `--c0` to `--c5`

Kind = Literal["dots", "hollow", "line", "dashed", "bars"]


@dataclass(frozen=True)
class Series:
    """Marks of one kind.

    Fields:
        kind: `bars` stand on y = 0 and are one unit wide.
        x, y: in the units of the axes.
        name: in the legend; "" for none.
        colour: number of a colour of the page.
    """

    kind: Kind
    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    colour: int = 0


@dataclass(frozen=True)
class Plot:
    """A plot.

    Fields:
        title: for those who cannot see it.
        names: of x = 0, 1, ... in place of numbers.
        top: highest y that is shown; None shows all.
        zero: whether both axes start at 0 or below.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    names: Sequence[str] = ()
    top: float | None = None
    zero: bool = True


def svg(plot: Plot) -> str:
    """The plot as one `<svg>` element."""
    xs = [x for one in plot.series for x in one.x]
    ys = [y for one in plot.series for y in one.y if plot.top is None or y <= plot.top]
    x_axis = _Axis(xs, LEFT, WIDTH - RIGHT, 0.0 if plot.zero and not plot.names else None, 0.6 if plot.names else 0.0)
    y_axis = _Axis(ys, HEIGHT - BOTTOM, TOP, 0.0 if plot.zero else None, 0.0)
    legend = _legend(plot.series)
    parts = [
        f'<svg viewBox="0 {-20 * legend[1]} {WIDTH} {HEIGHT + 20 * legend[1]}" role="img" '
        f'aria-label="{escape(plot.title)}">',
        legend[0],
        _grid(plot, x_axis, y_axis),
        *(_marks(one, x_axis, y_axis, plot.top) for one in plot.series),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers within [low, high], at most so many."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= raw * (1.0 - 1e-9))
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class _Axis:
    """From values to places on the page."""

    def __init__(self, values: Sequence[float], start: float, stop: float, include: float | None, pad: float) -> None:
        seen = [*values] + ([] if include is None else [include])
        low, high = min(seen, default=0.0) - pad, max(seen, default=1.0) + pad
        if high <= low:
            low, high = low - 0.5, high + 0.5
        margin = 0.04 * (high - low)
        self.low = low if low == include else low - margin
        self.high = high if high == include else high + margin
        self._start, self._stop = start, stop

    def at(self, value: float) -> float:
        return self._start + (value - self.low) / (self.high - self.low) * (self._stop - self._start)


def _grid(plot: Plot, x_axis: _Axis, y_axis: _Axis) -> str:
    bottom, lines = HEIGHT - BOTTOM, []
    for y in ticks(y_axis.low, y_axis.high):
        at = y_axis.at(y)
        lines.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    every = max(1, math.ceil(len(plot.names) / 24))
    named = [(float(i), name) for i, name in enumerate(plot.names) if i % every == 0]
    for x, name in named or [(x, f"{x:g}") for x in ticks(x_axis.low, x_axis.high)]:
        lines.append(f'<text x="{x_axis.at(x):.1f}" y="{bottom + 16}" text-anchor="middle">{escape(name)}</text>')
    lines.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(plot.x_label)}</text>')
    turned = f'transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)"'
    lines.append(f'<text {turned} text-anchor="middle">{escape(plot.y_label)}</text>')
    return "\n".join(lines)


def _marks(series: Series, x_axis: _Axis, y_axis: _Axis, top: float | None) -> str:
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if top is None or y <= top]
    style = f'style="--c:var(--c{series.colour % COLOURS})"'
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in points]
    if series.kind in ("line", "dashed"):
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        return f'<path class="{series.kind}" {style} d="M{path}"/>' if path else ""
    if series.kind == "bars":
        half, zero = 0.38 * (x_axis.at(1.0) - x_axis.at(0.0)), y_axis.at(0.0)
        bars = "".join(f"M{x - half:.1f} {zero:.1f}V{y:.1f}H{x + half:.1f}V{zero:.1f}Z" for x, y in places)
        return f'<path class="bars" {style} d="{bars}"/>'
    marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    return f'<g class="{series.kind}" {style}>{marks}</g>'


def _legend(series: Sequence[Series]) -> tuple[str, int]:
    """The names of the series above the plot, and how many lines they take."""
    parts, x, line = [], float(LEFT), 1
    named = [one for one in series if one.name]
    for one in named:
        wide = 30.0 + 6.8 * len(one.name)
        if x + wide > WIDTH and x > LEFT:
            x, line = float(LEFT), line + 1
        y = -20 * line + 10
        style = f'style="--c:var(--c{one.colour % COLOURS})"'
        if one.kind in ("line", "dashed"):
            parts.append(f'<path class="{one.kind}" {style} d="M{x} {y}h16"/>')
        elif one.kind == "bars":
            parts.append(f'<path class="bars" {style} d="M{x + 3} {y - 5}h10v10h-10Z"/>')
        else:
            parts.append(f'<g class="{one.kind}" {style}><circle cx="{x + 8}" cy="{y}" r="3"/></g>')
        parts.append(f'<text x="{x + 22}" y="{y + 4}">{escape(one.name)}</text>')
        x += wide
    return "\n".join(parts), line if named else 0
