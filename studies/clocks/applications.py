"""Applications of the Titan X at 32 clock pairs: the setting of Guerreiro et al., IEEE Access 2019.

    python -m studies applications

Ten of the fifteen applications whose times are published were also counted. Each is predicted from
its counters by models fitted without its program: microbenchmarks and the other applications.
Beside them the mean curve of the microbenchmarks, the fixed pair that would have saved most, and
the oracle. The authors print scores of their sequence model for 24 applications, these among them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from studies.clocks.scaling_protocols import (
    FEW_KERNELS,
    Predictions,
    corrected,
    fit_physical,
    log_ratios,
)
from studies.clocks.scaling_rows import TITAN_X, Bools, Floats, ScalingRows, scaling_rows
from studies.clocks.scaling_studies import Scored, choice_scores, scale_scores
from studies.data.frequency import COUNTED_TOO, read_measured_sequences
from wattcast.features.errors import WattcastError
from wattcast.models.clocks import ClockPair
from wattcast.models.scaling.timing import relative_time
from wattcast.training.card_tables import table

REFERENCE = ClockPair(1164.0, 3505.0)
MEMORY_MHZ = (810.0, 3505.0)
PRINTED = ["the paper's LSTM", "24", "15.8", "5.4", "13.0", "11.5 of 18.1"]
"""As printed there; |p - m| / m of scaling factors, as all of these."""


def scales(kind: str = "real", root: Path | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Time and power over those at ``REFERENCE``: a row for each application (``real``) or
    microbenchmark (``micro``), a column for each (core, memory) clock."""
    frame = read_measured_sequences(root)
    frame = frame[frame["kind"] == kind]
    wide = [
        frame.pivot(index="benchmark", columns=["core_mhz", "memory_mhz"], values=column)
        for column in ("time_ms", "power_watts")
    ]
    time, power = (each.div(each[tuple(REFERENCE)], axis=0) for each in wide)
    return time, power


def from_counters(root: Path | None = None) -> Scored:
    """The counted applications at all 32 pairs, predicted by models that saw none of their
    programs. Raises DataError for missing data."""
    rows = scaling_rows(TITAN_X, root, reference=REFERENCE, memory_mhz=MEMORY_MHZ)
    timed = np.isfinite(rows.time_scale)
    told = {name: np.full(len(rows), np.nan) for name in ("time", "physical", "hybrid")}
    for group in np.unique(rows.groups[timed]):
        out = rows.groups == group
        for name, values in _fitted(rows, ~out).items():
            told[name][out] = values[out]
    mine = rows.take(timed)
    pairs = list(zip(mine.core_mhz, mine.memory_mhz, strict=True))
    mean = [frame.mean() for frame in scales("micro", root)]
    time, power = (np.array([float(each[pair]) for pair in pairs]) for each in mean)
    measured = scales("real", root)[1]
    of_theirs = [
        float(measured.loc[COUNTED_TOO[str(name)], pair])
        for name, pair in zip(mine.names, pairs, strict=True)
    ]
    fitted = {name: values[timed] for name, values in told.items()}
    return Scored(
        "leave_programs_out",
        Predictions(
            replace(mine, power_scale=np.array(of_theirs)),
            {"mean curve": time, "physical": fitted["time"], "hybrid": fitted["time"]},
            {"mean curve": power, "physical": fitted["physical"], "hybrid": fitted["hybrid"]},
        ),
    )


def _fitted(rows: ScalingRows, train: Bools) -> dict[str, Floats]:
    """Scales of all rows by models of the training rows: time, power, power with trees."""
    fit = fit_physical([rows.take(train)])[0]
    relative = relative_time(fit.time, rows.use, rows.core, rows.memory)
    power = log_ratios([rows], [fit]).power[0]
    assert power is not None, "the campaign measured power"
    return {
        "time": relative / relative[rows.reference_rows],
        "physical": power.physical,
        "hybrid": corrected(power, train, FEW_KERNELS),
    }


def applications_table(root: Path | None = None) -> str:
    """The table of this study, Markdown. Raises DataError for missing data."""
    time, power = scales("real", root)
    shape, away = time.shape, ~time.columns.isin([tuple(REFERENCE)])
    mean = [np.broadcast_to(frame.mean(), shape).ravel() for frame in scales("micro", root)]
    true = [time.to_numpy().ravel(), power.to_numpy().ravel()]
    both = [*zip(mean, true, strict=True), (mean[0] * mean[1], true[0] * true[1])]
    errors = [scale_scores(*each, ~np.tile(away, shape[0])).mape_percent for each in both]
    saved = choice_scores(
        (mean[0], mean[1]), (true[0], true[1]), np.repeat(range(shape[0]), shape[1])
    )
    lines = [
        _line(
            "mean curve of microbenchmarks",
            shape[0],
            errors,
            saved.saved_percent,
            saved.oracle_percent,
        )
    ]
    energy = (1 - time * power).mean()
    core, memory = energy.index[int(np.argmax(energy))]
    title = f"best fixed pair, {core:g}/{memory:g} MHz"
    lines.append(_line(title, shape[0], None, 100 * energy.max(), saved.oracle_percent))
    one = from_counters(root)
    kernels = len(np.unique(one.predictions.rows.kernel))
    for model, title in (
        ("mean curve", "mean curve of microbenchmarks"),
        ("physical", "counters, physical model, program left out"),
        ("hybrid", "counters, power corrected by trees, program left out"),
    ):
        scores, choice = (one.time(model), one.power(model), one.energy(model)), one.choice(model)
        assert choice is not None, "both quantities were measured"
        found = [each.mape_percent for each in scores if each is not None]
        lines.append(_line(title, kernels, found, choice.saved_percent, choice.oracle_percent))
    titles = ["model", "applications", "time %", "power %", "energy %", "energy saved %"]
    return table(titles, [*lines, PRINTED])


def _line(
    title: str, count: int, errors: Sequence[float] | None, saved: float, oracle: float
) -> list[str]:
    cells = ["-"] * 3 if errors is None else [f"{error:.1f}" for error in errors]
    return [title, str(count), *cells, f"{saved:.1f} of {oracle:.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 where data are missing."""
    parser = argparse.ArgumentParser("python -m studies applications", description=__doc__)
    parser.parse_args(arguments)
    try:
        print(applications_table())
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
