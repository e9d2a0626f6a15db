"""Time of one launch, by whichever model is asked for, corrected by measured launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import AnalysisError, WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.known import KnownLaunch, corrected, launch_coordinates
from wattcast.models.time.registry import DEFAULT, get_time_model
from wattcast.predictor import parts
from wattcast.predictor.messages import KnownRequest, TimeModelChoice
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.clocks import clocks_of
from wattcast.predictor.parts.sources import Source

if TYPE_CHECKING:
    from wattcast.predictor import Predictor


def timed(
    predictor: Predictor,
    choice: TimeModelChoice,
    analysis: KernelAnalysis,
    gpu: GpuProfile,
    clocks: ClockPair,
    board: str = "",
) -> tuple[TimePrediction | None, Sequence[Diagnostic]]:
    """Time of a launch by the model chosen, and what to warn of.

    ``auto`` is the default model, corrected where a correction of the board, or of the GPU, was
    promoted; a model that is named answers as it is. Raises ModelError where that model cannot
    answer for the GPU.
    """
    model = get_time_model(DEFAULT if choice == "auto" else choice)
    try:
        found = model.predict(analysis, gpu, clocks)
    except AnalysisError as error:
        return None, (Diagnostic("no_time_model", error.detail),)
    correction = predictor.power.times(gpu.id, board) if choice == "auto" else None
    if correction is not None:
        found = correction.corrected(found, gpu)
    notes = predictor.power.stands_in("time", gpu.id, board, choice)
    return found, (*found.diagnostics, *notes)


def corrected_by_known(
    predictor: Predictor,
    request: PredictRequest,
    source: Source,
    gpu: GpuProfile,
    found: TimePrediction | None,
) -> TimePrediction | None:
    """The prediction, corrected by the request's known launches.

    Each is predicted as the request itself is, but for its launch and clocks. Raises as the
    prediction of the request does; the error tells which known launch is refused.
    """
    if found is None:
        return found
    launches = []
    for number, known in enumerate(request.known):
        if known.time_seconds is None:
            continue
        try:
            launches.append(_known(predictor, request, source, gpu, known, known.time_seconds))
        except WattcastError as error:
            error.detail = f"known[{number}]: {error.detail}"
            error.args = (error.detail,)
            raise
    if not launches:
        return found
    coordinates = launch_coordinates(request.launch.launch())
    estimate = corrected(found.estimate, coordinates, launches)
    correction = estimate.value - found.estimate.value
    return replace(found, estimate=estimate, parts={**found.parts, "known": correction})


def _known(
    predictor: Predictor,
    request: PredictRequest,
    source: Source,
    gpu: GpuProfile,
    known: KnownRequest,
    seconds: float,
) -> KnownLaunch:
    clocks, _ = clocks_of(known.clocks or request.clocks, gpu)
    asked = request.model_copy(update={"launch": known.launch})
    analysis = parts.analysed(predictor, asked, source, gpu, ptxas=True)
    predicted, _ = timed(predictor, request.time_model, analysis, gpu, clocks, request.board or "")
    if predicted is None:
        raise AnalysisError("its time cannot be predicted")
    return KnownLaunch(predicted.estimate.value, seconds, launch_coordinates(known.launch.launch()))
