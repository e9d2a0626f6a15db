"""How scaling models are scored: on programs, or on real kernels, that they have not seen.

``leave_programs_out`` leaves each program out in turn, of all campaigns at once: everything
fitted, the number of trees included, sees the other programs only. ``micro_to_real`` fits on
microbenchmarks and predicts real kernels. Each predicts the same rows by several models:

    mean curve   mean scale of the training kernels at each pair: knows the clocks, not the kernel
    physical     wattcast.models.papers.scaling.physical
    hybrid       power: physical x boosted trees, their number chosen inside the training kernels
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from studies.fitting.scaling.fits import fit_power, fit_power_and_time, fit_times
from studies.fitting.scaling.rows import Bools, Floats, ScalingRows
from studies.fitting.scaling.trees import CANDIDATES, ResidualRows, TreeSettings, choose, fit_trees
from wattcast.models.papers.scaling.physical import (
    PowerParameters,
    TimeParameters,
    power_watts,
    relative_time,
)
from wattcast.models.papers.scaling.residual import power_vectors

MODELS = ("mean curve", "physical", "hybrid")
FEW_KERNELS = CANDIDATES[:3]
"""Numbers of trees tried where some twenty kernels are all there is."""

Scales = Mapping[str, Floats]
"""Predicted scales ``[n]`` by model; NaN where a row is not predicted."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the models say of the rows of one campaign they have not seen, and the rows."""

    rows: ScalingRows
    time: Scales
    power: Scales


@dataclass(frozen=True, eq=False)
class PhysicalFit:
    """Parameters of one campaign; ``time_measured`` tells whether times were, or only power."""

    time: TimeParameters
    power: PowerParameters | None
    time_measured: bool


def leave_programs_out(
    parts: Sequence[ScalingRows],
    *,
    candidates: Sequence[TreeSettings] = FEW_KERNELS,
    folds: int | None = None,
    jobs: int = 1,
) -> list[Predictions]:
    """Every row predicted by models that saw none of its program, on no campaign.

    With ``folds`` that many sets of programs are left out in turn, instead of each program alone.
    """
    programs = sorted({str(group) for part in parts for group in part.groups})
    count = min(folds or len(programs), len(programs))
    left_out = [frozenset(programs[at::count]) for at in range(count)]
    fold = partial(_without, parts, candidates)
    results = [_empty(part) for part in parts]
    for names, predictions in zip(left_out, _mapped(fold, left_out, jobs), strict=True):
        for result, prediction in zip(results, predictions, strict=True):
            rows = np.isin(result.rows.groups, list(names))
            for into, of in ((result.time, prediction.time), (result.power, prediction.power)):
                for model, scales in of.items():
                    into[model][rows] = scales[rows]
    return results


def micro_to_real(
    parts: Sequence[ScalingRows], *, candidates: Sequence[TreeSettings] = CANDIDATES
) -> list[Predictions]:
    """Real kernels predicted by models that saw the microbenchmarks of the campaigns."""
    predictions = predict([*parts], [~part.real for part in parts], candidates)
    return [
        Predictions(
            part.take(part.real),
            {model: scales[part.real] for model, scales in prediction.time.items()},
            {model: scales[part.real] for model, scales in prediction.power.items()},
        )
        for part, prediction in zip(parts, predictions, strict=True)
    ]


def fit_physical(parts: Sequence[ScalingRows]) -> list[PhysicalFit]:
    """The physical model of each campaign, all of one kind of counters."""
    if not parts[0].has_time:
        return [_few_times(part) for part in parts]
    times = fit_times(parts)
    return [
        PhysicalFit(
            times[part.campaign],
            fit_power(part, part.time_scale) if part.has_power else None,
            time_measured=True,
        )
        for part in parts
    ]


def _few_times(part: ScalingRows) -> PhysicalFit:
    """Time by the kernels whose time is known; where there are none, as power betrays it."""
    timed = part.timed
    if timed is None:
        power, time = fit_power_and_time(part)
        return PhysicalFit(time, power, time_measured=False)
    time = fit_times([timed])[part.campaign]
    relative = relative_time(time, part.use, part.core, part.memory)
    return PhysicalFit(time, fit_power(part, relative), time_measured=True)


def predict(
    parts: Sequence[ScalingRows],
    train: Sequence[Bools],
    candidates: Sequence[TreeSettings],
) -> list[Predictions]:
    """All rows by models fitted on the training rows. Campaigns without counters get the mean."""
    results = []
    for part, rows in zip(parts, train, strict=True):
        results.append(
            Predictions(
                part,
                {"mean curve": _mean_curve(part, rows, part.time_scale)} if part.has_time else {},
                {"mean curve": _mean_curve(part, rows, part.power_scale)} if part.has_power else {},
            )
        )
    if parts[0].kind is None:
        return results
    fits = fit_physical([part.take(rows) for part, rows in zip(parts, train, strict=True)])
    for at, (part, fit, result) in enumerate(zip(parts, fits, results, strict=True)):
        times, powers = dict(result.time), dict(result.power)
        if part.has_time:
            relative = relative_time(fit.time, part.use, part.core, part.memory)
            times["physical"] = times["hybrid"] = relative / relative[part.reference_rows]
        power = power_rows(part, fit)
        if power is not None:
            powers["physical"] = power.physical
            powers["hybrid"] = corrected(power, train[at], candidates)
        results[at] = Predictions(part, times, powers)
    return results


def power_rows(part: ScalingRows, fit: PhysicalFit) -> ResidualRows | None:
    """What trees are to explain of a campaign: measured over physical power scales of all rows;
    ``None`` where power was not measured."""
    if fit.power is None:
        return None
    relative = relative_time(fit.time, part.use, part.core, part.memory)
    watts = power_watts(fit.power, part.use, part.nominal, part.core_mhz, part.memory_mhz, relative)
    return ResidualRows(
        vectors=power_vectors(part.use, part.core, part.memory),
        physical=watts / watts[part.reference_rows],
        measured=part.power_scale,
        weights=part.program_weights() * part.sound_power,
        groups=part.groups,
        reference_rows=part.reference_rows,
    )


def corrected(rows: ResidualRows, train: Bools, candidates: Sequence[TreeSettings]) -> Floats:
    """Scales ``[n]`` by the physical model and trees of the training rows, chosen among them."""
    trees = fit_trees(rows, train, choose(rows, train, candidates))
    return rows.predict(trees, np.ones(len(train), dtype=bool))


def _mean_curve(part: ScalingRows, train: Bools, scale: Floats) -> Floats:
    _, pair = np.unique(
        np.column_stack([part.core_mhz, part.memory_mhz]), axis=0, return_inverse=True
    )
    pair = np.asarray(pair).reshape(-1)
    sums = np.bincount(pair[train], weights=scale[train], minlength=int(pair.max()) + 1)
    counts = np.bincount(pair[train], minlength=int(pair.max()) + 1)
    return np.asarray((sums / counts)[pair])


def _without(
    parts: Sequence[ScalingRows], candidates: Sequence[TreeSettings], programs: frozenset[str]
) -> list[Predictions]:
    train = [~np.isin(part.groups, list(programs)) for part in parts]
    return predict(parts, train, candidates)


def _mapped(
    fold: partial[list[Predictions]], left_out: Sequence[frozenset[str]], jobs: int
) -> Iterator[list[Predictions]]:
    if jobs == 1:
        yield from map(fold, left_out)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(fold, left_out)


def _empty(part: ScalingRows) -> Predictions:
    names = MODELS if part.kind is not None else MODELS[:1]

    def nothing() -> dict[str, Floats]:
        return {name: np.full(len(part), np.nan) for name in names}

    times, powers = (nothing() if has else {} for has in (part.has_time, part.has_power))
    return Predictions(part, times, powers)
