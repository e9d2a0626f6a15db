"""The physical power model on numbers worked out by hand, and what holds for any."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from wattcast.features.activity import Activity
from wattcast.features.gpus import gpu_ids, load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import AT_REST, UnitActivities, unit_activities
from wattcast.models.power.physical import (
    COMPONENTS,
    POOLED,
    WEIGHTS,
    PhysicalParameters,
    PhysicalPowerModel,
    VoltageCurve,
    WorkAtTime,
    conversion,
    parameters_for,
    predicted_power,
)
from wattcast.models.store import PARAMETERS_NAME, ArtifactStore
from wattcast.models.time.beside import Beside

V100 = load_gpu("tesla-v100")
REFERENCE = ClockPair(1000.0, 800.0)
NOTHING = AT_REST


def parameters(**weights: float) -> PhysicalParameters:
    """50 W idle, 250 W limit: a weight of 1 is 200 W."""
    return PhysicalParameters(
        gpu="tesla-v100",
        idle_watts=50.0,
        limit_watts=250.0,
        highest_watts=240.0,
        reference_core_mhz=REFERENCE.core_mhz,
        reference_memory_mhz=REFERENCE.memory_mhz,
        voltage=VoltageCurve(floor=0.8, slope=0.5),
        weights={**dict.fromkeys(WEIGHTS, 0.0), **weights},
    )


def watts(clocks: ClockPair, activities: UnitActivities, **weights: float) -> float:
    return predicted_power(parameters(**weights), activities, clocks).watts


def test_voltage_follows_the_core_clock_down_to_its_floor() -> None:
    curve = VoltageCurve(floor=0.8, slope=0.5)
    assert [curve.at(f) for f in (1.0, 0.8, 0.6, 0.2, 1.2)] == pytest.approx(
        [1.0, 0.9, 0.8, 0.8, 1.1]
    )


def test_each_term_by_hand() -> None:
    half = ClockPair(800.0, 400.0)  # f = .8, V = .9, V^2 f = .648; f_m = .5
    busy = NOTHING._replace(fma=0.5, tensor=0.25, dram=0.4)
    assert watts(half, NOTHING) == pytest.approx(50)
    assert watts(half, NOTHING, base=0.1) == pytest.approx(50 + 20)
    assert watts(half, NOTHING, memory_clock=0.1) == pytest.approx(50 + 10)
    assert watts(half, NOTHING, clock=0.1) == pytest.approx(50 + 20 * 0.648)
    # FMA and matrix units have one weight.
    assert watts(half, busy, fma=0.2) == pytest.approx(50 + 40 * 0.648 * 0.75)
    assert watts(half, busy, dram=0.5) == pytest.approx(50 + 100 * 0.4 * 0.5)
    assert watts(half, busy, dram_core=0.5) == pytest.approx(50 + 100 * 0.4 * 0.648)


def test_components_sum_and_are_told_apart() -> None:
    busy = NOTHING._replace(fma=0.5, tensor=0.25, dram=0.4)
    model = parameters(base=0.05, clock=0.1, fma=0.2, dram=0.2, dram_core=0.1)
    found = predicted_power(model, busy, REFERENCE)
    assert tuple(found.components) == tuple(COMPONENTS)
    assert sum(found.components.values()) == pytest.approx(found.watts)
    assert found.components["idle"] == pytest.approx(60)
    assert found.components["fp32"] == pytest.approx(20)
    assert found.components["tensor"] == pytest.approx(10)
    assert found.components["dram"] == pytest.approx(24)


def test_activities_by_hand_on_a_v100() -> None:
    nothing = dict.fromkeys((field.name for field in fields(Activity)), 0.0)
    counts = {
        "kernel_launches": 1.0,
        "blocks": 80.0,
        "sm_imbalance": 1.0,
        "warp_instructions_sass": 160e9,
        "fma_pipe_instructions": 40e9,
        "fp64_instructions": 80e9,
        "l2_sectors": 20e9,
        "dram_read_sectors": 900e9 / 32 / 4,
        "footprint_bytes": 900e9,
    }
    found = unit_activities(
        Activity(**{**nothing, **counts}),
        V100,
        ClockPair(1000.0, V100.memory_mhz),
        1.0,
        more=Beside(tensor_fmas=512 * 80e9 / 8),
    )
    # 80 SMs x 1e9 cycles: 4 issued, 2 FMA warps, 1 FP64 warp, 1 sector, 512 matrix FMAs a cycle.
    assert found.issue == pytest.approx(0.5)
    assert found.fma == pytest.approx(0.25)
    assert found.fp64 == 1.0
    assert found.l2 == pytest.approx(0.25)
    assert found.dram == pytest.approx(0.25)
    assert found.tensor == pytest.approx(0.125)
    assert found.texture == 0.0


def test_a_gpu_nobody_measured_gets_its_datasheet_facts() -> None:
    h100 = load_gpu("h100-sxm5")
    found = parameters_for(h100, parameters(base=0.1))
    assert (found.gpu, found.limit_watts, found.idle_watts) == ("h100-sxm5", 700, 105)
    assert found.reference == (h100.max_core_mhz, h100.memory_mhz)
    assert found.weights["base"] == 0.1


def test_what_a_profile_says_of_idle_power_goes_with_the_memory_clock() -> None:
    titan, pcie = load_gpu("gtx-titan-x"), load_gpu("a100-pcie-40gb")
    found = parameters_for(titan, parameters())
    assert found.idle_watts == 0.15 * 250
    at_rest = predicted_power(found, NOTHING, found.reference)
    assert at_rest.watts == pytest.approx(titan.idle_watts)
    running = parameters_for(titan, parameters(base=0.1, clock=0.3))
    full = predicted_power(running, NOTHING._replace(sms=1.0), running.reference)
    assert full.watts == pytest.approx(titan.idle_watts + 0.4 * (250 - titan.idle_watts))
    assert parameters_for(pcie, parameters()).idle_watts == pcie.idle_watts


def test_the_voltage_of_a_board_stops_falling_where_it_was_measured_to() -> None:
    """Supply voltage over that at 1,410 MHz (energaizer, ``idle_power_voltage.csv``)."""
    measured = {
        "a100-sxm4-80gb": {600: 0.81, 1020: 0.81, 1110: 0.81, 1200: 0.85, 1290: 0.912, 1380: 0.973},
        "a100-pcie-40gb": {600: 0.776, 1020: 0.776, 1110: 0.811, 1200: 0.86, 1290: 0.909},
    }
    typical = parameters().model_copy(update={"voltage": VoltageCurve(floor=0.75, slope=1.0)})
    for gpu, points in measured.items():
        curve = parameters_for(load_gpu(gpu), typical).voltage
        for core_mhz, voltage in points.items():
            assert curve.at(core_mhz / 1410) == pytest.approx(voltage, abs=0.028)
        assert curve.at(600 / 1410) == pytest.approx(points[600])
    assert parameters_for(load_gpu("a40"), typical).voltage.floor == 0.75


def test_energies_of_events_become_weights_of_a_board() -> None:
    pooled = parameters(fma=10.0, l2=200.0, dram=40.0, memory_clock=0.2, clock=0.1, issue=320.0)
    busy = NOTHING._replace(fma=1.0, l2=0.5, dram=0.8, issue=0.5)
    a100, a40 = load_gpu("a100-sxm4-40gb"), load_gpu("a40")
    near, far = parameters_for(a100, pooled), parameters_for(a40, pooled)
    watts = predicted_power(near, busy, near.reference).components
    process = (7 / 12) ** 0.8
    cycles = 108 * 1410e6
    assert watts["fp32"] == pytest.approx(10e-12 * 64 * cycles * process)
    assert watts["control"] == pytest.approx(0.5 * 320e-12 * 4 * cycles * process)
    assert watts["l2"] == pytest.approx(0.5 * 200e-12 * cycles)  # wires: at any process
    assert watts["dram"] == pytest.approx(0.8 * 40e-12 * 1555e9)
    assert watts["idle"] == pytest.approx(60)  # HBM2: no share that goes with its clock
    assert watts["clock"] == pytest.approx(0.3 * 0.1 * 340)
    watts = predicted_power(far, busy, far.reference).components
    assert watts["fp32"] == pytest.approx(10e-12 * 128 * 84 * 1740e6 * (8 / 12) ** 0.8)
    assert watts["idle"] == pytest.approx(45 + 0.2 * 255)
    assert watts["clock"] == pytest.approx(0.1 * 255)


def test_matrix_units_draw_what_was_published() -> None:
    pooled = parameters(fma=10.0)
    busy = NOTHING._replace(tensor=0.5)
    for gpu_id, lanes, process in (("a100-sxm4-40gb", 1024, 7 / 12), ("tesla-v100", 512, 1.0)):
        gpu = load_gpu(gpu_id)
        found = parameters_for(gpu, pooled)
        watts = predicted_power(found, busy, found.reference).components["tensor"]
        peak = lanes * gpu.sm_count * gpu.max_core_mhz * 1e6
        assert watts == pytest.approx(0.5 * peak * 3.9e-12 * process**0.8)


@pytest.mark.parametrize(
    ("gpu_id", "share"), [("gtx-1080-ti", 1 / 128), ("tesla-p100", 1.0), ("a100-sxm4-40gb", 2.0)]
)
def test_half_precision_draws_by_what_its_lanes_do(gpu_id: str, share: float) -> None:
    pooled = parameters(fma=10.0)
    found = parameters_for(load_gpu(gpu_id), pooled)
    assert found.weight("fp16") == pytest.approx(share * found.weight("fma"))


def test_the_interval_of_matrix_units_reaches_down_to_other_values() -> None:
    artifact = ArtifactStore().find(POOLED, "power", "physical", "activity1")
    model = PhysicalPowerModel(artifact, load_gpu("a100-sxm4-40gb"))
    fma = model.of_activities(NOTHING._replace(fma=0.5), model.parameters.reference).estimate
    found = model.of_activities(NOTHING._replace(tensor=0.5), model.parameters.reference)
    tensor = found.estimate
    assert tensor.high / tensor.value >= fma.high / fma.value
    parts = found.components
    moving = tensor.value - parts["idle"] - parts["clock"]
    assert moving == pytest.approx(parts["tensor"])
    width = model.card.intervals.extrapolated  # no row of the fit uses them
    low, _ = width.around(np.array([0.6 * tensor.value]))
    assert tensor.low == pytest.approx(max(float(low[0]), model.parameters.idle_watts))


def test_matrix_units_draw_less_of_zeros_and_nothing_else_does() -> None:
    artifact = ArtifactStore().find(POOLED, "power", "physical", "activity1")
    model = PhysicalPowerModel(artifact, load_gpu("a100-sxm4-40gb"))
    at = model.parameters.reference
    busy = NOTHING._replace(tensor=0.5, dram=0.2)
    random, zeros = (model.of_activities(busy, at, zeros=given) for given in (False, True))
    assert 0.6 * random.estimate.value < zeros.estimate.value < random.estimate.value
    assert (zeros.estimate.low, zeros.estimate.high) == (random.estimate.low, random.estimate.high)
    parts = zeros.components
    assert sum(parts.values()) == pytest.approx(zeros.estimate.value)
    assert min(parts.values()) >= 0
    other = NOTHING._replace(fma=0.5, dram=0.2)
    assert model.of_activities(other, at, zeros=True) == model.of_activities(other, at)


def test_above_its_rated_clock_a_board_nobody_measured_gets_no_higher_voltage() -> None:
    """But GeForce and TITAN boards with GDDR, whose rated clock is not what they reach."""
    for gpu_id, above in (("a40", 1.0), ("titan-v", 1.0), ("titan-x-pascal", 1.1)):
        gpu = load_gpu(gpu_id)
        found = parameters_for(gpu, parameters(fma=5.0, clock=0.2))
        assert found.reference.core_mhz == pytest.approx(above * gpu.max_core_mhz)
        fast = found.reference._replace(core_mhz=1.25 * found.reference.core_mhz)
        busy = NOTHING._replace(fma=0.5)
        rated, more = (predicted_power(found, busy, at) for at in (found.reference, fast))
        idle = rated.components["idle"]
        volts = min(found.voltage.at(1.25), above)
        assert more.watts - idle == pytest.approx(1.25 * volts**2 * (rated.watts - idle))
    curve = VoltageCurve(floor=0.8, slope=0.5, highest=1.05)
    assert [curve.at(f) for f in (1.2, 1.0, 0.2)] == [1.05, 1.0, 0.8]


@pytest.mark.parametrize("gpu_id", ["tesla-v100", "gtx-1080-ti", "tesla-p100", "h100-sxm5"])
def test_one_block_is_not_charged_for_the_sms_without_any(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    stored = "pooled" if gpu_id == "h100-sxm5" else gpu_id
    model = PhysicalPowerModel(ArtifactStore().find(stored, "power", "physical", "activity1"), gpu)
    at = model.parameters.reference
    told = []
    for blocks in (1, gpu.sm_count // 2, gpu.sm_count, 10 * gpu.sm_count):
        counts = dict.fromkeys(Activity.__dataclass_fields__, 0.0)
        launch = Activity(**{**counts, "kernel_launches": 1.0, "blocks": float(blocks)})
        told.append(model.predict(WorkAtTime(launch, 1e-3), at).estimate.value)
    assert told == sorted(told)
    assert told[2] == told[3]  # each SM has one
    clock = predicted_power(model.parameters, NOTHING, at).components["clock"]
    assert told[2] - told[0] >= (1 - 1 / gpu.sm_count) * clock * (1 - 1e-9)  # rounding
    idle = predicted_power(model.parameters, NOTHING._replace(sms=0.0), at).watts
    assert told[0] == pytest.approx(idle, rel=0.05)


def test_a_family_answers_for_its_compute_capability() -> None:
    own = parameters(fma=20.0).weights
    pooled = parameters(fma=10.0).model_copy(update={"families": {"8.6": own}})
    for gpu_id, energy in (("a40", 20.0), ("rtx-3090", 20.0), ("a100-sxm4-40gb", 10.0)):
        gpu = load_gpu(gpu_id)
        found = parameters_for(gpu, pooled)
        factor = conversion(gpu, found.reference, found.idle_watts)["fma"]
        assert found.weights["fma"] == pytest.approx(energy * factor)
        assert not found.families


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_every_board_at_rest_draws_between_idle_and_its_limit(gpu_id: str) -> None:
    artifact = ArtifactStore().find(POOLED, "power", "physical", "activity1")
    pooled = PhysicalParameters.model_validate_json(artifact.read(PARAMETERS_NAME))
    found = parameters_for(load_gpu(gpu_id), pooled)
    rest = predicted_power(found, NOTHING, found.reference).watts
    stream = predicted_power(found, NOTHING._replace(dram=0.9, l2=0.2), found.reference).watts
    full = predicted_power(found, NOTHING._replace(fma=0.9, issue=0.5), found.reference).watts
    assert found.idle_watts <= rest < 0.6 * found.limit_watts
    assert min(stream, full) > rest
    assert max(stream, full) < 2 * found.limit_watts


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"weights": {"base": 1.0}}, "weights must be"),
        ({"weights": {**dict.fromkeys(WEIGHTS, 0.0), "fma": -1.0}}, "a weight is negative"),
        ({"idle_watts": 250.0}, "idle_watts is not below limit_watts"),
        ({"voltage": {"floor": 0.0, "slope": 1.0}}, "greater than 0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(changes: dict[str, object], why: str) -> None:
    stored = parameters().model_dump()
    with pytest.raises(ValidationError, match=why):
        PhysicalParameters.model_validate({**stored, **changes})


shares = st.floats(0, 1)
units = st.builds(UnitActivities, *[shares] * len(UnitActivities._fields))
weights = st.fixed_dictionaries({name: st.floats(0, 0.2) for name in WEIGHTS})


@given(units, weights, st.sampled_from(UnitActivities._fields), shares)
def test_a_busier_unit_never_draws_less(
    activities: UnitActivities, some: dict[str, float], unit: str, more: float
) -> None:
    busier = activities._replace(**{unit: max(more, getattr(activities, unit))})
    assert watts(REFERENCE, busier, **some) >= watts(REFERENCE, activities, **some) - 1e-9


@given(units, weights, st.floats(300, 2000), st.floats(1, 2))
def test_a_higher_core_clock_at_the_same_activities_never_draws_less(
    activities: UnitActivities, some: dict[str, float], core_mhz: float, ratio: float
) -> None:
    slow = watts(ClockPair(core_mhz, 800.0), activities, **some)
    assert watts(ClockPair(core_mhz * ratio, 800.0), activities, **some) >= slow - 1e-9
    assert slow >= 50
