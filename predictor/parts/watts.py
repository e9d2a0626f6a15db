"""Power of one launch, by whichever model answers for the GPU.

boosted    published feature schemas, at the clocks they were measured at; other clocks scale
           the answer as the physical model says
physical   activities at the predicted time: any GPU, any clocks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wattcast.features.analysis import ASSUMED_TRIP_RANGE, KernelAnalysis
from wattcast.features.errors import AnalysisError, Diagnostic, LaunchError, ModelError, SchemaError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import PointerHint
from wattcast.features.occupancy import occupancy
from wattcast.features.schemas import FeatureVector
from wattcast.models.cards import ModelCard
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.intervals import Estimate, loosened, of_any_board, unsure, weaker
from wattcast.models.power.boosted import BoostedPowerModel, vector_for
from wattcast.models.power.physical import (
    CLOCKS,
    STANDING,
    PhysicalPower,
    PhysicalPowerModel,
    WorkAtTime,
)
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import predicted_seconds
from wattcast.predictor.parts.power_models import TARGET

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages import ModelChoice

FALLBACK_SCHEMA = "alavani2023"
"""Schema whose vector is answered where no model predicts, if it has a table for the GPU."""

ACTIVITY_SCHEMA = "activity1"


@dataclass(frozen=True, slots=True)
class Watts:
    """Power of one launch: its model's card, vector and estimate, each ``None`` where there is
    none. ``components`` are watts by component (physical models only)."""

    card: ModelCard | None = None
    vector: FeatureVector | None = None
    estimate: Estimate | None = None
    boosted: BoostedPowerModel | None = None
    components: Mapping[str, float] | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


def predicted_watts(
    predictor: Predictor,
    choice: ModelChoice,
    analysis: KernelAnalysis,
    gpu: GpuProfile,
    clocks: ClockPair,
    board: str = "",
    time_seconds: float | None = None,
) -> Watts:
    """Power at ``clocks``, carrying uncertain registers and trip counts into the interval.

    ``time_seconds`` is the duration that is answered, by whichever model or correction: rates
    are counts over it. Where it is ``None``, the bottleneck model's. ``board`` is the label of one
    of several boards of this GPU, where retrained models know it.
    Raises ModelError where the GPU has boosted models, but none of the family asked for.
    """
    model = predictor.power.model_for(gpu, choice, board)
    if isinstance(model, PhysicalPowerModel):
        found = _physical(model, analysis, gpu, clocks, time_seconds)
    else:
        instead = predictor.power.instead_of(model.card, gpu, board) if choice == "auto" else None
        found = _boosted(predictor, model, analysis, gpu, clocks, time_seconds, instead)
    card = found.card
    if card and found.estimate and predictor.power.of_one_board(card, gpu.id, board):
        found = replace(found, estimate=of_any_board(found.estimate))
    notes = predictor.power.stands_in(TARGET, gpu.id, board, choice)
    if card and found.estimate:
        wide, why = predictor.power.kept_wide(found.estimate, TARGET, gpu.id, board, card.place)
        found, notes = replace(found, estimate=wide), (*notes, *why)
    return replace(found, diagnostics=(*found.diagnostics, *notes)) if notes else found


def _physical(
    model: PhysicalPowerModel,
    analysis: KernelAnalysis,
    gpu: GpuProfile,
    clocks: ClockPair,
    time_seconds: float | None,
) -> Watts:
    try:
        own, *others = _at_time(analysis, gpu, clocks, time_seconds)
        given = analysis.launch.arguments.values()
        hints = {one.values for one in given if isinstance(one, PointerHint)}
        found = model.predict(own, clocks, others, zeros=hints == {"zeros"})  # all data, it is said
        vector = analysis.vector(ACTIVITY_SCHEMA)
    except AnalysisError as error:
        why = Diagnostic("power_not_predicted", error.detail)
        try:
            return Watts(vector=analysis.vector(FALLBACK_SCHEMA), diagnostics=(why,))
        except SchemaError as missing:
            return Watts(diagnostics=(why, Diagnostic("no_features", missing.detail)))
    components = found.breakdown.components
    moving = 1.0 - sum(components.get(name, 0.0) for name in STANDING) / found.estimate.value
    estimate = unsure(found.estimate, analysis.coverage.error * max(0.0, moving))
    return Watts(
        card=model.card,
        vector=vector,
        estimate=loosened(estimate) if analysis.cut_short else estimate,
        components=components,
        diagnostics=physical_notes(model, found),
    )


def physical_notes(model: PhysicalPowerModel, found: PhysicalPower) -> tuple[Diagnostic, ...]:
    """What to warn of in an answer of a physical model."""
    notes = []
    other_clocks = [name for name in found.outside if name in CLOCKS]
    busier = [name for name in found.outside if name not in CLOCKS]
    if busier:
        detail = (
            f"rates above those of any training row: {', '.join(busier)}; the power is extrapolated"
        )
        notes.append(Diagnostic("outside_training_range", detail))
    if other_clocks:
        detail = f"no training row ran at these clocks; extrapolated: {', '.join(other_clocks)}"
        notes.append(Diagnostic("outside_training_range", detail))
    if model.pooled:
        notes.append(
            Diagnostic(
                "gpu_uncalibrated",
                f"power was never measured on {model.gpu.id}; weights of other GPUs and datasheet "
                "facts were used. Measurements make it better: wattcast onboard or POST /retrain",
            )
        )
    return tuple(notes)


def _at_time(
    analysis: KernelAnalysis, gpu: GpuProfile, clocks: ClockPair, time_seconds: float | None
) -> list[WorkAtTime]:
    """The launch in the time that is answered, and at the other ends of what is uncertain: the
    bottleneck model's durations times what the answer is over that of the launch."""
    cases, more = (analysis.activity, *analysis.activity_cases), beside(analysis.extras)
    seconds = [predicted_seconds(case, gpu, clocks, more=more) for case in cases]
    factor = 1.0 if time_seconds is None else time_seconds / seconds[0]
    return [
        WorkAtTime(case, factor * each, more) for case, each in zip(cases, seconds, strict=True)
    ]


def _boosted(
    predictor: Predictor,
    model: BoostedPowerModel,
    analysis: KernelAnalysis,
    gpu: GpuProfile,
    clocks: ClockPair,
    time_seconds: float | None,
    instead: PhysicalPowerModel | None,
) -> Watts:
    """By trees, or by the model ``instead`` of them where they extrapolate."""
    own = analysis.vector(model.card.feature_schema.id)
    vector = vector_for(own, model.feature_names, gpu)
    inputs = vector.model_inputs()
    others = alternatives(analysis, vector)
    try:
        estimate = model.estimate(inputs, others if len(others) else None)
    except ModelError as error:
        # The kernel lacks something every training kernel had (a NaN feature, say).
        why = Diagnostic("power_not_predicted", error.detail)
        return Watts(model.card, vector, None, model, diagnostics=(why,))
    found = Watts(model.card, vector, estimate, model)
    if estimate.basis == "extrapolated":
        why = _unlike_training(model, inputs)
        other = None
        if instead is not None:
            other = _physical(instead, analysis, gpu, clocks, time_seconds)
        if other is not None and other.estimate is not None:
            detail = (
                f"the {model.card.family} model of {gpu.id} extrapolates here ({why.detail}); the "
                "physical model answers, with weights of other GPUs and datasheet facts"
            )
            kept = [each for each in other.diagnostics if each.code != "gpu_uncalibrated"]
            return replace(other, diagnostics=(*kept, Diagnostic("other_model_answers", detail)))
        found = replace(found, diagnostics=(why,))
    if clocks == default_clocks(gpu):
        return found
    physical = predictor.power.physical(gpu)
    return _at_other_clocks(physical, found, analysis, gpu, clocks, time_seconds)


def _unlike_training(model: BoostedPowerModel, inputs: NDArray[np.float32]) -> Diagnostic:
    outside = model.outside_training_range(inputs.reshape(1, -1))[0]
    if outside:
        detail = f"outside the training range; extrapolated: {', '.join(outside)}"
        return Diagnostic("outside_training_range", detail)
    novelty = float(model.novelty(inputs.reshape(1, -1))[0])
    return Diagnostic(
        "unlike_training",
        f"each feature is within its training range, but this combination is {novelty:.1f} times "
        "as far from the training rows as they usually are from each other; the power is "
        "extrapolated",
    )


def _at_other_clocks(
    physical: PhysicalPowerModel,
    found: Watts,
    analysis: KernelAnalysis,
    gpu: GpuProfile,
    clocks: ClockPair,
    time_seconds: float | None,
) -> Watts:
    """A boosted answer carried to other clocks by the physical model's ratio."""
    base = default_clocks(gpu)
    estimate = found.estimate
    assert estimate is not None
    try:
        activity, more = analysis.activity, beside(analysis.extras)
        own = predicted_seconds(activity, gpu, clocks, more=more)
        factor = 1.0 if time_seconds is None else time_seconds / own
        there = WorkAtTime(activity, factor * own, more)
        here = replace(
            there, time_seconds=factor * predicted_seconds(activity, gpu, base, more=more)
        )
        ratio = physical.scale(there, clocks, here, base)
    except AnalysisError as error:
        why = Diagnostic("power_not_scaled", error.detail)
        return replace(found, estimate=None, diagnostics=(*found.diagnostics, why))
    scaled = replace(
        estimate,
        value=estimate.value * ratio,
        low=estimate.low * ratio,
        high=estimate.high * ratio,
        basis=weaker(estimate.basis, "extrapolated"),
    )
    note = Diagnostic(
        "power_scaled",
        f"the model was trained at {base.core_mhz:g}/{base.memory_mhz:g} MHz only; its power was "
        f"scaled by {ratio:.3f}, the ratio that the physical model predicts",
    )
    return replace(found, estimate=scaled, diagnostics=(*found.diagnostics, note))


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
    names = vector.model_fields
    return [vector_for(case, names, analysis.gpu).model_inputs() for case in cases]


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
