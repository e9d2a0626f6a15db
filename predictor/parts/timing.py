"""Time of one launch, by whichever model is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.registry import DEFAULT, get_time_model

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages import TimeModelChoice


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
