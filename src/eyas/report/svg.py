"""Small charts as inline SVG: lines, grouped bars, ranges, spans. Colours are CSS classes, for light and dark alike.

Every chart has a <title> for screen readers and a <title> per mark, which browsers show on hover. A chart is 480 units
wide, and page.css sets its text so that it stays legible on a telephone. What exceeds the `_MOST_…` limits is left out,
and the chart says so.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

Row = TypeVar("Row")

WIDTH, HEIGHT = 480, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 20, 36
_ROW = 42  # height of a row: its label above its bar
_MOST_POINTS, _MOST_LINES, _MOST_ROWS, _MOST_GROUPS, _MOST_LABEL = 400, 6, 40, 12, 60
_NARROWEST_WITH_VALUE = 30.0  # a bar's width that a number fits above


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
    finite = [[(x, y) for x, y in line.points if math.isfinite(x) and math.isfinite(y)] for line in lines]
    drawn = [(line, _thinned(points)) for line, points in zip(lines[:_MOST_LINES], finite, strict=False)]
    points = [p for _, line_points in drawn for p in line_points]
    if not points:
        return _empty(title)
    x_min, x_max = min(p[0] for p in points), max(p[0] for p in points)
    y_ticks = nice_ticks(0.0, max(p[1] for p in points))
    x = _scale(x_min, max(x_max, x_min + 1e-9), _LEFT, WIDTH - _RIGHT)
    y = _scale(0.0, y_ticks[-1], HEIGHT - _BOTTOM, _TOP)
    x_ticks = [t for t in nice_ticks(x_min, x_max, 4) if _LEFT - 1 <= x(t) <= WIDTH - _RIGHT + 1]
    body = [_y_axis(y, y_ticks, y_label), *(_tick(x(t), HEIGHT - 20, t) for t in x_ticks)]
    body.append(_text("axis", WIDTH - _RIGHT, HEIGHT - 4, x_label, "end"))
    for line, line_points in drawn:
        path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in line_points)
        body.append(f'<polyline class="line s{line.series}" points="{path}">{_title(line.label)}</polyline>')
    rest = _left_out(len(lines) - len(drawn), "line")
    return _svg(title, HEIGHT, body) + _legend([(line.label, line.series) for line, _ in drawn]) + rest


def bar_chart(
    groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], *, title: str, y_label: str, y_max: float
) -> str:
    """Grouped bars, with the value above each bar that is wide enough; a value that is not finite gets no bar."""
    groups, all_series, series = groups[:_MOST_GROUPS], series, series[:_MOST_LINES]
    y = _scale(0.0, y_max, HEIGHT - _BOTTOM, _TOP)
    body = [_y_axis(y, nice_ticks(0.0, y_max), y_label)]
    slot = (WIDTH - _LEFT - _RIGHT) / max(len(groups), 1)
    width = min(slot * 0.86 / max(len(series), 1), 46.0)
    for g, group in enumerate(groups):
        middle = _LEFT + (g + 0.5) * slot
        body.append(_text("tick", middle, HEIGHT - 16, group, "middle"))
        for s, (name, values) in enumerate(series):
            if g < len(values) and math.isfinite(values[g]):
                value, left = min(values[g], y_max), middle + (s - len(series) / 2) * width
                number = f"{values[g]:.2f}".removeprefix("0")
                shown = _text("value", left + width / 2, y(value) - 4, number, "middle")
                body.append(
                    f"<g>{_title(f'{name}, {group}: {values[g]:.3f}')}"
                    + _bar(left + 1, y(value), width - 2, max(y(0.0) - y(value), 0.5), s + 1)
                    + (shown if width >= _NARROWEST_WITH_VALUE else "")
                    + "</g>"
                )
    rest = _left_out(len(all_series) - len(series), "series")
    return _svg(title, HEIGHT, body) + _legend([(name, i + 1) for i, (name, _) in enumerate(series)]) + rest


def range_chart(rows: Sequence[Range], *, title: str, x_label: str) -> str:
    """One row per arm: a dot at the median, a bar over the range, a bold tick at the ceiling.

    The axis is made for medians and ceilings: a range beyond it ends in an arrow, and its end is written beside.
    """
    if not rows:
        return _empty(title)
    ticks = nice_ticks(0.0, 1.15 * max(max(r.median, r.ceiling or 0.0) for r in rows))

    def drawn(row: Range, x: Callable[[float], float], top: float) -> tuple[str, str]:
        middle, end, is_cut = top + 27, min(row.high, ticks[-1]), row.high > ticks[-1]
        cut = f' <tspan class="tick">({row.low:.2f} … {row.high:.2f})</tspan>' if is_cut else ""
        marks = [
            _title(f"{row.label}: median {row.median:.2f}, {row.low:.2f} to {row.high:.2f}"),
            f'<line class="range s{row.series}" x1="{x(row.low):.1f}" x2="{x(end):.1f}" y1="{middle}" y2="{middle}"/>',
            f'<circle class="dot s{row.series}" cx="{x(row.median):.1f}" cy="{middle}" r="4"/>',
        ]
        if is_cut:
            at = x(end) - 2
            marks.append(
                f'<path class="dot s{row.series}" d="M{at:.1f} {middle - 5}l9 5l-9 5z"/>',
            )
        if row.ceiling is not None:
            at = x(row.ceiling)
            line = f'x1="{at:.1f}" x2="{at:.1f}" y1="{middle - 8}" y2="{middle + 8}"'
            marks.append(f'<line class="ceiling" {line}>{_title(f"ceiling {row.ceiling:.2f}")}</line>')
        return "".join(marks), f"{row.median:.2f}{cut}"

    return _rows_chart(rows, [row.label for row in rows], drawn, ticks, title, x_label)


def span_chart(spans: Sequence[Span], *, title: str, x_label: str) -> str:
    """One row per span, as in a Gantt chart, with its length."""
    if not spans:
        return _empty(title)

    def drawn(span: Span, x: Callable[[float], float], top: float) -> tuple[str, str]:
        width = max(x(span.end) - x(span.start), 1.0)
        bar = _bar(x(span.start), top + 21, width, 11, span.series)
        return _title(span.label) + bar, f"{span.end - span.start:.1f}"

    ticks = nice_ticks(0.0, max(s.end for s in spans))
    return _rows_chart(spans, [span.label for span in spans], drawn, ticks, title, x_label)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover [low, high], ends included."""
    span = max(high - low, 1e-9)
    raw = span / count
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * m for m in (1, 2, 2.5, 5, 10) if base * m >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


def _rows_chart(
    rows: Sequence[Row],
    labels: Sequence[str],
    drawn: Callable[[Row, Callable[[float], float], float], tuple[str, str]],
    ticks: Sequence[float],
    title: str,
    x_label: str,
) -> str:
    """Rows with a label on the left and a value on the right, both above the marks that `drawn` makes."""
    num = min(len(rows), _MOST_ROWS)
    height = _ROW * num + _BOTTOM
    x = _scale(0.0, ticks[-1], 8, WIDTH - 12)
    body = []
    for t in ticks:
        line = f'x1="{x(t):.1f}" x2="{x(t):.1f}" y1="4" y2="{height - _BOTTOM}"'
        body.append(f'<line class="grid" {line}/>{_tick(x(t), height - 20, t)}')
    for i, row in enumerate(rows[:num]):
        marks, value = drawn(row, x, _ROW * i)
        body.append(_text("name", 4, _ROW * i + 15, labels[i], "start"))
        body.append(
            f'<g>{marks}<text class="value" x="{WIDTH - 4}" y="{_ROW * i + 15}" text-anchor="end">{value}</text></g>'
        )
    body.append(_text("axis", WIDTH - 4, height - 4, x_label, "end"))
    return _svg(title, height, body) + _left_out(len(rows) - num, "row")


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `_MOST_POINTS`, evenly spaced, the last one included."""
    step = -(-len(points) // _MOST_POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = max(high - low, 1e-9)
    return lambda value: start + (value - low) / span * (end - start)


def _bar(left: float, top: float, width: float, height: float, series: int) -> str:
    size = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="bar s{series}" {size} rx="2"/>'


def _y_axis(y: Callable[[float], float], ticks: Sequence[float], label: str) -> str:
    lines = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f"{_text('tick', _LEFT - 5, y(t) + 4, _number(t), 'end')}"
        for t in ticks
    )
    return lines + _text("axis", 2, 11, label, "start")


def _tick(x: float, y: float, value: float) -> str:
    return _text("tick", x, y, _number(value), "start" if x < 12 else "end" if x > WIDTH - 16 else "middle")


def _text(css: str, x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(_short(text))}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(_short(text))}</title>"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LABEL else f"{text[: _MOST_LABEL - 1]}…"


def _legend(entries: Sequence[tuple[str, int]]) -> str:
    if len(entries) < 2:
        return ""
    keys = "".join(f'<span class="key"><i class="swatch s{s}"></i>{escape(_short(name))}</span>' for name, s in entries)
    return f'<div class="legend">{keys}</div>'


def _left_out(num: int, what: str) -> str:
    return (
        f'<p class="none">{num} more {what}{"" if num == 1 or what == "series" else "s"} not drawn.</p>'
        if num > 0
        else ""
    )


def _number(value: float) -> str:
    """`0.25`, `1500`, `12k`, `3.5M`: short enough for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.6g}"


def _empty(title: str) -> str:
    return f'<p class="none">{escape(title)}: nothing was measured.</p>'


def _svg(title: str, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{_title(title)}{''.join(body)}</svg>"
    )
