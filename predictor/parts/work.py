"""A prediction from measured work: no kernel to analyse, so there is less to tell."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from wattcast.features import errors, gpus
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import weaker
from wattcast.models.power import PHYSICAL
from wattcast.models.power.activities import work_activities
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.models.time import measured_work, work_model
from wattcast.models.time.calibration import TimeCard
from wattcast.predictor import parts
from wattcast.predictor.messages.predict import PredictAnswer
from wattcast.predictor.parts import power_models, stored, time_and_power, watts
from wattcast.predictor.parts.trust import trust

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.predict import PredictRequest, WorkRequest


class WorkTimeModels:
    """Time models from measured work, loaded when first asked for. Safe from any thread."""

    def __init__(self, home: Path) -> None:
        self._store = ArtifactStore((PACKAGED_ARTIFACTS, home / "artifacts"), kind=TimeCard)
        self._lock = threading.Lock()
        self._loaded: dict[str, work_model.WorkTimeModel] = {}

    def of(self, gpu_id: str) -> work_model.WorkTimeModel:
        """The model that answers for a GPU. Raises ModelError where none passes its checks."""
        with self._lock:
            if gpu_id not in self._loaded:
                self._loaded[gpu_id] = work_model.work_time_model(self._store, gpu_id)
            return self._loaded[gpu_id]


def predict_work(
    predictor: Predictor,
    request: PredictRequest,
    work: WorkRequest,
    gpu: gpus.GpuProfile,
    rows: list[Future[None]],
) -> PredictAnswer:
    """A prediction without a kernel, its occupancy and its registers; ``rows`` takes what
    tells that it is stored.

    Raises LaunchError for a launch the GPU refuses, ClockError, and ModelError where a boosted
    power model is asked for: those look at a kernel's code.
    """
    if request.model not in ("auto", "physical"):
        raise errors.ModelError(f"measured work needs model physical, not {request.model}")
    measured = measured_work.Work(request.launch.launch(), **work.model_dump())
    clocks, beside = parts.clocks_of(request.clocks, gpu)
    models = time_and_power.BoardModels.of(predictor, request, gpu)
    model, times = predictor.power.physical(gpu, models.board), predictor.work_time.of(gpu.id)

    def at(pair: ClockPair) -> time_and_power.TimeAndPower:
        duration = time_and_power.long_enough(times.predict(measured, gpu, pair), None, gpu)
        activities = work_activities(measured, gpu, pair, duration.estimate.value)
        found = model.of_activities(activities, pair)
        return time_and_power.TimeAndPower(
            pair,
            duration,
            watts.Watts(
                card=model.card,
                # No power has been measured beside measured work.
                estimate=replace(
                    found.estimate, basis=weaker(found.estimate.basis, "extrapolated")
                ),
                components=found.components,
                diagnostics=tuple(watts.physical_notes(model, found)),
            ),
        )

    point = models.within_limit(at, clocks, request.power_limit_watts)
    _, power, card = point.told()
    note = errors.Diagnostic(
        "power_from_work",
        "measured work holds no loads and stores, L2 hits, texture or tensor operations; they were "
        "taken as zero, so the true power is likely higher",
    )
    answer = PredictAnswer(
        **parts.NO_KERNEL,
        id=uuid4(),
        **point.members(gpu),
        features=work.model_dump(exclude={"runtime"}),
        schema=measured_work.SCHEMA_ID,
        trust=trust(power.basis, card),
        warnings=parts.plain_warnings(
            (note,),
            point.power.diagnostics,
            predictor.power.stands_in(power_models.TARGET, gpu.id, models.board, PHYSICAL),
            beside,
        ),
    )
    if request.explain is not None:
        from wattcast.predictor.explain import shap_of

        answer = answer.model_copy(update={"explanation": shap_of(answer)})
    if predictor.store is not None:
        body = request.model_dump_json(exclude_defaults=True)
        rows.append(predictor.store.add(stored.PredictionRecord.of(answer, "", body, {})))
    return answer
