"""Nested cross-validation: whatever is tuned is tuned on training rows only.

``tuned`` makes one model of several candidates. It is a model like any other, so that scoring it by
``protocols.evaluate`` is a nested cross-validation: in every outer fold the choice is made anew by
an inner cross-validation of that fold's training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from studies.evaluation import AnyProtocol, BesideBaselines, evaluate
from wattcast.training.evaluation.splits import FOLDS, Fit, Predict, Rows

Loss = Callable[[BesideBaselines], float]
"""What a choice makes least, of inner out-of-fold predictions."""


def mean_absolute_error(result: BesideBaselines) -> float:
    """Mean absolute error in watts over all assignments."""
    error = np.abs(result.predicted_watts - result.rows.watts)
    return float(np.nanmean(error))


def choose(
    rows: Rows,
    candidates: Mapping[str, Fit],
    protocol: AnyProtocol,
    *,
    seeds: Sequence[int] = (0,),
    folds: int = FOLDS,
    shots: int = 0,
    loss: Loss = mean_absolute_error,
    jobs: int = 1,
) -> dict[str, float]:
    """The loss of every candidate on folds within ``rows``, in the order given.

    Raises ValueError without candidates, or where the rows do not allow the protocol.
    """
    if not candidates:
        raise ValueError("there is nothing to choose from")
    return {
        name: loss(evaluate(rows, fit, protocol, seeds, folds=folds, shots=shots, jobs=jobs))
        for name, fit in candidates.items()
    }


def tuned(
    candidates: Mapping[str, Fit],
    protocol: AnyProtocol,
    *,
    seeds: Sequence[int] = (0,),
    folds: int = FOLDS,
    shots: int = 0,
    loss: Loss = mean_absolute_error,
    told: Callable[[str], None] = lambda name: None,
) -> Fit:
    """A model: the candidate with the least loss within its training rows (a tie: the first).

    ``told`` hears the name of every choice. Where the training rows are too few for the inner
    protocol, fitting raises ValueError.
    """

    def fit(train: Rows) -> Predict:
        losses = choose(
            train, candidates, protocol, seeds=seeds, folds=folds, shots=shots, loss=loss
        )
        name = min(losses, key=lambda each: losses[each])
        told(name)
        return candidates[name](train)

    return fit
