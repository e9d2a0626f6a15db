"""Scaling of time, power and energy from counters at one pair, on programs left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.clocks.dvfs_judged import (
    JUDGED,
    MEAN_CURVE,
    DvfsChapter,
    Judged,
    spread_over,
)
from studies.clocks.scaling_rows import TITAN_X, Bools, Floats, ScalingRows
from studies.clocks.scaling_studies import Scored, score_table
from studies.pages.figures import Figure, Line, Panel, bars, curves
from studies.pages.page import Section, Table
from studies.pages.targets import Target

TIME_BOUNDS: Mapping[str, float] = {
    "wang_gtx_980_high": 6.5,
    "wang_gtx_1080_ti": 2.6,
    "wang_dcgm_tesla_v100": 8.3,
    "wang_dcgm_quadro_rtx_8000": 9.5,
}
POWER_BOUNDS: Mapping[str, float] = {
    "wang_gtx_980_high": 3.0,
    "wang_gtx_1080_ti": 2.0,
    "wang_dcgm_tesla_v100": 3.5,
    "wang_dcgm_quadro_rtx_8000": 3.4,
    TITAN_X: 2.4,
}
"""Mean errors in points by campaign: what the models were asked to reach."""

PUBLISHED_POWER: Mapping[str, str] = {TITAN_X: "5.4 %, not points: Guerreiro et al."}
"""Guerreiro et al., IEEE Access 2019, table 3: mean error of the power scale from PTX alone, in
percent of the factor (their released code), which is no less than ours in points."""

_PANELS = 4
_QUANTITIES = ("time", "power", "energy")


@dataclass(frozen=True, eq=False)
class Scale:
    """One quantity of one campaign: scales ``[n]`` measured, predicted, and of the mean curve."""

    measured: Floats
    predicted: Floats
    mean_curve: Floats

    def points(self, rows: Bools) -> tuple[Floats, Floats]:
        """Errors of the prediction and of the mean curve on some rows, in points."""
        return (
            np.abs(self.predicted - self.measured)[rows] * 100,
            np.abs(self.mean_curve - self.measured)[rows] * 100,
        )


def campaign_title(rows: ScalingRows) -> str:
    """Campaign and reference pair."""
    return f"{rows.campaign}, {rows.reference.core_mhz:g}/{rows.reference.memory_mhz:g}"


def title(one: Scored) -> str:
    """Campaign and reference pair of predictions."""
    return campaign_title(one.predictions.rows)


def scale_of(one: Scored, quantity: str) -> Scale | None:
    """Scales of ``time``, ``power`` or ``energy`` by the judged model; ``None`` where not known."""
    rows, predictions = one.predictions.rows, one.predictions
    measured = {"time": rows.time_scale, "power": rows.power_scale}
    found = {"time": predictions.time, "power": predictions.power}
    parts = _QUANTITIES[:2] if quantity == "energy" else (quantity,)
    if any(JUDGED not in found[part] for part in parts):
        return None

    def product(values: Sequence[Floats]) -> Floats:
        return np.asarray(np.prod(values, axis=0))

    return Scale(
        product([measured[part] for part in parts]),
        product([found[part][JUDGED] for part in parts]),
        product([found[part][MEAN_CURVE] for part in parts]),
    )


def counters_chapter(scored: Sequence[Scored]) -> DvfsChapter:
    """Scores, curves, programs and families of predictions of kernels left out."""
    real = [one for one in scored if one.predictions.rows.real.any()]
    return DvfsChapter(
        (_scores_section(scored), _curves_section(real), _programs_section(real),
         _families_section(real)),
        tuple(_targets(scored)),
    )  # fmt: skip


def _targets(scored: Sequence[Scored]) -> list[Judged]:
    found = []
    for one in scored:
        campaign = one.predictions.rows.campaign
        protocol = one.protocol.replace("_", " ")
        for quantity, errors, bounds, published in (
            ("time", one.time, TIME_BOUNDS, {}),
            ("power", one.power, POWER_BOUNDS, PUBLISHED_POWER),
        ):
            model, mean = errors(JUDGED), errors(MEAN_CURVE)
            if campaign not in bounds or model is None or mean is None:
                continue
            name = f"{quantity} scaling, {title(one)}, {protocol}, mean error"
            target = Target(name, model.mean_points, bounds[campaign])
            found.append(Judged(target, mean.mean_points, published.get(campaign, "-")))
    return found


def _scores_section(scored: Sequence[Scored]) -> Section:
    return Section(
        "Scaling from counters at one pair of clocks",
        (
            "Counters and utilisations of one run at the reference pair tell time and power at "
            "every other (docs/frequency.md). **`leave programs out`**: everything fitted, the "
            "number of trees included, saw no kernel of the program, on no campaign. **`micro to "
            "real`**: fitted on microbenchmarks, scored on applications. `mean curve`, the mean "
            "scale of the training kernels at each pair, knows the clocks but not the kernel; "
            "`unfitted` is relative time by fixed constants; `physical` is fitted; `hybrid` has "
            "trees on top where they help training kernels that are left out, else it is the "
            "same. A campaign without counters has the mean curve alone. V100 of the DCGM "
            "campaigns begins at 705 MHz: below, a third of its microbenchmarks' rows is slower "
            "than the clocks allow.",
            "Points are percent of the value at the reference: mean (median); then the mean "
            "absolute percentage error of the factor, and the share of pairs within ten points.",
            score_table(scored),
            "Guerreiro et al. (IEEE Access 2019, table 3) print for their recurrent network over "
            "PTX, fitted on microbenchmarks, mean errors of time / power / energy of 19.2 / 7.9 / "
            "19.3 (T4), 16.7 / 6.7 / 13.0 (Titan V), 9.9 / 5.9 / 9.9 (Titan Xp), 15.8 / 5.4 / "
            "13.0 % (GTX Titan X), in percent of the factor and not in points. Theirs predicts "
            "from PTX alone, here counters are known. On the applications that they publish the "
            "mean curve has 11.3 / 6.4 / 10.9 % (`python -m studies applications`). Wang and Chu "
            "(ICPADS 2018) print 3.5 % for time on the 49 pairs: see their model below.",
        ),
    )  # fmt: skip


# --- curves -----------------------------------------------------------------------------------


def _curves_section(real: Sequence[Scored]) -> Section:
    figures = []
    for one in real:
        campaign = one.predictions.rows.campaign
        for quantity, bounds in (("time", TIME_BOUNDS), ("power", POWER_BOUNDS)):
            scale = scale_of(one, quantity)
            if scale is None or campaign not in bounds:
                continue
            figures.append(_curve_figure(one, scale, quantity, "core"))
            if len(np.unique(one.predictions.rows.memory_mhz)) > 2:
                figures.append(_curve_figure(one, scale, quantity, "memory"))
    return Section(
        "Scaling curves",
        (
            "Measured, predicted and mean curve over one clock, the other as at the reference. The "
            "programs are spread evenly over the ranking by error: the nearest on the left, the "
            "farthest on the right.",
            *figures,
        ),
    )


def _curve_figure(one: Scored, scale: Scale, quantity: str, domain: str) -> Figure:
    rows = one.predictions.rows
    clock, other = rows.core_mhz, rows.memory_mhz
    if domain == "memory":
        clock, other = other, clock
    shown = other == _at_reference(other, one)
    errors = by_name(rows.names, np.abs(scale.predicted - scale.measured))
    panels = []
    for name in spread_over(sorted(errors, key=lambda each: errors[each]), _PANELS):
        mine = np.flatnonzero((rows.names == name) & shown)
        mine = mine[np.argsort(clock[mine])]
        lines = (
            ("measured", scale.measured),
            ("predicted", scale.predicted),
            ("mean curve", scale.mean_curve),
        )
        panels.append(
            Panel(
                short_name(name),
                [
                    Line(label, clock[mine].tolist(), values[mine].tolist())
                    for label, values in lines
                ],
            )
        )
    core, memory = rows.reference
    highest = _at_reference(other, one)
    return curves(
        f"dvfs-{quantity}-{domain}-{rows.campaign}-{core:g}".replace("_", "-"),
        f"{rows.campaign}: {quantity} over that at {core:g}/{memory:g} MHz, by the {domain} "
        f"clock; the other at {highest:g} MHz.",
        panels,
        f"{domain} clock, MHz",
        f"{quantity} over that at the reference",
    )


def _at_reference(clock: Floats, one: Scored) -> float:
    """A domain's clock at the reference pair."""
    return float(clock[one.predictions.rows.is_reference][0])


def short_name(name: str) -> str:
    """Name of a program without the number of its only input."""
    return name.removesuffix(" input00")


def by_name(names: np.ndarray, values: Floats) -> dict[str, float]:
    """Mean of ``values`` for each name."""
    return {str(name): float(np.nanmean(values[names == name])) for name in np.unique(names)}


# --- programs and families --------------------------------------------------------------------


def _programs_section(real: Sequence[Scored]) -> Section:
    columns: dict[str, dict[str, str]] = {}
    for one in real:
        rows = one.predictions.rows
        others = ~rows.is_reference
        cells: dict[str, list[str]] = {}
        for quantity in _QUANTITIES[:2]:
            scale = scale_of(one, quantity)
            if scale is None:
                continue
            points, mean = scale.points(others)
            # The DCGM campaigns give one program several names of inputs; they count as one here.
            programs = np.array([each.split()[0] for each in rows.names[others]])
            base = by_name(programs, mean)
            for name, error in by_name(programs, points).items():
                cells.setdefault(name, []).append(f"{error:.1f} ({base[name]:.1f})")
        if cells:
            columns[title(one)] = {name: "; ".join(each) for name, each in cells.items()}
    names = sorted({name for column in columns.values() for name in column}, key=str.lower)
    return Section(
        "By program",
        (
            "Mean error in points, the mean curve's in brackets: time; power, or the one of both "
            "that was measured (Titan X: power; campaigns called timeonly: time).",
            Table(
                ("program", *columns),
                [[name, *(column.get(name, "") for column in columns.values())] for name in names],
            ),
        ),
    )


def _families_section(real: Sequence[Scored]) -> Section:
    models: dict[str, dict[str, Floats]] = {}
    bases: dict[str, dict[str, Floats]] = {}
    campaigns: dict[str, set[str]] = {}
    for quantity in _QUANTITIES:
        found = [(one, scale) for one in real if (scale := scale_of(one, quantity)) is not None]
        models[quantity], bases[quantity] = _pooled(found, 0), _pooled(found, 1)
        for one, _ in found:
            for family in np.unique(one.predictions.rows.groups).tolist():
                campaigns.setdefault(family, set()).add(title(one))
    families = sorted(campaigns)

    def cell(of: Mapping[str, Floats], family: str) -> str:
        return f"{of[family].mean():.1f}" if family in of else "-"

    return Section(
        "By program family",
        (
            "A family is all kernels of one program (`data/frequency_names.py`); it is what "
            "is left out together. Mean error in points over all pairs of all campaigns with "
            "applications; the mean curve's beside it.",
            Table(
                (
                    "family",
                    "campaigns",
                    *(f"{quantity}{of}" for quantity in _QUANTITIES for of in ("", ", mean curve")),
                ),
                [
                    [
                        family,
                        str(len(campaigns[family])),
                        *(
                            cell(of[quantity], family)
                            for quantity in _QUANTITIES
                            for of in (models, bases)
                        ),
                    ]
                    for family in families
                ],
            ),
            bars(
                "dvfs-by-family",
                "Mean error of the energy scale by program family, all campaigns that measured "
                "both time and power.",
                [family for family in families if family in models["energy"]],
                {
                    label: [float(of["energy"][f].mean()) for f in families if f in of["energy"]]
                    for label, of in ((JUDGED, models), (MEAN_CURVE, bases))
                },
                "mean error, points",
            ),
        ),
    )


def _pooled(found: Sequence[tuple[Scored, Scale]], which: int) -> dict[str, Floats]:
    """Errors of every row by program family, of all campaigns together.

    ``which``: 0 those of the model, 1 of the mean curve.
    """
    parts: dict[str, list[Floats]] = {}
    for one, scale in found:
        rows = one.predictions.rows
        for family in np.unique(rows.groups).tolist():
            mine = (rows.groups == family) & ~rows.is_reference
            parts.setdefault(family, []).append(scale.points(mine)[which])
    return {family: np.concatenate(each) for family, each in parts.items()}
