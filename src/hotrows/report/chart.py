"""A chart of curves over the samples seen, as HTML. The curves are in an SVG that stretches, the text is beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from hotrows.json_text import json_text
from hotrows.report.curves import Curve
from hotrows.report.scale import Axis, value_axis
from hotrows.report.units import NOT_MEASURED

Style = Literal["line", "faint", "dashed", "dots", "squares", "area"]
_SIZE = 1000  # the width and height of the SVG in its own units; the page stretches it
_AT_END = ' class="end"'  # for a tick near the right edge, whose text has to end there


@dataclass(frozen=True)
class Series:
    """A curve and its legend entry.

    Args:
        color: a number of the palette in report.css, from 0 (neutral) to 5.
        style: areas are stacked in the given order; `dots` are joined by a thin line, `squares` are not.
        at_rest: the text of the legend while the pointer is outside the chart; by default the last value.
    """

    name: str
    points: Curve
    color: int = 1
    style: Style = "line"
    at_rest: str | None = None


@dataclass(frozen=True)
class Chart:
    """A titled chart.

    Args:
        text: writes a value for the legend.
        zero, min_span, highest: see `value_axis`.
        note: a sentence below the chart.
    """

    key: str
    title: str
    unit: str
    series: Sequence[Series]
    text: Callable[[float], str]
    zero: bool = False
    min_span: float = 0.0
    highest: float | None = None
    note: str = ""

    def html(self, x: Axis) -> str:
        drawn = [series for series in self.series if any(value is not None for _, value in series.points)]
        if not drawn:
            return not_measured(self.key, self.title, self.note)
        tops, bottoms = _stack(drawn)
        values = [y for points in tops for _, y in points if y is not None]
        y = value_axis(values, zero=self.zero, min_span=self.min_span, highest=self.highest)
        notes = [self.note, _outside(values, y)]
        shapes = "".join(
            _shape(series, top, bottom, x, y) for series, top, bottom in zip(drawn, tops, bottoms, strict=True)
        )
        legend = "".join(_legend_entry(series, self.text) for series in drawn)
        readings = json_text([_readings(s, top, self.text, x, y) for s, top in zip(drawn, tops, strict=True)])
        readings = readings.replace("<", "\\u003c")  # a value must not end the script
        return f"""
<figure class="card chart" data-plot="{self.key}">
{heading(self.title, self.unit)}
<div class="legend">{legend}</div>
<div class="plot">
<div class="drawing" data-end="{x.high:g}">
<svg viewBox="0 0 {_SIZE} {_SIZE}" preserveAspectRatio="none" role="img" aria-label="{escape(self.title)}">
{_grid(y)}{shapes}</svg><i class="cross" hidden></i></div>
<div class="y-axis">{_y_ticks(y)}</div>
<div class="x-name">samples</div>
<div class="x-axis">{_x_ticks(x)}</div>
</div>
{note(" ".join(text for text in notes if text))}
<script type="application/json">{readings}</script>
</figure>"""


def heading(title: str, unit: str = "") -> str:
    return f'<figcaption><h3>{escape(title)}</h3><span class="unit">{escape(unit)}</span></figcaption>'


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def not_measured(key: str, title: str, reason: str = "") -> str:
    """The card that stands for a plot for which the run has no numbers."""
    return f"""
<figure class="card chart" data-plot="{key}" data-empty>
{heading(title)}
<p class="empty">{NOT_MEASURED}</p>
{note(reason)}
</figure>"""


def _stack(drawn: Sequence[Series]) -> tuple[list[Curve], list[Curve | None]]:
    """The heights of each curve, and for areas the heights of their lower edge."""
    tops: list[Curve] = []
    bottoms: list[Curve | None] = []
    below: dict[float, float] = {}
    for series in drawn:
        if series.style != "area":
            tops.append(series.points)
            bottoms.append(None)
            continue
        bottoms.append([(x, below.get(x, 0.0)) for x, _ in series.points])
        tops.append([(x, below.get(x, 0.0) + (value or 0.0)) for x, value in series.points])
        below |= {x: top for x, top in tops[-1] if top is not None}
    return tops, bottoms


def _outside(values: Sequence[float], y: Axis) -> str:
    num = sum(not y.low <= value <= y.high for value in values)
    if not num:
        return ""
    return f"{num} {'point is' if num == 1 else 'points are'} beyond the axis and drawn at its edge."


def _at(x: Axis, y: Axis, position: float, value: float) -> str:
    return f"{_SIZE * x.fraction(position):.1f} {_SIZE * (1 - y.fraction(value)):.1f}"


def _shape(series: Series, top: Curve, bottom: Curve | None, x: Axis, y: Axis) -> str:
    css = f"{series.style} c{series.color}"
    if bottom is not None:
        there = [_at(x, y, position, value) for position, value in top if value is not None]
        back = [_at(x, y, position, value) for position, value in reversed(bottom) if value is not None]
        if len(there) == 1:  # the only metric line stands for everything up to it
            there, back = [f"0 {there[0].split()[1]}", *there], [*back, f"0 {back[0].split()[1]}"]
        return _path(css, f"M{'L'.join(there + back)}Z")
    pieces: list[list[str]] = [[]]
    for position, value in top:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(_at(x, y, position, value))
    lines = "".join(f"M{'L'.join(piece)}" for piece in pieces if len(piece) > 1)
    if series.style == "dots":
        return _path(f"thin c{series.color}", lines) + _path(css, _dots(pieces))
    if series.style == "squares":
        return _path(css, _dots(pieces))
    # A line through a single point would not be visible.
    return _path(css, lines) + _path(f"single c{series.color}", _dots([p for p in pieces if len(p) == 1]))


def _dots(pieces: Sequence[Sequence[str]]) -> str:
    """Lines without length. Only their ends are visible, and these keep their shape when the SVG is stretched."""
    return "".join(f"M{point}h0.1" for piece in pieces for point in piece)


def _path(css: str, shape: str) -> str:
    return f'<path class="{css}" d="{shape}"/>\n' if shape else ""


def _grid(y: Axis) -> str:
    lines = "".join(f"M0 {_SIZE * (1 - y.fraction(tick)):.1f}h{_SIZE}" for tick in y.ticks)
    return f'<path class="grid" d="{lines}"/>\n'


def _y_ticks(y: Axis) -> str:
    return "".join(
        f'<span style="top:{100 * (1 - y.fraction(tick)):.2f}%">{text}</span>'
        for tick, text in zip(y.ticks, y.texts(), strict=True)
    )


def _x_ticks(x: Axis) -> str:
    return "".join(
        f'<span style="left:{100 * x.fraction(tick):.2f}%"{_AT_END if x.fraction(tick) > 0.95 else ""}>{text}</span>'
        for tick, text in zip(x.ticks, x.texts(), strict=True)
    )


def _legend_entry(series: Series, text: Callable[[float], str]) -> str:
    last = next(value for _, value in reversed(series.points) if value is not None)
    at_rest = text(last) if series.at_rest is None else series.at_rest
    return (
        f'<span class="entry"><i class="{series.style} c{series.color}"></i>{escape(series.name)} '
        f"<b>{escape(at_rest)}</b></span>"
    )


def _readings(series: Series, top: Curve, text: Callable[[float], str], x: Axis, y: Axis) -> list[list[object]]:
    """What the page's script shows at the pointer: positions and heights in thousandths, and values as text."""
    rows = [
        (round(_SIZE * x.fraction(position)), round(_SIZE * (1 - y.fraction(height))), text(value))
        for (position, value), (_, height) in zip(series.points, top, strict=True)
        if value is not None and height is not None
    ]
    return [list(column) for column in zip(*rows, strict=True)]
