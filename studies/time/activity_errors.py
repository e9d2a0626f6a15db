"""Errors of the time models on the programs of the activity tables.

The predictions are ``bottleneck_errors``'s and ``queueing_errors``'s own, on the same rows;
added is the mean scaling curve, which knows nothing of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.data.activity_tables import read_activity_table
from studies.data.frequency import kernel_group
from studies.pages.uninformed import mean_curve_of_others
from studies.time.bottleneck_errors import (
    ABLATIONS,
    TimeErrors,
    bottleneck_with,
    median_of_others,
    roofline,
    time_errors,
)
from studies.time.queueing_errors import static_errors

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SHIPPED = dict(ABLATIONS)["as shipped"]
"""Constants of the default model on these tables."""

DEFAULT = "bottleneck"
BASELINE = "median of the other programs"
MEAN_CURVE = "mean scaling curve of the other programs"
MODELS = (DEFAULT, "queueing", "queueing-cases", "roofline", BASELINE)


class ProgramError(NamedTuple):
    """One program at the highest clocks of one GPU: predicted over measured time by model.

    ``label`` is the program, with its input where it was measured with several.
    """

    gpu: str
    program: str
    label: str
    ratios: Mapping[str, float]

    def percent(self, model: str) -> float:
        """Absolute error of a model."""
        return abs(self.ratios[model] - 1) * 100


@dataclass(frozen=True)
class ActivityErrors:
    """Errors of every model on one GPU's application programs, same rows in the same order."""

    gpu: str
    models: Mapping[str, TimeErrors]

    @classmethod
    def of(cls, gpu: str) -> ActivityErrors:
        """Predict all rows of a GPU with every model. Raises DataError."""
        rows = [row for row in read_activity_table(gpu) if row.kind == "real"]
        return cls(
            gpu,
            {
                DEFAULT: time_errors(gpu, bottleneck_with(SHIPPED)),
                "queueing": static_errors(gpu, "queueing"),
                "queueing-cases": static_errors(gpu, "queueing-cases"),
                "roofline": time_errors(gpu, roofline),
                BASELINE: time_errors(gpu, median_of_others(rows)),
            },
        )

    @property
    def shipped(self) -> TimeErrors:
        """The default model."""
        return self.models[DEFAULT]

    @cached_property
    def labels(self) -> list[str]:
        """Name of the program of each row, with its input where it was measured with several."""
        rows = self.shipped.rows
        inputs: dict[str, set[str]] = {}
        for row in rows:
            inputs.setdefault(row.program, set()).add(row.variant)
        return [
            f"{row.program} {row.variant}" if len(inputs[row.program]) > 1 else row.program
            for row in rows
        ]

    @cached_property
    def programs(self) -> list[ProgramError]:
        """Every program at the highest clocks."""
        chosen = np.flatnonzero(self.shipped.at_reference)
        return [
            ProgramError(
                self.gpu,
                self.shipped.rows[row].program,
                self.labels[row],
                {
                    name: float(errors.predicted[row] / errors.measured[row])
                    for name, errors in self.models.items()
                },
            )
            for row in chosen.tolist()
        ]

    @cached_property
    def reference_rows(self) -> Integers:
        """For each row the position of its program's row at the highest clocks, ``[n]``."""
        rows, reference = self.shipped.rows, self.shipped.reference
        at = {row.label: n for n, row in enumerate(rows) if row.clocks == reference}
        return np.array([at[row.label] for row in rows], dtype=np.int64)

    @property
    def scale(self) -> Floats:
        """Measured time over that at the highest clocks, ``[n]``."""
        return self.shipped.measured / self.shipped.measured[self.reference_rows]

    @cached_property
    def mean_curve(self) -> Floats:
        """The mean of ``scale`` over the other program families at the same clocks, ``[n]``."""
        rows = self.shipped.rows
        return mean_curve_of_others(
            [kernel_group(row.program) for row in rows],
            [row.clocks for row in rows],
            self.shipped.measured,
            self.reference_rows,
        )

    @property
    def mean_curve_percent(self) -> Floats:
        """Error of the mean curve as a prediction of ``scale``, without the highest clocks."""
        errors = np.abs(self.mean_curve / self.scale - 1) * 100
        return np.asarray(errors[~self.shipped.at_reference])
