"""Power of one launch, by whichever model answers for the GPU.

boosted    published feature schemas, at the clocks they were measured at; other clocks scale
           the answer as the physical model says
physical   activities at the predicted time: any GPU, any clocks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattcast.features import gpus, launch
from wattcast.features.analysis import ASSUMED_TRIP_RANGE, KernelAnalysis
from wattcast.features.errors import AnalysisError, Diagnostic, LaunchError, ModelError, SchemaError
from wattcast.features.occupancy import occupancy
from wattcast.features.schemas import FeatureVector
from wattcast.models import cards, intervals
from wattcast.models.clocks import ClockPair, clock_distance, default_clocks, together
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

FALLBACK_SCHEMA = "alavani2023"
"""Schema whose vector is answered where no model predicts, if it has a table for the GPU."""

ACTIVITY_SCHEMA = "activity1"


@dataclass(frozen=True, slots=True)
class Watts:
    """Power of one launch: its model's card, vector and estimate, each ``None`` where there is
    none. ``components`` are watts by component (physical models only)."""

    card: cards.ModelCard | None = None
    vector: FeatureVector | None = None
    estimate: intervals.Estimate | None = None
    boosted: BoostedPowerModel | None = None
    components: Mapping[str, float] | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


def physical_watts(
    model: PhysicalPowerModel,
    analysis: KernelAnalysis,
    pairs: Sequence[ClockPair],
    seconds: Sequence[float] | None,
) -> list[Watts]:
    """By the physical model at each pair, with an interval that holds what is uncertain of the
    launch. ``seconds`` at each as in ``BoardModels.watts``."""
    try:
        took = None if seconds is None else together(seconds)
        own, *others = _at_time(analysis, together(pairs), took)
        given = analysis.launch.arguments.values()
        hints = {one.values for one in given if isinstance(one, launch.PointerHint)}
        zeros = hints == {"zeros"}  # all data, it is said
        found = model.predictions(own, pairs, others, zeros=zeros)
        vector = analysis.vector(ACTIVITY_SCHEMA)
    except AnalysisError as error:
        why = Diagnostic("power_not_predicted", error.detail)
        try:
            none = Watts(vector=analysis.vector(FALLBACK_SCHEMA), diagnostics=(why,))
        except SchemaError as missing:
            none = Watts(diagnostics=(why, Diagnostic("no_features", missing.detail)))
        return [none] * len(pairs)
    told = []
    for each in found:
        components = each.components
        moving = 1.0 - sum(components.get(name, 0.0) for name in STANDING) / each.estimate.value
        estimate = intervals.unsure(each.estimate, analysis.coverage.error * max(0.0, moving))
        estimate = intervals.loosened(estimate) if analysis.cut_short else estimate
        notes = tuple(physical_notes(model, each))
        told.append(Watts(model.card, vector, estimate, None, components, notes))
    return told


def physical_notes(model: PhysicalPowerModel, found: PhysicalPower) -> Iterator[Diagnostic]:
    """What to warn of in an answer of a physical model."""
    other_clocks = [name for name in found.outside if name in CLOCKS]
    busier = ", ".join(name for name in found.outside if name not in CLOCKS)
    if busier:
        detail = f"rates above those of any training row: {busier}; the power is extrapolated"
        yield Diagnostic("outside_training_range", detail)
    if other_clocks:
        detail = f"no training row ran at these clocks; extrapolated: {', '.join(other_clocks)}"
        yield Diagnostic("outside_training_range", detail)
    if model.pooled or model.lent_by:
        chip = f"energies of {model.lent_by}, which has the same chip,"
        whose = chip if model.lent_by else "weights of other GPUs"
        yield Diagnostic(
            "gpu_uncalibrated",
            f"power was never measured on {model.gpu.id}; {whose} and datasheet facts were "
            "used. Measurements make it better: wattcast onboard or POST /retrain",
        )


def _at_time(analysis: KernelAnalysis, clocks: ClockPair, time_seconds: Any) -> list[WorkAtTime]:
    """The launch in the time that is answered, and at the other ends of what is uncertain: the
    bottleneck model's durations times what the answer is over that of the launch."""
    cases, more = (analysis.activity, *analysis.activity_cases), beside(analysis.extras)
    if time_seconds is not None and len(cases) == 1:
        return [WorkAtTime(analysis.activity, time_seconds, more)]
    seconds = [predicted_seconds(case, analysis.gpu, clocks, more=more) for case in cases]
    factor = 1.0 if time_seconds is None else time_seconds / seconds[0]
    return [
        WorkAtTime(case, factor * each, more) for case, each in zip(cases, seconds, strict=True)
    ]


def boosted_watts(
    model: BoostedPowerModel,
    physical: Callable[[gpus.GpuProfile], PhysicalPowerModel],
    instead: PhysicalPowerModel | None,
    analysis: KernelAnalysis,
    clocks: ClockPair,
    time_seconds: float | None,
) -> Watts:
    """By trees, or by the model ``instead`` of them where they extrapolate; at clocks that they do
    not know, scaled as the ``physical`` model of a GPU says."""
    gpu = analysis.gpu
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
    notes: tuple[Diagnostic, ...] = ()
    if estimate.basis == "extrapolated":
        why = _unlike_training(model, inputs)
        other = Watts()
        if instead is not None:
            took = None if time_seconds is None else [time_seconds]
            (other,) = physical_watts(instead, analysis, [clocks], took)
        if other.estimate is not None:
            detail = (
                f"the {model.card.family} model of {gpu.id} extrapolates here ({why.detail}); the "
                "physical model answers, with weights of other GPUs and datasheet facts"
            )
            kept = [each for each in other.diagnostics if each.code != "gpu_uncalibrated"]
            return replace(other, diagnostics=(*kept, Diagnostic("other_model_answers", detail)))
        notes = (why,)
    if clocks != default_clocks(gpu):
        scaled, note = _scaled(physical(gpu), estimate, analysis, clocks, time_seconds)
        return Watts(model.card, vector, scaled, model, diagnostics=(*notes, note))
    return Watts(model.card, vector, estimate, model, diagnostics=notes)


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


def _scaled(
    physical: PhysicalPowerModel,
    estimate: intervals.Estimate,
    analysis: KernelAnalysis,
    clocks: ClockPair,
    time_seconds: float | None,
) -> tuple[intervals.Estimate | None, Diagnostic]:
    """A boosted answer carried to other clocks by the physical model's ratio, and what to warn
    of."""
    gpu, base = analysis.gpu, default_clocks(analysis.gpu)
    try:
        activity, more = analysis.activity, beside(analysis.extras)
        seconds: Any = predicted_seconds(activity, gpu, together([clocks, base]), more=more)
        factor = 1.0 if time_seconds is None else time_seconds / seconds[0]
        both = physical.predictions(WorkAtTime(activity, factor * seconds, more), [clocks, base])
        ratio = both[0].estimate.value / both[1].estimate.value
    except AnalysisError as error:
        return None, Diagnostic("power_not_scaled", error.detail)
    unsure_ratio = intervals.at_other_clocks(estimate, clock_distance(clocks, base))
    scaled = replace(
        unsure_ratio,
        value=estimate.value * ratio,
        low=unsure_ratio.low * ratio,
        high=unsure_ratio.high * ratio,
        basis=intervals.weaker(estimate.basis, "extrapolated"),
    )
    return scaled, Diagnostic(
        "power_scaled",
        f"the model was trained at {base.core_mhz:g}/{base.memory_mhz:g} MHz only; its power was "
        f"scaled by {ratio:.3f}, the ratio that the physical model predicts",
    )


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
