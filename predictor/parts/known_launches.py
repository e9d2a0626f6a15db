"""Time and power of a launch, corrected by the request's measured launches of the same kernel.

Each of those is predicted as the request itself is, under the board's own power limit, but for its
launch and clocks. Errors are those of that prediction; they tell which known launch is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import log
from typing import NamedTuple

import numpy as np

from wattcast.features.errors import AnalysisError, Diagnostic
from wattcast.features.launch import Launch
from wattcast.models.power import anchoring
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.known import KnownLaunch, corrected
from wattcast.predictor import Predictor, messages, parts
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts import sources, time_and_power
from wattcast.predictor.parts.watts import Watts


class KnownLaunches(NamedTuple):
    """A request with measured launches, and the models that answer it."""

    predictor: Predictor
    request: PredictRequest
    source: sources.Source
    models: time_and_power.BoardModels

    def time(self, found: TimePrediction) -> TimePrediction:
        """The prediction, corrected by the known launches whose time was measured."""
        launches = [
            KnownLaunch(seconds, known.time_seconds, log(known.launch.launch().threads))
            for known, seconds in self._predicted("time")
            if known.time_seconds is not None
        ]
        if not launches:
            return found
        log_threads = log(self.request.launch.launch().threads)
        estimate = corrected(found.estimate, log_threads, launches)
        correction = estimate.value - found.estimate.value
        return replace(found, estimate=estimate, parts={**found.parts, "known": correction})

    def power(self, found: Watts) -> Watts:
        """The prediction, corrected by the known launches whose power was measured."""
        estimate = found.estimate
        if estimate is None or found.card is None or estimate.value <= 0:
            return found
        told = list(self._predicted("power"))
        if not told:
            return found
        predicted = [watts for _, watts in told]
        anchor = anchoring.anchored(
            predicted,
            np.array([known.power_watts for known, _ in told], dtype=np.float64),
            _places([known.launch.launch() for known, _ in told], predicted),
            _places([self.request.launch.launch()], [estimate.value]),
            [estimate.value],
        )
        width = anchoring.width_of(found.card.gpu, found.card.source)
        moved = anchoring.corrected(estimate, anchor, width)
        note = Diagnostic(
            "power_anchored",
            f"{len(told)} measured launch{'es' if len(told) > 1 else ''} of this kernel moved "
            f"the power from {estimate.value:.1f} to {moved.value:.1f} W",
        )
        return replace(found, estimate=moved, diagnostics=(*found.diagnostics, note))

    def _predicted(self, quantity: str) -> Iterator[tuple[messages.KnownRequest, float]]:
        """Launches whose ``time`` or ``power`` was measured, and what is predicted of them."""
        for number, known in enumerate(self.request.known):
            if (known.time_seconds if quantity == "time" else known.power_watts) is None:
                continue
            with parts.about(f"known[{number}]"):
                point = self._point(known)
                value = point.watts if quantity == "power" else point.seconds
                if value is None or (quantity == "power" and value <= 0):
                    raise AnalysisError(f"its {quantity} cannot be predicted")
            yield known, value

    def _point(self, known: messages.KnownRequest) -> time_and_power.TimeAndPower:
        """Of a known launch; its power at the measured time, where that is known."""
        request, gpu = self.request, self.models.gpu
        clocks, _ = parts.clocks_of(known.clocks or request.clocks, gpu)
        asked = request.model_copy(update={"launch": known.launch.beside(request.launch)})
        analysis = parts.analysed(self.predictor, asked, self.source, gpu, ptxas=True)
        found = self.models.limited(analysis, clocks)
        if known.time_seconds is None or known.power_watts is None:
            return found
        power = self.models.watts(analysis, [found.clocks], [known.time_seconds])
        return replace(found, power=next(power))


def _places(launches: list[Launch], watts: list[float]) -> np.ndarray:
    blocks = [launch.blocks for launch in launches]
    return anchoring.launch_coordinates(blocks, [one.threads_per_block for one in launches], watts)
