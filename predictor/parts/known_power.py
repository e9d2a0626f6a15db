"""Power of a launch, corrected by the request's measured launches of the same kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import AnalysisError, WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch
from wattcast.models.power.anchoring import anchored, corrected, launch_coordinates
from wattcast.predictor import parts
from wattcast.predictor.messages import KnownRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.clocks import clocks_of
from wattcast.predictor.parts.sources import Source
from wattcast.predictor.parts.timing import timed
from wattcast.predictor.parts.watts import Watts, predicted_watts

if TYPE_CHECKING:
    from wattcast.predictor import Predictor


def anchored_power(
    predictor: Predictor, request: PredictRequest, source: Source, gpu: GpuProfile, found: Watts
) -> Watts:
    """The prediction, corrected by the known launches whose power was measured.

    Each is predicted as the request itself is, but for its launch and clocks. Raises as the
    prediction of the request does; the error tells which known launch is refused.
    """
    estimate = found.estimate
    measured = [known for known in request.known if known.power_watts is not None]
    if estimate is None or not measured or estimate.value <= 0:
        return found
    predicted = [
        _predicted(predictor, request, source, gpu, known, number)
        for number, known in enumerate(request.known)
        if known.power_watts is not None
    ]
    anchor = anchored(
        predicted,
        np.array([known.power_watts for known in measured], dtype=np.float64),
        _places([known.launch.launch() for known in measured], predicted),
        _places([request.launch.launch()], [estimate.value]),
        [estimate.value],
    )
    moved = corrected(estimate, anchor)
    note = Diagnostic(
        "power_anchored",
        f"{len(measured)} measured launch{'es' if len(measured) > 1 else ''} of this kernel moved "
        f"the power from {estimate.value:.1f} to {moved.value:.1f} W",
    )
    return replace(found, estimate=moved, diagnostics=(*found.diagnostics, note))


def _places(launches: list[Launch], watts: list[float]) -> np.ndarray:
    blocks = [launch.blocks for launch in launches]
    return launch_coordinates(blocks, [one.threads_per_block for one in launches], watts)


def _predicted(
    predictor: Predictor,
    request: PredictRequest,
    source: Source,
    gpu: GpuProfile,
    known: KnownRequest,
    number: int,
) -> float:
    try:
        clocks, _ = clocks_of(known.clocks or request.clocks, gpu)
        asked = request.model_copy(update={"launch": known.launch})
        analysis = parts.analysed(predictor, asked, source, gpu, ptxas=True)
        board, seconds = request.board or "", known.time_seconds
        if seconds is None:
            duration, _ = timed(predictor, request.time_model, analysis, gpu, clocks, board)
            seconds = duration.estimate.value if duration is not None else None
        found = predicted_watts(predictor, request.model, analysis, gpu, clocks, board, seconds)
        if found.estimate is None or found.estimate.value <= 0:
            raise AnalysisError("its power cannot be predicted")
        return found.estimate.value
    except WattcastError as error:
        error.detail = f"known[{number}]: {error.detail}"
        error.args = (error.detail,)
        raise
