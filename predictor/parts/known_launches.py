"""Time and power of a launch, corrected by the request's measured launches of the same kernel.

Each of those is predicted as the request itself is, under the board's own power limit, but for its
launch and clocks. Errors are those of that prediction; they tell which known launch is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.errors import AnalysisError, Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch
from wattcast.models.power import anchoring
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.known import KnownLaunch, corrected, launch_coordinates
from wattcast.predictor import parts
from wattcast.predictor.parts.sources import Source
from wattcast.predictor.parts.time_and_power import TimeAndPower, limited_time_and_power
from wattcast.predictor.parts.watts import Watts, predicted_watts

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages import KnownRequest
    from wattcast.predictor.messages.predict import PredictRequest


def corrected_by_known(
    predictor: Predictor,
    request: PredictRequest,
    source: Source,
    gpu: GpuProfile,
    found: TimePrediction,
) -> TimePrediction:
    """The prediction, corrected by the known launches whose time was measured."""
    launches = []
    for number, known in enumerate(request.known):
        if known.time_seconds is not None:
            with parts.about(f"known[{number}]"):
                predicted = _point(predictor, request, source, gpu, known).duration
                if predicted is None:
                    raise AnalysisError("its time cannot be predicted")
                place = launch_coordinates(known.launch.launch())
                seconds = predicted.estimate.value
                launches.append(KnownLaunch(seconds, known.time_seconds, place))
    if not launches:
        return found
    coordinates = launch_coordinates(request.launch.launch())
    estimate = corrected(found.estimate, coordinates, launches)
    correction = estimate.value - found.estimate.value
    return replace(found, estimate=estimate, parts={**found.parts, "known": correction})


def anchored_power(
    predictor: Predictor, request: PredictRequest, source: Source, gpu: GpuProfile, found: Watts
) -> Watts:
    """The prediction, corrected by the known launches whose power was measured."""
    estimate = found.estimate
    measured = [known for known in request.known if known.power_watts is not None]
    if estimate is None or not measured or estimate.value <= 0:
        return found
    predicted = []
    for number, known in enumerate(request.known):
        if known.power_watts is not None:
            with parts.about(f"known[{number}]"):
                watts = _point(predictor, request, source, gpu, known).power.estimate
                if watts is None or watts.value <= 0:
                    raise AnalysisError("its power cannot be predicted")
                predicted.append(watts.value)
    anchor = anchoring.anchored(
        predicted,
        np.array([known.power_watts for known in measured], dtype=np.float64),
        _places([known.launch.launch() for known in measured], predicted),
        _places([request.launch.launch()], [estimate.value]),
        [estimate.value],
    )
    assert found.card is not None
    width = anchoring.width_of(found.card.gpu, found.card.source)
    moved = anchoring.corrected(estimate, anchor, width)
    note = Diagnostic(
        "power_anchored",
        f"{len(measured)} measured launch{'es' if len(measured) > 1 else ''} of this kernel moved "
        f"the power from {estimate.value:.1f} to {moved.value:.1f} W",
    )
    return replace(found, estimate=moved, diagnostics=(*found.diagnostics, note))


def _places(launches: list[Launch], watts: list[float]) -> np.ndarray:
    blocks = [launch.blocks for launch in launches]
    return anchoring.launch_coordinates(blocks, [one.threads_per_block for one in launches], watts)


def _point(
    predictor: Predictor,
    request: PredictRequest,
    source: Source,
    gpu: GpuProfile,
    known: KnownRequest,
) -> TimeAndPower:
    """Of a known launch; its power at the measured time, where that is known."""
    clocks, _ = parts.clocks_of(known.clocks or request.clocks, gpu)
    asked = request.model_copy(update={"launch": known.launch})
    analysis = parts.analysed(predictor, asked, source, gpu, ptxas=True)
    board, seconds = request.board or "", known.time_seconds
    found = limited_time_and_power(predictor, request, analysis, gpu, clocks)
    if seconds is None or known.power_watts is None:
        return found
    power = predicted_watts(predictor, request.model, analysis, gpu, found.clocks, board, seconds)
    return replace(found, power=power)
