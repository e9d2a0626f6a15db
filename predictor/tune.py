"""Which configuration of a tuning space to measure next, and when to stop.

Configurations are predicted first, all or those that matter; what is measured then corrects the
predictions of the rest (``models/search.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np

from wattcast.features.errors import DataError
from wattcast.models.processes import CLOCKS, LEARNED_FROM, Floats, emulated
from wattcast.models.search import GAIN, Search, coded
from wattcast.predictor.forecasts import Forecast
from wattcast.predictor.messages.tunings import Candidate, Standing
from wattcast.predictor.rank import SETTINGS
from wattcast.predictor.tuning_files import Value

FIRST = 200
"""Configurations that are predicted before any is chosen by what they tell: above 10 for each of
the 14 parameters of the largest public space (Loeppky, Sacks, Welch 2009, for such processes)."""

PREDICTIONS = 500
"""Most predictions before the first measurement: some ten minutes of two cores."""

AT_ONCE = 25
"""Predicted between two looks at what to predict next."""

BESIDE = 3
"""Predicted beside a proposal that was not yet: those that may be proposed next."""

ROUNDS = 3
"""Most looks before a proposal is taken as it is."""

ON_DEMAND = 200
"""Most predictions made for proposals in all; later ones are taken as they are told."""

Objective = Literal["time", "energy", "edp"]
"""Seconds, joules, or joules times seconds."""

Unit = Literal["s", "J", "Js"]
OBJECTIVES: Mapping[
    Objective, tuple[Unit, Callable[[float | None, float | None], float | None]]
] = {
    "time": ("s", lambda seconds, joules: seconds),
    "energy": ("J", lambda seconds, joules: joules),
    "edp": (
        "Js",
        lambda seconds, joules: None if seconds is None or joules is None else seconds * joules,
    ),
}
"""Unit of each objective, and what it is of a time and an energy."""


class Tuning:
    """A search over the configurations of a space.

    ``rows`` were predicted; ``unpredicted`` are the rest of the space, of which ``predict`` makes a
    forecast. What they would be predicted as is told from those that were; ``study`` and
    ``propose`` have those predicted that matter. ``most_seconds`` bounds the time where energy is
    the objective. Raises DataError where nothing can be predicted.
    """

    def __init__(
        self,
        rows: Iterable[Forecast] = (),
        objective: Objective = "energy",
        most_seconds: float | None = None,
        unpredicted: Iterable[Mapping[str, Value]] = (),
        predict: Callable[[Sequence[Mapping[str, Value]]], Iterable[Forecast]] | None = None,
    ) -> None:
        self.objective = objective
        self.unit, self._value = OBJECTIVES[objective]
        self.most_seconds = most_seconds
        self._predict = predict
        self._known = {key_of(row.parameters): row for row in rows}
        self._open = {
            key: parameters
            for parameters in unpredicted
            if (key := key_of(parameters)) not in self._known
        }
        self._told: list[tuple[Key, float | None, float | None]] = []
        self._made: Search | None = None
        self._demanded = 0
        if not self._open:
            self._some()

    @property
    def refused(self) -> list[Forecast]:
        """Configurations that cannot be predicted."""
        return [row for row in self._known.values() if row.problem is not None]

    @property
    def rows(self) -> list[Forecast]:
        """Configurations that were predicted, in the order of ``search``, which they begin."""
        return [row for row in self._known.values() if row.problem is None]

    @property
    def search(self) -> Search:
        """The search as it stands: those predicted, then, once enough are, the rest.
        Raises DataError where nothing is predicted."""
        if self._made is None:
            self._made = self._search()
        return self._made

    def to_predict(self, count: int) -> list[Mapping[str, Value]]:
        """Which to predict next: ``FIRST`` spread over the space, then those that can be expected
        to gain most."""
        if not self._open or count < 1:
            return []
        spread = max(FIRST - len(self._known), LEARNED_FROM - len(self.rows))
        if spread > 0:
            spread_out = sorted(
                self._open, key=lambda key: hashlib.sha256(repr(key).encode()).digest()
            )
            return [self._open[key] for key in spread_out[: min(count, spread)]]
        gain = self.search.promise()[len(self.rows) :]
        best = np.argsort(-gain, kind="stable")[:count]
        opened = list(self._open.values())
        return [opened[place] for place in best.tolist() if gain[place] > 0]

    def add(self, row: Forecast) -> None:
        """One more was predicted. Raises DataError for one that the space lacks."""
        key = key_of(row.parameters)
        if key not in self._known and self._open.pop(key, None) is None:
            raise DataError(f"the space has no configuration {dict(row.parameters)}")
        self._known[key] = row
        self._made = None

    def study(self, most: int = PREDICTIONS, gain: float = GAIN) -> None:
        """Has up to ``most`` configurations predicted: all where they are no more, else those that
        matter; fewer where no other can be expected to gain ``gain`` of the best."""
        if len(self._known) + len(self._open) <= most:
            self._have(list(self._open.values()))
        while (left := most - len(self._known)) > 0 and self._open:
            if len(self._known) >= FIRST and self.search.promise()[len(self.rows) :].max() < gain:
                break
            if not self._have(self.to_predict(min(left, AT_ONCE if self.rows else FIRST))):
                break
        self._some()

    def _have(self, wanted: Sequence[Mapping[str, Value]]) -> bool:
        if self._predict is None or not wanted:
            return False
        for row in self._predict(wanted):
            self.add(row)
        return True

    def _some(self) -> None:
        if not self.rows:
            why = f": {self.refused[0].problem}" if self.refused else ""
            raise DataError(f"none of {len(self._known)} configurations can be predicted{why}")

    def _search(self) -> Search:
        self._some()
        rows = self.rows
        told = len(rows) >= LEARNED_FROM
        opened = list(self._open.values()) if told else []
        every = [row.parameters for row in rows] + opened
        names = list(rows[0].parameters)
        varied = [name for name in names if len({each[name] for each in every}) > 1]
        clocks = CLOCKS if varied and SETTINGS.keys() >= set(varied) else None
        names = varied if clocks else names
        columns = coded([[parameters[name] for name in names] for parameters in every])
        seconds = np.array([row.seconds for row in rows])
        joules = np.array([row.joules for row in rows])
        aim = {"time": seconds, "energy": joules, "edp": seconds * joules}[self.objective]

        def whole(known: Floats) -> tuple[Floats, Floats | None]:
            if not opened:
                return known, None
            return emulated(columns, dict(enumerate(known.tolist())))

        predicted, doubt = whole(aim)
        if self.most_seconds is None:
            made = Search(columns, predicted, doubt=doubt, clocks=clocks)
        else:
            bounded, bounded_doubt = whole(seconds)
            made = Search(
                columns, predicted, bounded, self.most_seconds,
                doubt=doubt, bounded_doubt=bounded_doubt, clocks=clocks,
            )  # fmt: skip
        self._places = {key_of(parameters): place for place, parameters in enumerate(every)}
        self._every = every
        for key, took, used in self._told:
            if key in self._places:
                self._tell(made, key, took, used)
        return made

    def tell(
        self, parameters: Mapping[str, Value], seconds: float | None, joules: float | None = None
    ) -> None:
        """A measurement; without any quantity, a run that failed. Raises DataError for a
        configuration that the space lacks, or that lacks a quantity the objective needs."""
        key = key_of(parameters)
        if key not in self._known and key not in self._open:
            raise DataError(f"the space has no configuration {dict(parameters)}")
        failed = seconds is None and joules is None
        if not failed and self._value(seconds, joules) is None:
            raise DataError(f"{self.objective} of {dict(parameters)} was not measured")
        if key in self._open:
            self._have([self._open[key]])
        if self._known.get(key) is not None and self._known[key].problem is not None:
            return  # it may run, and still nothing can be predicted of it
        search = self.search
        if key in self._places:
            self._tell(search, key, seconds, joules)
        self._told.append((key, seconds, joules))

    def _tell(self, search: Search, key: Key, seconds: float | None, joules: float | None) -> None:
        place = self._places[key]
        value = self._value(seconds, joules)
        search.tell(place, value, seconds if self.most_seconds is not None else None)

    def place(self, parameters: Mapping[str, Value]) -> int | None:
        """Number of a configuration in ``search``, if it is one of it."""
        _ = self.search
        return self._places.get(key_of(parameters))

    def propose(self, count: int = 1) -> list[Mapping[str, Value]]:
        """Configurations to measure next; where ``predict`` was given, they are predicted first
        while ``ON_DEMAND`` lasts."""
        for _ in range(ROUNDS):
            known = len(self.rows)
            places = self.search.propose(count)
            if all(place < known for place in places) or self._predict is None:
                break
            if self._demanded >= ON_DEMAND:
                break
            wanted = [self._every[place] for place in places if place >= known]
            more = [each for each in self.to_predict(BESIDE) if each not in wanted]
            self._have([*wanted, *more])
            self._demanded += len(wanted) + len(more)
        return [self._every[place] for place in self.search.propose(count)]

    def finished(self, gain: float = GAIN) -> bool:
        """Whether one more measurement is expected to gain less than ``gain`` of the best."""
        return self.search.finished(gain)

    def answer(self, count: int = 5, gain: float = GAIN) -> Standing:
        """Where the search stands: the best that was measured, what comes next with what is
        expected of it (median and 90 % interval), and whether one more is worth it."""
        proposed = [self.place(each) for each in self.propose(count)]
        outlook = self.search.outlook()
        best = self.search.best()
        known = len(self.rows)

        def row(place: int) -> Candidate:
            return Candidate(
                configuration=dict(self._every[place]),
                predicted=float(self.search.predicted[place]),
                emulated=place >= known,
                expected=float(outlook.value[place]),
                low=float(outlook.low[place]),
                high=float(outlook.high[place]),
                gain=float(outlook.gain[place]),
                measured=self.search.measured.get(place, []),
            )

        return Standing(
            objective=self.objective,
            unit=self.unit,
            configurations=known + len(self._open),
            predicted=known,
            refused=[asdict(each) for each in self.refused],
            measured=len(self.search.measured),
            failed=len(self.search.failed),
            best=None if best is None else row(best),
            next=[row(place) for place in proposed if place is not None],
            finished=self.finished(gain),
        )


Key = tuple[tuple[str, str], ...]


def key_of(parameters: Mapping[str, Value]) -> Key:
    """What tells configurations apart: files write 32 and 32.0, true and 1 for the same value."""
    return tuple(
        sorted(
            (name, value if isinstance(value, str) else repr(float(value)))
            for name, value in parameters.items()
        )
    )
