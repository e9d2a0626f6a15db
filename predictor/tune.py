"""Which configuration of a tuning space to measure next, and when to stop.

Every configuration is predicted first; what is measured then corrects the predictions of the rest
(``models/search.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from wattcast.features.errors import DataError
from wattcast.models.search import GAIN, Search, coded
from wattcast.predictor.forecasts import Forecast
from wattcast.predictor.tuning_files import Value

Objective = Literal["time", "energy", "edp"]
"""Seconds, joules, or joules times seconds."""

OBJECTIVES: Mapping[Objective, tuple[str, Callable[[float | None, float | None], float | None]]] = {
    "time": ("s", lambda seconds, joules: seconds),
    "energy": ("J", lambda seconds, joules: joules),
    "edp": (
        "Js",
        lambda seconds, joules: None if seconds is None or joules is None else seconds * joules,
    ),
}
"""Unit of each objective, and what it is of a time and an energy."""


class Tuning:
    """A search over configurations that were predicted.

    ``most_seconds`` bounds the time where energy is the objective. Raises DataError where nothing
    can be predicted.
    """

    def __init__(
        self,
        rows: Iterable[Forecast],
        objective: Objective = "energy",
        most_seconds: float | None = None,
    ) -> None:
        every = list(rows)
        self.refused = [row for row in every if row.problem is not None]
        self.rows = [row for row in every if row.problem is None]
        if not self.rows:
            why = f": {self.refused[0].problem}" if self.refused else ""
            raise DataError(f"none of {len(every)} configurations can be predicted{why}")
        self.objective = objective
        self.unit, self._value = OBJECTIVES[objective]
        self.most_seconds = most_seconds
        names = list(self.rows[0].parameters)
        values = [[row.parameters[name] for name in names] for row in self.rows]
        seconds = np.array([row.seconds for row in self.rows])
        joules = np.array([row.joules for row in self.rows])
        aim = {"time": seconds, "energy": joules, "edp": seconds * joules}[objective]
        self.search = (
            Search(coded(values), aim)
            if most_seconds is None
            else Search(coded(values), aim, seconds, most_seconds)
        )
        self._places = {_key(row.parameters): number for number, row in enumerate(self.rows)}

    def tell(
        self, parameters: Mapping[str, Value], seconds: float | None, joules: float | None = None
    ) -> None:
        """A measurement; without any quantity, a run that failed. Raises DataError for a
        configuration that the space lacks, or that lacks a quantity the objective needs."""
        place = self._places.get(_key(parameters))
        if place is None:
            if any(_key(row.parameters) == _key(parameters) for row in self.refused):
                return  # it runs, and still nothing can be predicted of it
            raise DataError(f"the space has no configuration {dict(parameters)}")
        if seconds is None and joules is None:
            self.search.tell(place, None)
            return
        value = self._value(seconds, joules)
        if value is None:
            raise DataError(f"{self.objective} of {dict(parameters)} was not measured")
        self.search.tell(place, value, seconds if self.most_seconds is not None else None)

    def place(self, parameters: Mapping[str, Value]) -> int | None:
        """Number of a configuration among those predicted, if it is one of them."""
        return self._places.get(_key(parameters))

    def propose(self, count: int = 1) -> list[Mapping[str, Value]]:
        """Configurations to measure next."""
        return [self.rows[place].parameters for place in self.search.propose(count)]

    def answer(self, count: int = 5, gain: float = GAIN) -> dict[str, Any]:
        """Where the search stands: the best that was measured, what comes next with what is
        expected of it (median and 90 % interval), and whether one more is worth it."""
        outlook = self.search.outlook()
        best = self.search.best()

        def row(place: int) -> dict[str, Any]:
            return {
                "configuration": dict(self.rows[place].parameters),
                "predicted": float(self.search.predicted[place]),
                "expected": float(outlook.value[place]),
                "low": float(outlook.low[place]),
                "high": float(outlook.high[place]),
                "gain": float(outlook.gain[place]),
                "measured": self.search.measured.get(place, []),
            }

        return {
            "objective": self.objective,
            "unit": self.unit,
            "configurations": len(self.rows),
            "refused": [asdict(each) for each in self.refused],
            "measured": len(self.search.measured),
            "failed": len(self.search.failed),
            "best": None if best is None else row(best),
            "next": [row(place) for place in self.search.propose(count)],
            "finished": self.search.finished(gain),
        }


def _key(parameters: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    # Files write 32 and 32.0, true and 1 for the same value.
    return tuple(
        sorted(
            (name, value if isinstance(value, str) else repr(float(value)))
            for name, value in parameters.items()
        )
    )
