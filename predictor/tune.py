"""Which configuration of a tuning space to measure next, and when to stop.

Every configuration is predicted first; what is measured then corrects the predictions of the rest
(``models/search.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wattcast.features.cuda import CompileError
from wattcast.features.errors import DataError, LaunchError, PtxError
from wattcast.models.search import GAIN, Search, coded
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.rank import TuningProblem, request_of
from wattcast.predictor.tuning_files import Configuration, Value

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

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


@dataclass(frozen=True, slots=True)
class Forecast:
    """A configuration as predicted, or the reason why it cannot be."""

    parameters: Mapping[str, Value]
    seconds: float = 0.0
    joules: float = 0.0
    problem: str | None = None


def forecasts(
    predictor: Predictor,
    problem: TuningProblem,
    configurations: Sequence[Configuration],
    kept: Path | None = None,
) -> Iterator[Forecast]:
    """Every configuration as predicted, in order. ``kept`` is a file that remembers them: a run
    that was interrupted goes on where it stopped. Nothing of it is used where its first prediction
    is not the one that is made today. Raises DataError where the problem does not fit."""
    known = _known(kept) if kept is not None else {}
    for number, one in enumerate(configurations):
        request = request_of(problem, one)
        key = hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()
        found = known.get(key)
        if found is None or number == 0:
            fresh = _forecast(predictor, one, request)
            if found is not None and found != fresh:
                known, found = {}, None
            if kept is not None and found is None:
                _keep(kept, key, fresh, new=number == 0 and not known)
            found = fresh
        yield found


def _forecast(predictor: Predictor, one: Configuration, request: Mapping[str, Any]) -> Forecast:
    parameters = dict(one.parameters)
    try:
        answer = predict(predictor, PredictRequest.model_validate(request))
        if answer["energy"] is None:
            raise LaunchError("no model tells its energy", field="gpu")
    except (CompileError, PtxError, LaunchError) as error:
        return Forecast(parameters, problem=error.detail)
    return Forecast(parameters, answer["time"]["seconds"], answer["energy"]["joules"])


def _known(file: Path) -> dict[str, Forecast]:
    """What a file remembers; a last line that was cut short is ended, so that more can follow."""
    found: dict[str, Forecast] = {}
    if file.is_file():
        text = file.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            with file.open("a", encoding="utf-8") as out:
                out.write("\n")
        for line in text.splitlines():
            try:
                row = json.loads(line)
                key = row.pop("key")
                found[key] = Forecast(**row)
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut short when the run was interrupted
    return found


def _keep(file: Path, key: str, row: Forecast, *, new: bool) -> None:
    with file.open("w" if new else "a", encoding="utf-8") as out:
        out.write(json.dumps({"key": key, **asdict(row)}) + "\n")


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
