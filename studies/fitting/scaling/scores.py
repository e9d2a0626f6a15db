"""Scaling models scored on kernels left out, campaign by campaign, and with known points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from studies.card_tables import table
from studies.fitting.scaling.protocols import MODELS, Predictions, leave_programs_out, micro_to_real
from studies.fitting.scaling.rows import TITAN_X, Bools, Floats, Integers, ScalingRows, scaling_rows
from wattcast.models.cards import ScalingProtocol
from wattcast.models.choice import outweighs
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import conformal_factors

# --- Which campaigns are scored how, and the table of their scores -----------------------------


INTERVAL_LEVEL = 0.9
"""Of the cards' intervals."""
CLOSE_POINTS = 10.0
"""A prediction off by less counts as close (Guerreiro et al., figure 6)."""


@dataclass(frozen=True, slots=True)
class ScaleScores:
    """Errors of one scale: mean and median in points, MAPE and share of close points in percent."""

    mean_points: float
    median_points: float
    mape_percent: float
    close_percent: float


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """What the chosen pairs save of the energy at the reference, in percent, mean over kernels.

    ``hypervolume_ratio``: what the pairs predicted to be Pareto-optimal dominate in speed-up and
    energy, as measured, over what the truly optimal ones do (mean over kernels, at most 1).
    ``largest_loss_percent``: what the worst choice costs; below 0 where every one saves.
    """

    saved_percent: float
    oracle_percent: float
    hypervolume_ratio: float
    largest_loss_percent: float

    @property
    def oracle_share_percent(self) -> float:
        """Saved over what the oracle saves; 100 where nothing can be saved."""
        if self.oracle_percent <= 0:
            return 100.0
        return 100 * self.saved_percent / self.oracle_percent


def scale_scores(predicted: Floats, measured: Floats, is_reference: Bools) -> ScaleScores:
    """Errors over all rows but the reference's."""
    rows = ~is_reference
    points = np.abs(predicted - measured)[rows] * 100
    return ScaleScores(
        mean_points=float(points.mean()),
        median_points=float(np.median(points)),
        mape_percent=float((points / measured[rows]).mean()),
        close_percent=float((points < CLOSE_POINTS).mean() * 100),
    )


def choice_scores(
    predicted: tuple[Floats, Floats],
    measured: tuple[Floats, Floats],
    kernel: Integers,
    careful: Floats | None = None,
) -> ChoiceScores:
    """Scores of choosing by (time, power) scales ``[n]``; ``kernel`` numbers each row's kernel.

    Of pairs with equal predicted energy the faster one is chosen, then the first. With ``careful``,
    ``[n]``, the reference is left only where the saving outweighs that factor
    (``models.choice.outweighs``): what is served.
    """
    saved, best, ratios = [], [], []
    energy = measured[0] * measured[1]
    for number in np.unique(kernel):
        rows = np.flatnonzero(kernel == number)
        told_time, told_power = predicted[0][rows], predicted[1][rows]
        told = told_time * told_power
        chosen = np.lexsort((told_time, told))[0]
        stays = careful is not None and not outweighs(told[chosen], careful[rows[0]])
        saved.append(0.0 if stays else 1 - energy[rows][chosen])
        best.append(1 - energy[rows].min())
        speed = 1 / measured[0][rows]
        worst = float(energy[rows].max())
        optimal = pareto_rows(1 / told_time, told)
        true = hypervolume(speed, energy[rows], worst)
        ratios.append(hypervolume(speed[optimal], energy[rows][optimal], worst) / true)
    return ChoiceScores(
        saved_percent=float(np.mean(saved) * 100),
        oracle_percent=float(np.mean(best) * 100),
        hypervolume_ratio=float(np.mean(ratios)),
        largest_loss_percent=float(-np.min(saved) * 100),
    )


def one_in_ten(errors: Floats, kernels: NDArray[np.str_]) -> float:
    """Factor that ``exp(errors)`` exceeds in one kernel of ten: the upper end of four in five."""
    return conformal_factors(errors, kernels, 0.8, symmetric=True)[1]


def scale_errors(
    predicted: Floats | None, measured: Floats, rows: ScalingRows
) -> tuple[Floats, NDArray[np.str_]] | None:
    """ln(measured / predicted) away from the reference, and the kernels; ``None`` without any."""
    if predicted is None or not np.isfinite(predicted).all():
        return None
    told = ~rows.is_reference & np.isfinite(measured)
    if not told.any():
        return None
    return np.log(measured / predicted)[told], rows.kernel[told].astype(str)


def careful_factors(
    errors: Floats, kernels: NDArray[np.str_], groups: NDArray[np.str_], asked: NDArray[np.str_]
) -> Floats:
    """For each program of ``asked`` what ``one_in_ten`` says of all programs but that, ``[n]``."""
    found = {
        group: one_in_ten(errors[groups != group], kernels[groups != group])
        for group in np.unique(asked)
    }
    return np.array([found[group] for group in asked])


def pareto_rows(speed: Floats, energy: Floats) -> Integers:
    """Rows no other beats in both speed-up (higher) and energy (lower), the fastest first."""
    order = np.lexsort((energy, -speed))
    least = np.minimum.accumulate(energy[order])
    first = np.concatenate([[True], energy[order][1:] < least[:-1]])
    return np.asarray(order[first])


def hypervolume(speed: Floats, energy: Floats, worst_energy: float) -> float:
    """Area that points dominate, against no speed and ``worst_energy``; 1e-12 at least."""
    area, floor = 0.0, worst_energy
    for row in pareto_rows(speed, energy):
        area += float(speed[row] * max(0.0, floor - energy[row]))
        floor = min(floor, float(energy[row]))
    return max(area, 1e-12)


Progress = Callable[[str], None]

NVPROF_CAMPAIGNS = (
    "wang_gtx_980_high",
    "wang_gtx_980_low",
    "wang_gtx_980_icpads49_timeonly",
    "wang_gtx_1080_ti",
    "wang_titan_x_pascal_timeonly",
    "wang_tesla_p100",
    "wang_tesla_v100",
)
DCGM_CAMPAIGNS = ("wang_dcgm_tesla_v100", "wang_dcgm_quadro_rtx_8000")
MICRO_CAMPAIGNS = ("lisboa_titan_xp", "lisboa_titan_v", "lisboa_gtx_980", "lisboa_tesla_k40c")
"""Campaigns of microbenchmarks alone, each kernel a program of its own."""
MICRO_FOLDS = 10


@dataclass(frozen=True, slots=True)
class Study:
    """Campaigns fitted together and scored by one protocol.

    ``reference`` and ``memory_mhz`` choose another reference pair and some memory clocks;
    ``folds`` as in ``leave_programs_out``.
    """

    protocol: ScalingProtocol
    campaigns: tuple[str, ...]
    reference: ClockPair | None = None
    memory_mhz: tuple[float, ...] | None = None
    folds: int | None = None

    def run(self, root: Path | None = None, jobs: int = 1) -> list[Predictions]:
        """Predictions of kernels left out, campaign by campaign."""
        parts = [
            scaling_rows(name, root, reference=self.reference, memory_mhz=self.memory_mhz)
            for name in self.campaigns
        ]
        if self.protocol == "micro_to_real":
            return micro_to_real(parts)
        return leave_programs_out(parts, folds=self.folds, jobs=jobs)


STUDIES = (
    Study("leave_programs_out", NVPROF_CAMPAIGNS),
    Study("leave_programs_out", ("wang_rtx_2070_super",)),
    Study("micro_to_real", DCGM_CAMPAIGNS),
    # The setting of Guerreiro et al., IEEE Access 2019: two memory clocks, maximum as reference.
    Study("micro_to_real", (TITAN_X,), ClockPair(1164.0, 3505.0), (810.0, 3505.0)),
    Study("micro_to_real", (TITAN_X,)),
    *(Study("leave_programs_out", (name,), folds=MICRO_FOLDS) for name in MICRO_CAMPAIGNS),
)


@dataclass(frozen=True, eq=False)
class Scored:
    """Predictions of one campaign and their protocol."""

    protocol: ScalingProtocol
    predictions: Predictions

    @property
    def models(self) -> list[str]:
        """Models that predict this campaign, the mean curve first."""
        known = set(self.predictions.time) | set(self.predictions.power)
        return [model for model in MODELS if model in known]

    def time(self, model: str) -> ScaleScores | None:
        """Errors of the time scale, if measured and predicted."""
        return self._errors(self.predictions.time.get(model), self.predictions.rows.time_scale)

    def power(self, model: str) -> ScaleScores | None:
        """Errors of the power scale, if measured and predicted."""
        return self._errors(self.predictions.power.get(model), self.predictions.rows.power_scale)

    def energy(self, model: str) -> ScaleScores | None:
        """Errors of the energy scale, time x power, if both are there."""
        both = self._both(model)
        if both is None:
            return None
        rows = self.predictions.rows
        return self._errors(both[0] * both[1], rows.time_scale * rows.power_scale)

    def choice(self, model: str, *, careful: bool = False) -> ChoiceScores | None:
        """What choosing clocks by predicted energy saves, if time and power are there; ``careful``
        as served, the errors of the other programs known."""
        both, rows = self._both(model), self.predictions.rows
        if both is None:
            return None
        factors, found = None, self.energy_errors(model)
        if careful and found is not None:
            factors = careful_factors(*found, rows.groups[~rows.is_reference], rows.groups)
        return choice_scores(both, (rows.time_scale, rows.power_scale), rows.kernel, factors)

    def energy_errors(self, model: str) -> tuple[Floats, NDArray[np.str_]] | None:
        """As ``scale_errors``, of energy."""
        both, rows = self._both(model), self.predictions.rows
        if both is None:
            return None
        return scale_errors(both[0] * both[1], rows.time_scale * rows.power_scale, rows)

    def inside(self, model: str, quantity: str) -> float | None:
        """Share of pairs whose measured scale lies inside the interval at 90 %, its factors those
        of all programs but the one judged; ``None`` where too few know it."""
        rows, time = self.predictions.rows, quantity == "time"
        told = (self.predictions.time if time else self.predictions.power).get(model)
        measured = rows.time_scale if time else rows.power_scale
        if (found := scale_errors(told, measured, rows)) is None:
            return None
        errors, kernels = found
        groups = rows.groups[~rows.is_reference & np.isfinite(measured)]
        held = np.zeros(len(errors), dtype=bool)
        for group in np.unique(groups):
            mine = groups == group
            if mine.all():
                return None
            ends = conformal_factors(errors[~mine], kernels[~mine], INTERVAL_LEVEL, symmetric=True)
            held[mine] = (np.log(ends[0]) <= errors[mine]) & (errors[mine] <= np.log(ends[1]))
        return float(held.mean())

    def _both(self, model: str) -> tuple[Floats, Floats] | None:
        time, power = self.predictions.time.get(model), self.predictions.power.get(model)
        return None if time is None or power is None else (time, power)

    def _errors(self, predicted: Floats | None, measured: Floats) -> ScaleScores | None:
        if predicted is None:
            return None
        return scale_scores(predicted, measured, self.predictions.rows.is_reference)


def run_studies(
    studies: Sequence[Study] = STUDIES,
    root: Path | None = None,
    *,
    jobs: int = 1,
    progress: Progress = print,
) -> list[Scored]:
    """All studies, in order; the same data and library versions give the same predictions."""
    scored = []
    for study in studies:
        progress(f"{study.protocol.replace('_', ' ')}: {', '.join(study.campaigns)}")
        scored += [Scored(study.protocol, each) for each in study.run(root, jobs)]
    return scored


def score_table(scored: Iterable[Scored]) -> str:
    """Errors in points (mean, median, MAPE, share within ten points) of every model."""
    titles = ["campaign, reference", "protocol", "kernels", "model"]
    titles += [f"{name} points (median), MAPE, < 10" for name in ("time", "power", "energy")]
    titles += ["inside the interval: time, power"]
    lines = []
    for one in scored:
        for model in one.models:
            cells = [_errors(each(model)) for each in (one.time, one.power, one.energy)]
            inside = [one.inside(model, name) for name in ("time", "power")]
            told = ", ".join("-" if share is None else f"{share:.3f}" for share in inside)
            lines.append([*_label(one), model, *cells, told])
    return table(titles, lines)


def choice_table(scored: Iterable[Scored]) -> str:
    """Energy saved at the pair of least predicted energy, its share of the oracle's, and Pareto
    hypervolume."""
    titles = ["campaign, reference", "protocol", "kernels", "model"]
    titles += ["saved", "oracle", "share", "largest loss", "as proposed: share", "largest loss"]
    titles += ["hypervolume"]
    lines = []
    for one in scored:
        for model in one.models:
            choice, served = one.choice(model), one.choice(model, careful=True)
            if choice is None or served is None:
                continue
            lines.append(
                [
                    *_label(one),
                    model,
                    f"{choice.saved_percent:.1f} %",
                    f"{choice.oracle_percent:.1f} %",
                    f"{choice.oracle_share_percent:.0f} %",
                    f"{choice.largest_loss_percent:.1f} %",
                    f"{served.oracle_share_percent:.0f} %",
                    f"{served.largest_loss_percent:.1f} %",
                    f"{choice.hypervolume_ratio:.3f}",
                ]
            )
    return table(titles, lines)


def _label(one: Scored) -> list[str]:
    rows = one.predictions.rows
    core, memory = rows.reference
    kernels = len(set(rows.kernel.tolist()))
    name = f"{rows.campaign}, {core:g}/{memory:g}"
    return [name, one.protocol.replace("_", " "), str(kernels)]


def _errors(errors: ScaleScores | None) -> str:
    if errors is None:
        return "-"
    return (
        f"{errors.mean_points:.2f} ({errors.median_points:.2f}), {errors.mape_percent:.1f} %, "
        f"{errors.close_percent:.0f} %"
    )
