"""Pictures of explanations: one drawing, written as SVG or PNG.

A drawing is rectangles, lines and texts in pixels. As SVG it uses presentation attributes alone, so
that it shows the same under a Content-Security-Policy without inline styles; as PNG matplotlib
draws it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Literal
from xml.etree import ElementTree

ChartKind = Literal["waterfall", "bar"]

WIDTH, LABELS, VALUES = 860, 290, 110
"""Pixels across, of these for the names at the left and for the figures beside the bars."""
TOP, BOTTOM, ROW, BAR = 64, 52, 26, 16
"""Pixels above and below the rows, of a row, and of its bar."""
MOST_BARS = 15
"""Contributions drawn one by one; the others are one bar together."""

_INK, _FAINT, _PAPER = "#1d1d1f", "#c9c9cf", "#ffffff"
_TOTAL, _MORE, _LESS = "#5f6670", "#b5432c", "#2767a8"
"""Both differ from white by more than 4.5 : 1, and from each other without colour by sign."""

_LONGEST_LABEL = 42
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Chart:
    """What a prediction is made of: ``start`` plus all ``bars`` is ``end``, in ``unit``."""

    title: str
    subtitle: str
    quantity: str
    unit: str
    start: tuple[str, float]
    bars: Sequence[tuple[str, float]]
    end: tuple[str, float]


@dataclass(frozen=True, slots=True)
class Shape:
    """An element of SVG: ``sizes`` are its attributes in pixels, ``words`` the others."""

    tag: Literal["rect", "line", "text"]
    sizes: Mapping[str, float]
    words: Mapping[str, str]
    text: str | None = None


def rectangle(x: float, y: float, width: float, height: float, fill: str) -> Shape:
    """Filled, without a border."""
    return Shape("rect", {"x": x, "y": y, "width": width, "height": height}, {"fill": fill})


def vertical(x: float, top: float, bottom: float, stroke: str) -> Shape:
    """A line one pixel wide."""
    return Shape("line", {"x1": x, "y1": top, "x2": x, "y2": bottom}, {"stroke": stroke})


def label(
    x: float, y: float, text: str, anchor: str = "start", size: int = 13, bold: bool = False
) -> Shape:
    """Text; ``y`` is its baseline, ``anchor`` the side that ``x`` tells."""
    words = {"text-anchor": anchor, "fill": _INK} | ({"font-weight": "bold"} if bold else {})
    return Shape("text", {"x": x, "y": y, "font-size": size}, words, text)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture of ``width`` x ``height`` pixels with a title for those who do not see it."""

    title: str
    width: int
    height: int
    shapes: tuple[Shape, ...]


def draw(chart: Chart, kind: ChartKind = "waterfall") -> Drawing:
    """A waterfall from ``start`` to ``end``, or a bar for each contribution from 0."""
    bars = list(chart.bars[:MOST_BARS])
    rest = chart.bars[MOST_BARS:]
    if rest:
        bars.append((f"{len(rest)} others", sum(value for _, value in rest)))
    rows = [_Row(name, 0.0, value, value) for name, value in bars]
    if kind == "waterfall":
        rows = list(_waterfall(chart, bars))
    low = min([0.0, *(min(row.left, row.right) for row in rows)])
    high = max([0.0, *(max(row.left, row.right) for row in rows)])
    scale, unit = _prefix(max(abs(low), abs(high)), chart.unit)
    axis = _Axis(low * scale, high * scale)
    height = TOP + ROW * len(rows) + BOTTOM
    shapes: list[Shape] = [
        rectangle(0, 0, WIDTH, height, _PAPER),
        label(16, 24, _clipped(chart.title, 90), size=15, bold=True),
        label(16, 44, _clipped(chart.subtitle, 110), size=12),
        *axis.shapes(height, f"{chart.quantity} in {unit}"),
    ]
    for number, row in enumerate(rows):
        shapes += row.shapes(TOP + ROW * number, axis, scale, unit)
    return Drawing(f"{chart.title}. {chart.subtitle}", WIDTH, height, tuple(shapes))


@dataclass(frozen=True, slots=True)
class _Row:
    """One bar from ``left`` to ``right`` in the chart's unit; ``value`` is written beside it."""

    label: str
    left: float
    right: float
    value: float
    total: bool = False

    def shapes(self, y: float, axis: _Axis, scale: float, unit: str) -> Iterator[Shape]:
        total = self.total
        low, high = sorted((axis.at(self.left * scale), axis.at(self.right * scale)))
        middle = y + ROW / 2
        fill = _TOTAL if total else _MORE if self.value >= 0 else _LESS
        yield label(LABELS - 12, middle + 4, _clipped(self.label), "end", bold=total)
        yield rectangle(low, middle - BAR / 2, max(high - low, 1.0), BAR, fill)
        sign = "" if total else "+" if self.value >= 0 else "−"
        told = f"{sign}{_figure(abs(self.value) * scale)} {unit}"
        yield label(high + 6, middle + 4, told, size=12, bold=total)


def _waterfall(chart: Chart, bars: Sequence[tuple[str, float]]) -> Iterator[_Row]:
    name, reached = chart.start
    yield _Row(name, 0.0, reached, reached, total=True)
    for label, value in bars:
        yield _Row(label, reached, reached + value, value)
        reached += value
    yield _Row(chart.end[0], 0.0, chart.end[1], chart.end[1], total=True)


class _Axis:
    """A scale of round numbers that holds ``low`` to ``high``."""

    def __init__(self, low: float, high: float) -> None:
        span = (high - low) or 1.0
        step = 10.0 ** floor(log10(span / 5))
        step = next(step * round_ for round_ in (1, 2, 5, 10) if span / (step * round_) <= 7)
        self.first, self.last = floor(low / step), max(ceil(high / step), floor(low / step) + 1)
        self.step = step

    def at(self, value: float) -> float:
        """Pixels from the left."""
        share = (value / self.step - self.first) / (self.last - self.first)
        return LABELS + share * (WIDTH - LABELS - VALUES)

    def shapes(self, height: float, name: str) -> Iterator[Shape]:
        bottom = height - BOTTOM + 4
        for tick in range(self.first, self.last + 1):
            x = self.at(tick * self.step)
            yield vertical(x, TOP - 4, bottom, _INK if tick == 0 else _FAINT)
            yield label(x, bottom + 16, f"{tick * self.step:.6g}", "middle", size=12)
        middle = (self.at(self.first * self.step) + self.at(self.last * self.step)) / 2
        yield label(middle, bottom + 36, name, "middle", size=12)


_PREFIXES = ((1.0, ""), (1e3, "m"), (1e6, "µ"), (1e9, "n"))


def _prefix(largest: float, unit: str) -> tuple[float, str]:
    """A factor that makes the largest value one before the point, and the unit's name then."""
    for factor, prefix in _PREFIXES:
        if largest * factor >= 1.0:
            return factor, f"{prefix}{unit}"
    return 1.0, unit


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _clipped(text: str, most: int = _LONGEST_LABEL) -> str:
    clean = _NO_XML.sub("�", " ".join(text.split()))
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


def svg(drawing: Drawing) -> str:
    """The drawing as a standalone SVG 1.1 document."""
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {drawing.width} {drawing.height}",
            "width": str(drawing.width),
            "height": str(drawing.height),
            "role": "img",
            "font-family": _FONT,
        },
    )
    ElementTree.SubElement(root, "title").text = _clipped(drawing.title, 300)
    for shape in drawing.shapes:
        sizes = {name: f"{size:.2f}".rstrip("0").rstrip(".") for name, size in shape.sizes.items()}
        ElementTree.SubElement(root, shape.tag, {**sizes, **shape.words}).text = shape.text
    return ElementTree.tostring(root, encoding="unicode")


def png(drawing: Drawing, pixels_per_pixel: int = 2) -> bytes:
    """The drawing as a PNG image, by default for screens of twice the density."""
    # Neither pyplot nor a global figure: drawn in whichever thread asks.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle as Patch

    inch = 72  # so that a point of a font is a pixel of the drawing
    figure = Figure(figsize=(drawing.width / inch, drawing.height / inch), dpi=inch)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    axes.axis("off")
    sides = {"start": "left", "middle": "center", "end": "right"}
    for order, shape in enumerate(drawing.shapes):
        at, words = list(shape.sizes.values()), shape.words
        if shape.tag == "rect":
            patch = Patch((at[0], at[1]), *at[2:], color=words["fill"], linewidth=0, zorder=order)
            axes.add_patch(patch)
        elif shape.tag == "line":
            ends = [at[0], at[2]], [at[1], at[3]]
            axes.add_line(Line2D(*ends, color=words["stroke"], linewidth=1, zorder=order))
        else:
            axes.text(
                at[0],
                at[1],
                shape.text or "",
                fontsize=at[2],
                fontweight=words.get("font-weight", "normal"),
                color=words["fill"],
                horizontalalignment=sides[words["text-anchor"]],
                verticalalignment="baseline",
                parse_math=False,  # names hold dollars
                zorder=order,
            )
    written = io.BytesIO()
    # Without the program's name the same drawing is the same bytes, whatever drew it.
    nameless = {"Software": None}
    canvas.print_figure(written, format="png", dpi=inch * pixels_per_pixel, metadata=nameless)
    return written.getvalue()
