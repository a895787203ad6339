"""Small charts as inline SVG: lines, grouped bars, ranges. Colours are CSS classes: one page serves light and dark.

Every chart carries a <title> for screen readers and a <title> per mark, which browsers show on hover.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve: `points` as (x, y); `series` 1 … 6 chooses the colour class."""

    label: str
    points: Sequence[tuple[float, float]]
    series: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One row of a range chart: a median with its spread, and an optional ceiling mark."""

    label: str
    low: float
    median: float
    high: float
    ceiling: float | None = None
    series: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One row of a span chart: from `start` to `end` on the common axis."""

    label: str
    start: float
    end: float
    series: int = 1


def line_chart(lines: Sequence[Line], *, title: str, x_label: str, y_label: str) -> str:
    """Curves over a common x axis; the y axis starts at 0. Points that are not finite are left out."""
    points = [p for line in lines for p in line.points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if not points:
        return _empty(title)
    x_max, x_min = max(p[0] for p in points), min(p[0] for p in points)
    ticks = nice_ticks(0.0, max(p[1] for p in points))
    frame = _Frame(x_min, max(x_max, x_min + 1e-9), 0.0, ticks[-1])
    body = [_y_axis(frame, ticks), _x_axis(frame, nice_ticks(x_min, x_max), x_label), _y_name(y_label)]
    for line in lines:
        path = " ".join(
            f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points if math.isfinite(x) and math.isfinite(y)
        )
        body.append(
            f'<polyline class="line s{line.series}" points="{path}"><title>{escape(line.label)}</title></polyline>'
        )
    return _svg(title, HEIGHT, body) + _legend([(line.label, line.series) for line in lines])


def bar_chart(
    groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], *, title: str, y_label: str, y_max: float
) -> str:
    """Grouped bars, the value written above each; a value that is not finite gets no bar."""
    frame = _Frame(0.0, float(len(groups)), 0.0, y_max)
    body = [_y_axis(frame, nice_ticks(0.0, y_max)), _y_name(y_label)]
    slot = (WIDTH - _LEFT - _RIGHT) / max(len(groups), 1)
    width = min(slot * 0.8 / max(len(series), 1), 46.0)
    for g, group in enumerate(groups):
        middle = frame.x(g + 0.5)
        body.append(
            f'<text class="tick" x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(group)}</text>'
        )
        for s, (name, values) in enumerate(series):
            if g < len(values) and math.isfinite(values[g]):
                left = middle + (s - len(series) / 2) * width
                body.append(_bar(frame, left, width, values[g], f"{name}, {group}: {values[g]:.3f}", s + 1))
    return _svg(title, HEIGHT, body) + _legend([(name, i + 1) for i, (name, _) in enumerate(series)])


def range_chart(rows: Sequence[Range], *, title: str, x_label: str) -> str:
    """One row per arm: a dot at the median, a bar from lowest to highest run, a bold tick at the ceiling."""
    if not rows:
        return _empty(title)
    left, height = 210, 30 * len(rows) + _TOP + _BOTTOM
    ticks = nice_ticks(0.0, max(max(r.high, r.ceiling or 0.0) for r in rows))

    def x(value: float) -> float:
        return left + value / ticks[-1] * (WIDTH - left - 70)

    body = [
        f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
        f'<text class="tick" x="{x(t):.1f}" y="{height - 18}" text-anchor="middle">{_number(t)}</text>'
        for t in ticks
    ]
    for i, row in enumerate(rows):
        y = _TOP + 30 * i + 15
        body.append(f'<text class="name" x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(row.label)}</text>')
        body.append(
            f"<g><title>{escape(row.label)}: median {row.median:.2f}, {row.low:.2f} to {row.high:.2f}</title>"
            f'<line class="range s{row.series}" x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="dot s{row.series}" cx="{x(row.median):.1f}" cy="{y}" r="5"/></g>'
        )
        end = row.high
        if row.ceiling is not None:
            body.append(
                f'<line class="ceiling" x1="{x(row.ceiling):.1f}" x2="{x(row.ceiling):.1f}" y1="{y - 9}" y2="{y + 9}">'
                f"<title>ceiling {row.ceiling:.2f}</title></line>"
            )
            end = max(end, row.ceiling)
        body.append(f'<text class="value" x="{x(end) + 9:.1f}" y="{y + 4}">{row.median:.2f}</text>')
    body.append(f'<text class="axis" x="{WIDTH - 70}" y="{height - 4}" text-anchor="end">{escape(x_label)}</text>')
    return _svg(title, height, body)


def span_chart(spans: Sequence[Span], *, title: str, x_label: str) -> str:
    """One row per span, as in a Gantt chart; its length is written behind it."""
    if not spans:
        return _empty(title)
    left, height = 210, 22 * len(spans) + _TOP + _BOTTOM
    ticks = nice_ticks(0.0, max(s.end for s in spans))

    def x(value: float) -> float:
        return left + value / ticks[-1] * (WIDTH - left - 60)

    body = [
        f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
        f'<text class="tick" x="{x(t):.1f}" y="{height - 18}" text-anchor="middle">{_number(t)}</text>'
        for t in ticks
    ]
    for i, span in enumerate(spans):
        y = _TOP + 22 * i
        length = span.end - span.start
        body.append(
            f'<text class="name" x="{left - 10}" y="{y + 15}" text-anchor="end">{escape(span.label)}</text>'
            f'<rect class="bar s{span.series}" x="{x(span.start):.1f}" y="{y + 4}" rx="2" height="14"'
            f' width="{max(x(span.end) - x(span.start), 1.0):.1f}"><title>{escape(span.label)}</title></rect>'
            f'<text class="value" x="{x(span.end) + 5:.1f}" y="{y + 15}">{length:.1f}</text>'
        )
    body.append(f'<text class="axis" x="{WIDTH - 60}" y="{height - 4}" text-anchor="end">{escape(x_label)}</text>')
    return _svg(title, height, body)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover [low, high], ends included."""
    span = max(high - low, 1e-9)
    raw = span / count
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * m for m in (1, 2, 2.5, 5, 10) if base * m >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


class _Frame:
    def __init__(self, x_min: float, x_max: float, y_min: float, y_max: float) -> None:
        self._x_min, self._x_span = x_min, x_max - x_min
        self._y_min, self._y_span = y_min, max(y_max - y_min, 1e-9)

    def x(self, value: float) -> float:
        return _LEFT + (value - self._x_min) / self._x_span * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self._y_min) / self._y_span * (HEIGHT - _TOP - _BOTTOM)


def _bar(frame: _Frame, left: float, width: float, value: float, hover: str, series: int) -> str:
    top, bottom = frame.y(value), frame.y(0.0)
    return (
        f"<g><title>{escape(hover)}</title>"
        f'<rect class="bar s{series}" x="{left + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}"'
        f' height="{max(bottom - top, 0.5):.1f}" rx="2"/>'
        f'<text class="value" x="{left + width / 2:.1f}" y="{top - 4:.1f}" text-anchor="middle">{value:.2f}</text></g>'
    )


def _y_axis(frame: _Frame, ticks: Sequence[float]) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{frame.y(t):.1f}" y2="{frame.y(t):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{frame.y(t) + 4:.1f}" text-anchor="end">{_number(t)}</text>'
        for t in ticks
    )


def _x_axis(frame: _Frame, ticks: Sequence[float], label: str) -> str:
    inside = [t for t in ticks if _LEFT - 1 <= frame.x(t) <= WIDTH - _RIGHT + 1]
    marks = "".join(
        f'<text class="tick" x="{frame.x(t):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{_number(t)}</text>'
        for t in inside
    )
    return marks + f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(label)}</text>'


def _y_name(label: str) -> str:
    return f'<text class="axis" x="{_LEFT}" y="9">{escape(label)}</text>'


def _legend(entries: Sequence[tuple[str, int]]) -> str:
    if len(entries) < 2:
        return ""
    keys = "".join(f'<span class="key"><i class="swatch s{s}"></i>{escape(name)}</span>' for name, s in entries)
    return f'<div class="legend">{keys}</div>'


def _number(value: float) -> str:
    return f"{value:.6g}"


def _empty(title: str) -> str:
    return f'<p class="none">{escape(title)}: nothing was measured.</p>'


def _svg(title: str, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )
