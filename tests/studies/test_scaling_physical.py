"""The physical scaling model as served: reference, bounds, order, ranges, packaged parameters."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from wattcast.features.errors import ClockError, ModelError
from wattcast.models.cards import ScalingCard
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.card import scaling_store, served
from wattcast.models.papers.scaling.physical import (
    PhysicalScaling,
    PowerParameters,
    Scale,
    ScalingParameters,
    TimeParameters,
    VoltageKnots,
    time_bounds,
)
from wattcast.models.papers.scaling.use import UNITS, KernelUse

NOMINAL = ClockPair(1000.0, 3500.0)
PARAMETERS = ScalingParameters(
    gpu="gtx-titan-x",
    campaign="made_up",
    counters="utilisation",
    nominal=NOMINAL,
    reference=ClockPair(1200.0, 3500.0),
    core_range_mhz=(600.0, 1200.0),
    memory_range_mhz=(800.0, 3500.0),
    time_source="measured",
    time=TimeParameters(
        capacities={"sp": 0.8, "l2": 0.8},
        dram_capacity=0.85,
        order=4.0,
        fill=0.3,
        fixed_share=0.05,
        latency_bias=0.2,
        latency_slope=1.0,
    ),
    power=PowerParameters(
        board_watts=10,
        core_leakage_watts=20,
        core_clock_watts=20,
        memory_leakage_watts=5,
        memory_clock_watts=20,
        unit_watts=dict.fromkeys(UNITS["utilisation"], 60.0),
        dram_watts=50,
        gap_seconds=5e-6,
        core_voltage=VoltageKnots(mhz=(600, 1000, 1200), relative=(0.9, 1.0, 1.1)),
        memory_voltage=VoltageKnots(mhz=(800, 3500), relative=(0.95, 1.0)),
    ),
)
MODEL = PhysicalScaling(PARAMETERS)


def use(
    dram: float = 0.3, seconds: float | None = 1e-3, clocks: ClockPair = NOMINAL, **core: float
) -> KernelUse:
    shares = {unit: core.get(unit, 0.0) for unit in UNITS["utilisation"]}
    return KernelUse("utilisation", shares, dram, clocks, seconds)


def scale_of(
    kernel: KernelUse,
    pair: ClockPair,
    reference: ClockPair | None = None,
    model: PhysicalScaling = MODEL,
) -> Scale:
    return model.scales(kernel, [pair], reference)[0]


def test_the_reference_is_1_exactly_and_energy_the_product() -> None:
    for reference in (None, ClockPair(800.0, 3000.0)):
        at = reference or PARAMETERS.reference
        scale = scale_of(use(sp=0.6), at, reference)
        assert (scale.time, scale.power, scale.energy) == (1.0, 1.0, 1.0)
    slower = scale_of(use(sp=0.6), ClockPair(700.0, 3500.0))
    assert slower.power is not None
    assert slower.energy == slower.time * slower.power


def test_a_core_bound_kernel_slows_with_the_core_and_not_with_the_memory_clock() -> None:
    kernel = use(dram=0.02, sp=0.8)
    half_core = scale_of(kernel, ClockPair(600.0, 3500.0))
    low_memory = scale_of(kernel, ClockPair(1200.0, 800.0))
    assert half_core.time == pytest.approx(2.0, rel=0.06)
    assert low_memory.time == pytest.approx(1.0, abs=0.02)
    assert low_memory.power is not None
    assert low_memory.power < 1


def test_counters_from_another_pair_tell_the_same() -> None:
    """A kernel bound by the core alone is used alike at every core clock."""
    pairs = [ClockPair(800.0, 3500.0), ClockPair(600.0, 3500.0)]
    here = MODEL.scales(use(dram=0.0, sp=0.8, seconds=None), pairs)
    elsewhere = use(dram=0.0, sp=0.8, seconds=None, clocks=ClockPair(600.0, 3500.0))
    for one, other in zip(here, MODEL.scales(elsewhere, pairs), strict=True):
        assert one.time == pytest.approx(other.time, rel=0.03)
        assert one.power == pytest.approx(other.power, rel=0.06)


def test_order_and_repeats_of_the_pairs_change_nothing() -> None:
    pairs = [ClockPair(600.0, 800.0), ClockPair(900.0, 3500.0), ClockPair(600.0, 800.0)]
    forward = MODEL.scales(use(sp=0.5), pairs)
    assert MODEL.scales(use(sp=0.5), pairs[::-1]) == forward[::-1]
    assert forward[0] == forward[2]


def test_a_gap_between_launches_matters_to_short_kernels_only() -> None:
    pair = ClockPair(600.0, 3500.0)
    assert PARAMETERS.power is not None
    power = PARAMETERS.power.model_copy(update={"gap_seconds": 0.0})
    without_gap = PhysicalScaling(PARAMETERS.model_copy(update={"power": power}))
    for seconds, differs in ((5e-6, True), (1.0, False)):
        looped = scale_of(use(sp=0.8, seconds=seconds), pair).power
        alone = scale_of(use(sp=0.8, seconds=seconds), pair, model=without_gap).power
        assert (abs(looped - alone) > 0.01) is differs  # type: ignore[operator]


def test_clocks_near_the_range_are_extrapolated_and_far_ones_refused() -> None:
    assert not PARAMETERS.extrapolates(ClockPair(600.0, 800.0))
    assert PARAMETERS.extrapolates(ClockPair(1300.0, 3500.0))
    for pair, field in ((ClockPair(250.0, 3500.0), "core_mhz"), (ClockPair(900, 5000), "memory")):
        with pytest.raises(ClockError, match=field):
            scale_of(use(sp=0.5), pair)


def test_counters_of_another_kind_are_refused() -> None:
    other = KernelUse("dcgm", dict.fromkeys(UNITS["dcgm"], 0.5), 0.3, NOMINAL)
    with pytest.raises(ModelError, match="takes utilisation counters, not dcgm"):
        scale_of(other, NOMINAL)


def test_parameters_survive_json() -> None:
    text = PARAMETERS.model_dump_json()
    assert ScalingParameters.model_validate_json(text) == PARAMETERS
    with pytest.raises(ValidationError, match="nope"):
        ScalingParameters.model_validate_json(text.replace('"sp"', '"nope"'))


# --- packaged models --------------------------------------------------------------------

STORE = scaling_store()


@cache
def packaged() -> tuple[ScalingCard, ...]:
    assert STORE.problems() == ()
    return tuple(STORE.list())


@cache
def model(gpu: str, campaign: str) -> PhysicalScaling:
    return served(STORE, gpu, campaign).physical


PHYSICAL = [(card.gpu, card.source) for card in packaged() if card.family == "physical"]


def test_every_campaign_with_counters_has_a_model() -> None:
    gpus = {gpu for gpu, _ in PHYSICAL}
    assert gpus == {
        *("gtx-980", "gtx-1080-ti", "titan-x-pascal", "tesla-p100", "tesla-v100"),
        *("quadro-rtx-8000", "gtx-titan-x", "titan-xp", "titan-v", "tesla-k40c"),
    }
    licences = {card.source: card.sources[0].licence for card in packaged()}
    assert licences.pop("guerreiro_gtx_titan_x") == "BSD-3-Clause"
    assert all("redistributed" in licence for licence in licences.values())


@settings(max_examples=40)
@given(st.data())
def test_packaged_models_keep_the_order_and_bounds(data: st.DataObject) -> None:
    found = model(*data.draw(st.sampled_from(PHYSICAL)))
    parameters = found.parameters
    share = st.floats(0.0, 1.0)
    core = {unit: data.draw(share) for unit in UNITS[parameters.counters]}
    kernel = KernelUse(
        parameters.counters,
        core,
        data.draw(share),
        parameters.nominal,
        data.draw(st.floats(1e-5, 1.0)),
    )
    (low, high), (low_memory, high_memory) = (
        parameters.core_range_mhz,
        parameters.memory_range_mhz,
    )
    slow = ClockPair(data.draw(st.floats(low, high)), data.draw(st.floats(low_memory, high_memory)))
    faster_core = ClockPair(data.draw(st.floats(slow.core_mhz, high)), slow.memory_mhz)
    faster_memory = ClockPair(slow.core_mhz, data.draw(st.floats(slow.memory_mhz, high_memory)))
    scales = found.scales(kernel, [slow, faster_core, faster_memory, parameters.reference])
    least, most = time_bounds(slow, parameters.reference)
    assert least == 1.0
    assert least <= scales[0].time <= most
    assert scales[1].time <= scales[0].time * (1 + 1e-12)
    assert scales[2].time <= scales[0].time * (1 + 1e-12)
    assert scales[3].time == 1.0
    if parameters.power is not None:
        assert scales[3].power == 1.0
        # Work per second grows with the clock, and everything else with it.
        assert scales[1].power >= scales[0].power * (1 - 1e-12)  # type: ignore[operator]


@pytest.mark.parametrize(("gpu", "campaign"), PHYSICAL)
def test_what_a_card_says_of_its_model(gpu: str, campaign: str) -> None:
    parameters = model(gpu, campaign).parameters
    card = next(
        card
        for card in packaged()
        if (card.gpu, card.source, card.family) == (gpu, campaign, "physical")
    )
    assert card.feature_schema.id == f"{parameters.counters}1"
    assert (card.intervals.power is None) == (parameters.power is None)
    quantities = {score.quantity for score in card.scores}
    assert ("time" in quantities) == (parameters.time_source == "measured")
    assert parameters.domains == (2 if np.ptp(parameters.memory_range_mhz) else 1)


def test_an_unknown_campaign_is_told_from_the_known() -> None:
    with pytest.raises(ModelError, match="wang_gtx_1080_ti"):
        served(STORE, "gtx-1080-ti", "nobody")
    with pytest.raises(ModelError, match="none"):
        served(STORE, "tesla-k20", "nobody")
