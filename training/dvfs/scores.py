"""Scores of scaling predictions: errors of scales, and what choosing clocks by them saves.

Errors are in points (hundredths) of the scaling factor over all pairs but the reference. The
chosen pair has the least predicted energy; what it saves is measured there. The oracle chooses by
the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattcast.training.dvfs.rows import Bools, Floats, Integers

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
    """

    saved_percent: float
    oracle_percent: float
    hypervolume_ratio: float

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
    predicted: tuple[Floats, Floats], measured: tuple[Floats, Floats], kernel: Integers
) -> ChoiceScores:
    """Scores of choosing by (time, power) scales ``[n]``; ``kernel`` numbers each row's kernel.

    Of pairs with equal predicted energy the faster one is chosen, then the first.
    """
    saved, best, ratios = [], [], []
    energy = measured[0] * measured[1]
    for number in np.unique(kernel):
        rows = np.flatnonzero(kernel == number)
        told_time, told_power = predicted[0][rows], predicted[1][rows]
        told = told_time * told_power
        chosen = np.lexsort((told_time, told))[0]
        saved.append(1 - energy[rows][chosen])
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
    )


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
