"""A prediction: PTX and launch in; watts, seconds and joules with intervals out.

read PTX -> analyse per GPU -> time, power over the registers' range -> energy -> store
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

from app.messages import PredictRequest
from app.problems import ServiceError
from app.services import parts
from app.services.power import reference_of
from app.services.sources import Source
from app.store.predictions import PredictionRecord
from features.analysis import ASSUMED_TRIP_RANGE, KernelAnalysis
from features.diagnostics import Diagnostic
from features.errors import LaunchError, ModelError, SchemaError
from features.gpus import GpuProfile
from features.occupancy import occupancy
from features.schemas import FeatureVector
from models.estimate import Estimate, energy
from models.power.boosted import BoostedPowerModel
from models.time.scheduling import SchedulingTimeModel, TimeResult, work_of

if TYPE_CHECKING:
    from app.services import Services

FALLBACK_SCHEMA = "alavani2023"
"""Schema whose vector is answered for a GPU without a power model, where it has a table."""

QUICK_SECONDS = 0.004
"""A prediction below this runs on the event loop: others wait no longer than for a big answer."""

_TIME_MODEL = SchedulingTimeModel()


def predict(services: Services, request: PredictRequest) -> dict[str, Any]:
    """``PredictAnswer`` for one GPU, ``PredictAnswers`` for several; stored if there is a store.

    Raises PtxError, CompileError, CompilerMissingError, KernelError, LaunchError, GpuError or
    ModelError for what the request brings, ServiceError for limits and StoreError when the
    prediction cannot be kept.
    """
    names = [request.gpu] if request.gpu is not None else list(request.gpus or ())
    if len(names) > services.settings.max_gpus:
        raise ServiceError(
            "validation",
            f"gpus: {len(names)} named; at most {services.settings.max_gpus} are taken",
            field="gpus",
        )
    gpus = [services.gpus.load(name) for name in names]
    answers = [_predict_one(services, request, gpu) for gpu in gpus]
    return answers[0] if request.gpu is not None else {"predictions": answers}


def is_quick(services: Services, request: PredictRequest) -> bool:
    """Whether a prediction like this one took so little time that a thread costs more.

    Such a prediction runs on the event loop itself; everything else goes to a thread, above all
    what may be compiled or executed.
    """
    if request.ptx is None or request.gpu is None or request.explain is not None:
        return False
    if request.analysis == "executed" or request.launch.arguments:
        return False
    known = services.modules.known(request.ptx)
    return known is not None and known.fastest(_kind(request, request.gpu)) < QUICK_SECONDS


def _kind(request: PredictRequest, gpu: str) -> Hashable:
    """Predictions that cost alike: loops without trip counts are worked out, and registers are
    asked of the compiler once for a GPU."""
    loops = len(request.loops), "default" in request.loops
    return request.kernel, gpu, request.analysis, loops, request.registers_per_thread is None


def _predict_one(services: Services, request: PredictRequest, gpu: GpuProfile) -> dict[str, Any]:
    source = services.sources.read(request, gpu)
    start = time.perf_counter()
    analysis = parts.analysed(services, request, source, gpu, ptxas=True)
    duration, timed = _time(analysis, gpu)
    power = _Power.of(services, request, analysis, gpu)
    both = energy(power.estimate, duration.estimate) if power.estimate and duration else None
    prediction_id = uuid4()
    answer: dict[str, Any] = {
        "id": str(prediction_id),
        "gpu": gpu.id,
        "kernel": parts.kernel_name(analysis),
        "compiled": parts.compiled(source),
        "power": parts.estimate(power.estimate, "watts") if power.estimate else None,
        "time": parts.estimate(duration.estimate, "seconds") if duration else None,
        "energy": parts.estimate(both, "joules") if both else None,
        "model": reference_of(power.model.card) if power.model else None,
        "time_model": _time_model(duration),
        "schema": power.vector.schema_id if power.vector else None,
        "features": dict(power.vector.values) if power.vector else {},
        **parts.facts(analysis),
        "warnings": parts.warnings(
            source,
            analysis,
            power.vector.diagnostics if power.vector else (),
            power.diagnostics,
            timed,
        ),
    }
    if request.explain is not None and power.model and power.vector and power.estimate:
        from app.services.explanation import shap_of

        answer["explanation"] = shap_of(power.model, power.vector.model_inputs())
    if services.store is not None:
        services.store.add(_record(prediction_id, answer, request, source, power.vector))
    source.known.took(_kind(request, request.gpu or gpu.id), time.perf_counter() - start)
    return answer


class _Power:
    """Power of one launch: its model, vector and estimate, each ``None`` where there is none."""

    def __init__(
        self,
        model: BoostedPowerModel | None,
        vector: FeatureVector | None,
        estimate: Estimate | None,
        *diagnostics: Diagnostic,
    ) -> None:
        self.model = model
        self.vector = vector
        self.estimate = estimate
        self.diagnostics = diagnostics

    @classmethod
    def of(
        cls,
        services: Services,
        request: PredictRequest,
        analysis: KernelAnalysis,
        gpu: GpuProfile,
    ) -> _Power:
        """Predict the power, carrying uncertain registers and trip counts into the interval."""
        model = services.power.choose(gpu.id, request.model)
        if model is None:
            why = Diagnostic(
                "no_power_model", f"there is no power model for {gpu.id}; power and energy are null"
            )
            try:
                return cls(None, analysis.vector(FALLBACK_SCHEMA), None, why)
            except SchemaError as error:
                return cls(None, None, None, why, Diagnostic("no_features", error.detail))
        schema = model.card.feature_schema.id
        vector = analysis.vector(schema)
        inputs = vector.model_inputs()
        others = alternatives(analysis, vector)
        try:
            estimate = model.estimate(inputs, others if len(others) else None)
        except ModelError as error:
            # The kernel lacks something every training kernel had (a NaN feature, say).
            return cls(model, vector, None, Diagnostic("power_not_predicted", error.detail))
        if estimate.basis != "extrapolated":
            return cls(model, vector, estimate)
        outside = model.outside_training_range(inputs.reshape(1, -1))[0]
        detail = f"beyond what the model was trained on: {', '.join(outside)}"
        return cls(model, vector, estimate, Diagnostic("outside_training_range", detail))


def alternatives(analysis: KernelAnalysis, vector: FeatureVector) -> list[NDArray[np.float32]]:
    """Model inputs of the other ends of what is uncertain: registers, assumed trip counts."""
    registers = analysis.registers
    cases: list[FeatureVector] = []
    for count in {registers.low, registers.high} - {registers.registers_per_thread}:
        try:
            if "reg_thread" in vector.values:
                cases.append(with_registers(analysis, vector, count))
            else:
                cases.append(analysis.vector(vector.schema_id, registers_per_thread=count))
        except LaunchError:
            continue  # so many registers could not be launched: they are not the truth
    if analysis.trips_assumed:
        cases += [
            analysis.vector(vector.schema_id, assumed_trips=trips) for trips in ASSUMED_TRIP_RANGE
        ]
    return [case.model_inputs() for case in cases]


def with_registers(analysis: KernelAnalysis, vector: FeatureVector, count: int) -> FeatureVector:
    """The vector for another register count; equal to ``analysis.vector`` for it, and faster.

    In every published schema only these two fields look at registers (spec/features.md,
    section 5, item 13 of section 6); a test compares the two ways. Raises LaunchError.
    """
    resident = occupancy(analysis.gpu, analysis.launch, count, analysis.static_shared_bytes)
    changed = {"reg_thread": float(count), "occupancy": resident.occupancy}
    values = {
        name: changed[name] if name in changed and value == value else value
        for name, value in vector.values.items()
    }
    return replace(vector, values=values)


def _time(
    analysis: KernelAnalysis, gpu: GpuProfile
) -> tuple[TimeResult | None, Sequence[Diagnostic]]:
    try:
        result = _TIME_MODEL.predict(work_of(analysis), gpu)
    except ModelError as error:
        return None, (Diagnostic("no_time_model", error.detail),)
    return result, result.diagnostics


def _time_model(result: TimeResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    return {
        "family": "scheduling",
        "core_mhz": result.core_mhz,
        "waves": result.waves,
        "wave_cycles": result.wave_cycles,
        "cycles": result.cycles._asdict(),
    }


def _record(
    prediction_id: UUID,
    answer: dict[str, Any],
    request: PredictRequest,
    source: Source,
    vector: FeatureVector | None,
) -> PredictionRecord:
    vectors = {vector.schema_id: vector.model_inputs().tolist()} if vector else {}
    return PredictionRecord(
        id=prediction_id,
        created=datetime.now(UTC),
        ptx_sha256=source.known.sha256,
        gpu=answer["gpu"],
        kernel=answer["kernel"]["mangled"],
        request=_asked(request, source),
        result=to_json(answer, inf_nan_mode="null"),
        vectors=to_json(vectors, inf_nan_mode="null").decode(),
        models=to_json(answer["model"]).decode(),
        ptx=source.cuda.compiled.ptx if source.cuda is not None else request.ptx,
    )


def _asked(request: PredictRequest, source: Source) -> str:
    """The request as stored: its PTX is a row of its own, CUDA source is kept as its hash."""
    asked = request.model_dump_json(exclude={"ptx", "cuda"}, exclude_defaults=True)
    if source.cuda is None:
        return asked
    return to_json({**from_json(asked), "cuda_sha256": source.cuda.sha256}).decode()
