"""Several ways to correct a physical model by measured launches, one of them chosen by what it says
of kernels left out.

The simplest way comes first; a later one is taken where it errs clearly less. Scores, intervals and
the gate see the choice made anew inside each fold, so that choosing costs what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from wattcast.training.evaluation.rows import Floats, Indices, Rows
from wattcast.training.evaluation.splits import FOLDS, fold_assignment
from wattcast.training.retrain.gate import error_by_group, log_error
from wattcast.training.retrain.upload_folds import SEED, Plan

Fitted = TypeVar("Fitted")

MARGIN = 0.05
"""Share by which a way must err less than the simpler ones to be taken, as in
``wattcast.training.calibrate``: the best of several always looks a little better than it is."""


@dataclass(frozen=True)
class Ways(Generic[Fitted]):
    """Ways of fitting by name, the simplest first: training rows -> what ``predict`` then asks
    about others ``[m]``. ``few`` is taken where there are not two kernels to choose by."""

    rows: Rows
    fits: Mapping[str, Callable[[Indices], Fitted]]
    predict: Callable[[Fitted, Indices], Floats]
    few: str

    def fitted(self, train: Indices) -> tuple[str, Fitted]:
        """The way chosen on training rows, fitted on them."""
        name = self._choice(train)
        return name, self.fits[name](train)

    def out_of_fold(self, plan: Plan) -> Floats:
        """Predictions ``[protocols, n]``, the choice of each fold made on its training rows."""
        found = np.full((len(plan.protocols), len(self.rows)), np.nan)
        for fold in plan.folds:
            _, fitted = self.fitted(fold.train)
            found[fold.protocol, fold.test] = self.predict(fitted, fold.test)
        return found

    def _choice(self, train: Indices) -> str:
        rows = self.rows.take(train)
        kernels = len(np.unique(rows.groups))
        if kernels < 2:
            return self.few
        fold = fold_assignment(rows, "grouped", SEED, min(FOLDS, kernels))
        chosen, least = "", np.inf
        for name, fit in self.fits.items():
            predicted = np.empty(len(train))
            for number in np.unique(fold):
                test = fold == number
                predicted[test] = self.predict(fit(train[~test]), train[test])
            error = error_by_group(log_error(rows.watts, predicted), rows.groups).mean()
            if not chosen or error < (1 - MARGIN) * least:
                chosen, least = name, error
        return chosen
