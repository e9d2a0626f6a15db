"""Pictures of answers, by matplotlib (the extra ``notebook``). No global state: figures are made
without pyplot, and show themselves in a notebook with or without ``%matplotlib inline``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from wattcast.features.errors import MissingExtraError
from wattcast.models.intervals import quantity
from wattcast.predictor.reports import PALETTE, unit_of, value_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wattcast.predictor.messages import Energy, Time, predict

Point = tuple[str, "Time | None", "Energy | None", bool]
"""Label, time, energy and whether it is on the Pareto set."""

MOST_LABELS = 12
"""Points that are written beside their names; more would cover each other."""


@cache
def _kind() -> Any:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "notebook") from error

    class Picture(Figure):
        """A figure that a notebook shows as SVG."""

        def _repr_svg_(self) -> str:
            text = io.StringIO()
            # The same picture has the same text; letters are the reader's own.
            with rc_context({"svg.hashsalt": "wattcast", "svg.fonttype": "none"}):
                self.savefig(text, format="svg", metadata={"Date": None})
            return text.getvalue()

    return Picture


def of_prediction(answer: predict.PredictAnswer) -> Figure:
    """Power by component, and power, time and energy as factors of their predictions."""
    figure: Figure = _kind()(figsize=(9, 3.2), layout="constrained")
    power, intervals = figure.subplots(1, 2)
    told_watts = (answer.components or {}).items()
    parts = sorted((part for part in told_watts if part[1] > 0), key=lambda part: part[1])
    for at, (name, watts) in enumerate(parts):
        power.barh(name, watts, color=PALETTE[min(len(parts) - 1 - at, len(PALETTE) - 1)])
    power.set_xlabel("watts")
    power.set_title("power by component" if parts else "no components told")
    told = [
        (name, part)
        for name, part in (
            ("energy", answer.energy), ("time", answer.time), ("power", answer.power),
        )
        if part is not None
    ]  # fmt: skip
    for at, (name, each) in enumerate(told):
        value = getattr(each, unit_of(each))
        intervals.plot([each.low / value, each.high / value], [at, at], color=PALETTE[0])
        intervals.plot([1.0], [at], "o", color=PALETTE[1])
        intervals.annotate(f"{name} {value_of(each)}", (1.0, at + 0.15), ha="center")
    intervals.set_xscale("log")
    ticks = [0.25, 0.5, 1.0, 2.0, 4.0]
    intervals.set_xticks(ticks, [f"x {each:g}" for each in ticks])
    intervals.minorticks_off()
    intervals.set_yticks([])
    intervals.set_ylim(-0.5, max(1, len(told)) - 0.3)
    intervals.set_title(f"{told[0][1].level:.0%} intervals" if told else "nothing predicted")
    figure.suptitle(f"{answer.name} on {answer.gpu}")
    return figure


def of_points(points: Sequence[Point], title: str) -> Figure:
    """Time against energy, the Pareto set joined by a line. Points that are not predicted are left
    out."""
    figure: Figure = _kind()(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    known = [
        (label, time.seconds, energy.joules, front)
        for label, time, energy, front in points
        if time is not None and energy is not None
    ]
    seconds, joules = [each[1] for each in known], [each[2] for each in known]
    axes.scatter(seconds, joules, color=PALETTE[0])
    front = sorted((each[1], each[2]) for each in known if each[3])
    if front:
        axes.plot(*zip(*front, strict=True), "o-", color=PALETTE[1], label="Pareto set")
        axes.legend()
    for label, x, y, on_front in known:
        if len(known) <= MOST_LABELS or on_front:
            axes.annotate(label, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value, "s"))
    axes.yaxis.set_major_formatter(lambda value, _: quantity(value, "J"))
    axes.set_xlabel("time")
    axes.set_ylabel("energy")
    axes.set_title(title)
    return figure
