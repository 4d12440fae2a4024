"""The curves of `growth.py` as an SVG: a panel for each row, both axes logarithmic, readable on light and on dark ground."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from typing import Final
from xml.sax.saxutils import escape

from bench.growth_rows import ROWS, Curve, Row

COLUMNS: Final = 2
WIDTH, HEIGHT = 490, 250  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 46, 210, 34, 34
# Of middling lightness: as far from white as from black.
COLOURS: Final = ("#2a7fd4", "#d9622b", "#2a9d5c", "#b04fc4", "#b8860b", "#7a8791")
STYLE: Final = """\
text { font: 11px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600; font-size: 12px }
.grid { stroke: #8884; fill: none }
@media (prefers-color-scheme: dark) { text { fill: #ddd } }
"""

Curves = dict[str, Curve]


def plot(found: dict[str, Curves], before: dict[str, Curves] | None, labels: tuple[str, str]) -> str:
    """Lines are what was found; dashed ones what was before."""
    rows = [row for row in ROWS if any(found.get(row.name, {}).values())]
    height = ceil(len(rows) / COLUMNS) * HEIGHT + 24
    size = f'width="{COLUMNS * WIDTH}" height="{height}" viewBox="0 0 {COLUMNS * WIDTH} {height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', f"<style>{STYLE}</style>"]
    legend = labels[1] if before is None else f"dashed: {labels[0]}; solid: {labels[1]}"
    lines.append(f'<text x="{LEFT}" y="16">{escape(legend)}</text>')
    for number, row in enumerate(rows):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT + 24
        lines.append(f'<g transform="translate({x} {y})">')
        lines += panel(row, found[row.name], None if before is None else before.get(row.name))
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def panel(row: Row, curves: Curves, before: Curves | None) -> Iterator[str]:
    every = [*curves.values(), *(before or {}).values()]
    points = [(_size(size), value) for curve in every for size, value in curve.items() if value > 0]
    across = Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    up = Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    yield f'<text class="title" x="{LEFT}" y="{TOP - 14}">{escape(row.name)}: {escape(row.sizes_of)}</text>'
    zero = _size(0) if any(0 in curve for curve in every) else None
    for tick in across.ticks():
        place = across.place(tick)
        yield f'<path class="grid" d="M{place:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{"0" if tick == zero else _short(tick)}</text>'
    for tick in up.ticks():
        place = up.place(tick)
        yield f'<path class="grid" d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text x="{LEFT - 5}" y="{place + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
    for number, metric in enumerate(row.metrics):
        colour = COLOURS[number % len(COLOURS)]
        yield from _curve((before or {}).get(metric.name, {}), across, up, colour, ' stroke-dasharray="4 4"')
        yield from _curve(curves.get(metric.name, {}), across, up, colour)
        y = TOP + 12 + 26 * number
        yield f'<path d="M{WIDTH - RIGHT + 8} {y - 4}h10" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{WIDTH - RIGHT + 22}" y="{y}">{escape(metric.name)},</text>'
        yield f'<text x="{WIDTH - RIGHT + 22}" y="{y + 12}">{escape(metric.unit)}</text>'


def _curve(curve: Curve, across: Axis, up: Axis, colour: str, dashes: str = "") -> Iterator[str]:
    points = [
        f"{across.place(_size(size)):.1f},{up.place(value):.1f}"
        for size, value in sorted(curve.items())
        if value > 0
    ]
    if points:
        yield f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
        for point in points:
            x, y = point.split(",")
            yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>'


class Axis:
    """A logarithmic one, from one power of ten to another."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        found = [log10(value) for value in values] or [0.0]
        self.first, self.last = floor(min(found)), max(floor(min(found)) + 1, ceil(max(found)))
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        part = (log10(value) - self.first) / (self.last - self.first)
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.first, self.last + 1)]


def _size(size: int) -> int:
    return max(size, 1)  # none has no place on such an axis


def _short(value: float) -> str:
    for unit, word in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{word}"
    return f"{value:g}"
