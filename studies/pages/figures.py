"""Figures of the reports as SVG: equal data make equal files.

Text stays text, dates and random ids stay out, colours are told apart by the colour-blind and
come with markers or dashes of their own. Every function returns a ``Figure``; none keeps state.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

INK = "#24292f"
BACKGROUND = "#ffffff"
_COLOURS = ("#2f7ed8", "#d9730d", "#1a9e77", "#c2569b", "#8a7a00", "#7a6ff0", "#c94040", "#6b7785")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")

_STYLE = {
    "svg.hashsalt": "wattcast",  # ids are hashes; without it they differ from run to run
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=_COLOURS),
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#8b949e",
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "figure.facecolor": BACKGROUND,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_WIDTH_INCHES = 7.2
_RATIOS = {4: (0.25, 0.5, 0.67, 1, 1.5, 2, 4), 1e9: (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 100, 1000)}
"""Ticks of an axis of ratios, by the most of those it must show."""
_MANY = 800
"""Coordinates of a scatter from which on its markers are small."""


@dataclass(frozen=True, slots=True)
class Figure:
    """An SVG file. ``name`` is its name without the suffix; ``caption`` one plain sentence."""

    name: str
    caption: str
    svg: str


class Points(NamedTuple):
    """Measured and predicted quantities of one series, each ``[n]``, in the same unit."""

    label: str
    measured: Sequence[float]
    predicted: Sequence[float]


class Span(NamedTuple):
    """Quantiles of a ratio: 5, 25, 50, 75 and 95 %."""

    least: float
    low: float
    middle: float
    high: float
    most: float


def scatter(name: str, caption: str, series: Sequence[Points], unit: str) -> Figure:
    """Predicted over measured, both logarithmic; the line of equality and a factor of 2 about it.

    Values that are not above 0 have no place on the axes and are left out.
    """
    with _drawing(_WIDTH_INCHES * 0.75, 3.9) as figure:
        axes = figure.subplots()
        kept = [_positive(each) for each in series]
        values = np.concatenate([np.empty(0), *(each.ravel() for each in kept)])
        ends = np.array([values.min() / 1.6, values.max() * 1.6] if len(values) else [0.1, 10.0])
        axes.set(xscale="log", yscale="log", aspect="equal", xlim=ends, ylim=ends)
        axes.fill_between(ends, ends / 2, ends * 2, color="#8b949e", alpha=0.2, linewidth=0)
        axes.plot(ends, ends, color="#8b949e", linewidth=1)
        size = 5 if values.size <= _MANY else 3
        for at, (each, pairs) in enumerate(zip(series, kept, strict=True)):
            axes.plot(*pairs, **_marks(at), linestyle="none", markersize=size, label=each.label)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(_short))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}")
        _legend_beside(axes)
        return _finished(figure, name, caption)


def bars(
    name: str,
    caption: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
) -> Figure:
    """Horizontal bars: for every label one of each series; ``None`` leaves a gap."""
    thick = 0.8 / max(1, len(series))
    height = 0.9 + len(labels) * max(0.3, 0.17 * len(series))
    with _drawing(_WIDTH_INCHES, height) as figure:
        axes = figure.subplots()
        if not labels:
            return _finished(figure, name, caption)
        longest = max((v for values in series.values() for v in values if v is not None), default=1)
        for at, (label, values) in enumerate(series.items()):
            given = [(row, value) for row, value in enumerate(values) if value is not None]
            middle = [row + (at - (len(series) - 1) / 2) * thick for row, _ in given]
            axes.barh(middle, [value for _, value in given], height=thick * 0.9, label=label)
            for y, (_, value) in zip(middle, given, strict=True):
                axes.text(value + longest * 0.01, y, f"{value:.1f}", va="center", fontsize=7)
        axes.set_yticks(range(len(labels)), labels)
        axes.set(ylim=(len(labels) - 0.5, -0.5), xlim=(0, longest * 1.1), xlabel=unit)
        axes.grid(visible=False, axis="y")
        if len(series) > 1:
            _legend_beside(axes)
        return _finished(figure, name, caption)


def spans(
    name: str,
    caption: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[Span | None]],
    factor: float,
    unit: str,
) -> Figure:
    """For every label the quantiles of a ratio in each series, on a logarithmic axis: a line from 5
    to 95 %, a bar over the half in the middle, a mark at the median; a band of ``factor`` about
    1. ``None`` leaves a gap."""
    thick = 0.7 / max(1, len(series))
    with _drawing(_WIDTH_INCHES, 1.1 + 0.34 * len(labels)) as figure:
        axes = figure.subplots()
        axes.axvspan(1 / factor, factor, color="#8b949e", alpha=0.2, linewidth=0)
        axes.axvline(1, color="#8b949e", linewidth=1)
        for at, (label, values) in enumerate(series.items()):
            given = [
                (row + (at - (len(series) - 1) / 2) * thick, one)
                for row, one in enumerate(values)
                if one is not None
            ]
            middle, found = [y for y, _ in given], [one for _, one in given]
            colour = _COLOURS[at % len(_COLOURS)]
            axes.hlines(middle, [s.least for s in found], [s.most for s in found], colour, lw=1)
            axes.barh(
                middle, [one.high - one.low for one in found], left=[one.low for one in found],
                height=thick * 0.85, color=colour, alpha=0.45,
            )  # fmt: skip
            axes.plot(
                [one.middle for one in found], middle, **_marks(at), linestyle="none",
                markersize=4, label=label,
            )  # fmt: skip
        axes.set_yticks(range(len(labels)), labels)
        axes.set(xscale="log", ylim=(len(labels) - 0.5, -0.5), xlabel=unit)
        ends = axes.get_xlim()
        low, high = min(0.5, ends[0]), max(2, ends[1])
        ticks = next(each for most, each in _RATIOS.items() if max(high, 1 / low) <= most)
        axes.set_xticks([x for x in ticks if low <= x <= high])
        axes.set_xlim(low, high)
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=False, axis="y")
        _legend_beside(axes)
        return _finished(figure, name, caption)


@contextmanager
def _drawing(width_inches: float, height_inches: float) -> Iterator[Canvas]:
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        yield Canvas(figsize=(width_inches, height_inches), layout="constrained")


def _finished(figure: Canvas, name: str, caption: str) -> Figure:
    text = io.BytesIO()
    figure.savefig(text, format="svg", metadata=_NO_METADATA)
    return Figure(name, caption, text.getvalue().decode("utf-8"))


def _short(value: float, _: int | None = None) -> str:
    return f"{value:g}"


def _legend_beside(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)


def _marks(at: int) -> dict[str, Any]:
    return {"marker": _MARKERS[at % len(_MARKERS)], "color": _COLOURS[at % len(_COLOURS)]}


def _positive(points: Points) -> NDArray[np.float64]:
    """``[2, n]`` with both values above 0 and finite."""
    pairs = np.array([points.measured, points.predicted], dtype=float).reshape(2, -1)
    return pairs[:, (np.isfinite(pairs) & (pairs > 0)).all(axis=0)]
