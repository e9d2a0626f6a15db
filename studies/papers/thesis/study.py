"""The study as a whole: its rows, and what more than one part of it needs, made once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pandas as pd

from studies.papers.thesis.data import Effort, Judged, study_tables
from studies.papers.thesis.regressors import REGRESSORS, judge_linear, judge_regressors

K20 = "tesla-k20"
"""The GPU on which the thesis engineers features and looks at outliers and dwarfs."""


class Study:
    """The thesis' rows and the models on them. Raises DataError for missing or defective data.

    ``models`` are those of the eight to judge where a part judges all.
    """

    def __init__(
        self,
        effort: Effort,
        models: tuple[str, ...] = tuple(REGRESSORS),
        root: Path | None = None,
    ) -> None:
        self.effort, self.models, self.root = effort, models, root

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """GPU -> its cleaned rows."""
        return study_tables(root=self.root)

    @property
    def k20(self) -> pd.DataFrame:
        """Rows of Tesla K20."""
        return self.tables[K20]

    @cached_property
    def regressors(self) -> dict[str, dict[str, Judged]]:
        """GPU -> model -> predictions (Table 5.8)."""
        return judge_regressors(self.tables, self.effort, self.models)

    @cached_property
    def linear(self) -> dict[str, Judged]:
        """GPU -> multi-linear regression."""
        return judge_linear(self.tables, self.effort)
