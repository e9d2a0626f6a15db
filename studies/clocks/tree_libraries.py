"""XGBoost beside CatBoost as the trees over the physical scaling model: the evidence for one.

Errors on programs left out inside the training kernels (the microbenchmarks, where a campaign has
real kernels too), so that no kernel a model is scored on takes part in the choice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wattcast.models.clocks import ClockPair
from wattcast.training.dvfs.protocols import fit_physical, log_ratios
from wattcast.training.dvfs.residual import CANDIDATES, Library, ResidualRows, inner_errors
from wattcast.training.dvfs.rows import Bools, scaling_rows
from wattcast.training.dvfs.studies import DCGM_CAMPAIGNS, NVPROF_CAMPAIGNS, TITAN_X
from wattcast.training.markdown import table

LIBRARIES: tuple[Library, ...] = ("xgboost", "catboost")


def library_table() -> str:
    """Mean error in points by library and number of trees; 0 trees is the physical model."""
    titles = ["campaign", "quantity", "library"]
    titles += [f"{one.trees} of depth {one.depth}" for one in CANDIDATES]
    lines = []
    for label, rows, train in _cases():
        for library in LIBRARIES:
            errors = inner_errors(rows, train, CANDIDATES, library)
            lines.append([label, rows.quantity, library, *(f"{error:.2f}" for error in errors)])
    return table(titles, lines)


def _cases() -> Iterator[tuple[str, ResidualRows, Bools]]:
    two_memories = ClockPair(1164.0, 3505.0), (810.0, 3505.0)
    for campaigns, reference, memory in (
        (NVPROF_CAMPAIGNS, None, None),
        (DCGM_CAMPAIGNS, None, None),
        ((TITAN_X,), *two_memories),
        ((TITAN_X,), None, None),
    ):
        parts = [scaling_rows(name, reference=reference, memory_mhz=memory) for name in campaigns]
        train = [~part.real if (~part.real).any() else part.real for part in parts]
        fits = fit_physical([part.take(rows) for part, rows in zip(parts, train, strict=True)])
        ratios = log_ratios(parts, fits)
        if ratios.time is not None:
            yield f"{len(campaigns)} campaigns", ratios.time, np.concatenate(train)
        for part, power, rows in zip(parts, ratios.power, train, strict=True):
            if power is not None:
                label = f"{part.campaign}, {part.reference.core_mhz:g}/"
                yield label + f"{part.reference.memory_mhz:g}", power, rows
