"""The physical scaling model as served: reference, bounds, order, ranges, packaged parameters."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from studies.fitting.scaling.trees import FittedTrees, ResidualRows, TreeSettings, fit_trees
from wattcast.features.errors import ClockError, DataError, ModelError
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import ScalingCard
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.card import TREES, scaling_store, schema_hash, served
from wattcast.models.papers.scaling.physical import (
    PhysicalScaling,
    PowerParameters,
    Scale,
    ScalingParameters,
    TimeParameters,
    VoltageKnots,
    power_watts,
    relative_time,
    time_bounds,
)
from wattcast.models.papers.scaling.residual import CorrectedScaling, power_vectors
from wattcast.models.papers.scaling.use import UNITS, KernelUse, UseTable, nvprof_use
from wattcast.models.store import ArtifactStore, TreeModel

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


# --- Power from counters: worked by hand, and what must hold for any kernel and clocks

KNOTS_AT = ClockPair(1000.0, 2000.0)

WATTS = PowerParameters(
    board_watts=10,
    core_leakage_watts=20,
    core_clock_watts=30,
    memory_leakage_watts=5,
    memory_clock_watts=15,
    unit_watts={"sp": 40.0},
    dram_watts=25,
    gap_seconds=0,
    core_voltage=VoltageKnots(mhz=(500, 1000), relative=(0.8, 1.0)),
    memory_voltage=VoltageKnots(mhz=(2000,), relative=(1.0,)),
)


def watts(
    model: PowerParameters,
    core_mhz: float,
    memory_mhz: float,
    time: float,
    sp: float = 0.5,
    dram: float = 0.4,
    seconds: float = np.nan,
) -> float:
    use = UseTable(("sp",), np.array([[sp]]), np.array([dram]), np.array([seconds]))
    pair = np.array([core_mhz]), np.array([memory_mhz])
    return float(power_watts(model, use, KNOTS_AT, *pair, np.array([time]))[0])


def test_half_the_core_clock_at_lower_voltage() -> None:
    # s = 0.8, twice the time: 10 + 16 + 30*0.64/2 + 5 + 15 + (0.64*40*0.5 + 25*0.4)/2
    assert watts(WATTS, 500, 2000, 2.0) == pytest.approx(10 + 16 + 9.6 + 20 + 11.4)


def test_short_kernels_seem_to_draw_less_in_a_loop_with_gaps() -> None:
    gaps = WATTS.model_copy(update={"gap_seconds": 10e-6})
    assert watts(gaps, 1000, 2000, 1.0, seconds=30e-6) == pytest.approx(80 + 0.75 * 30)
    # Slower, the kernel fills more of the loop.
    assert watts(gaps, 1000, 2000, 3.0, seconds=30e-6) == pytest.approx(80 + 0.9 * 30 / 3)
    assert watts(gaps, 1000, 2000, 1.0) == pytest.approx(110), "unknown seconds: no gap"


def test_voltage_lies_on_lines_between_the_knots_and_stays_beyond_them() -> None:
    curve = VoltageKnots(mhz=(500, 1000), relative=(0.8, 1.0))
    assert curve.at(np.array([400, 500, 750, 1000, 1200])) == pytest.approx([0.8, 0.8, 0.9, 1, 1])


@pytest.mark.parametrize(
    ("mhz", "relative"),
    [((1000, 500), (0.8, 1.0)), ((500, 1000), (1.0, 0.8)), ((500,), (0.8, 1.0)), ((500,), (0.0,))],
)
def test_a_voltage_that_falls_is_refused(
    mhz: tuple[float, ...], relative: tuple[float, ...]
) -> None:
    with pytest.raises(ValidationError):
        VoltageKnots(mhz=mhz, relative=relative)


# --- Trees over the physical model: order and bounds whatever they learned, files that agree

RNG = np.random.default_rng(3)

CORE, MEMORY = np.meshgrid([600.0, 800.0, 1000.0, 1200.0], [800.0, 2000.0, 3500.0])


def noisy_trees() -> FittedTrees:
    """Trees fitted to nonsense: whatever they learned, the order must hold."""
    kernels, pairs = 40, CORE.size
    row = np.repeat(np.arange(kernels), pairs)
    core, memory = np.tile(CORE.ravel(), kernels), np.tile(MEMORY.ravel(), kernels)
    units = RNG.uniform(0, 0.9, (kernels, len(UNITS["utilisation"])))
    table = UseTable(
        UNITS["utilisation"], units, RNG.uniform(0, 0.9, kernels), np.full(kernels, 1e-3)
    ).take(row)
    vectors = power_vectors(table, core / 1000, memory / 3500)
    n = len(row)
    rows = ResidualRows(
        vectors=vectors,
        physical=np.ones(n),
        measured=np.exp(RNG.normal(0, 0.5, n)),
        weights=np.ones(n),
        groups=row.astype(str),
        reference_rows=np.repeat(np.flatnonzero((core == 1200) & (memory == 3500)), pairs),
    )
    trees = fit_trees(rows, np.ones(n, dtype=bool), TreeSettings(120, depth=4))
    assert trees is not None
    assert np.std(trees.score(vectors)) > 0.01, "the trees learned something"
    return trees


CORRECTED = CorrectedScaling(MODEL, noisy_trees())

shares = st.floats(0.0, 0.9)


@settings(max_examples=60)
@given(shares, shares, shares, st.floats(600, 1200), st.floats(800, 3500), st.data())
def test_corrected_time_keeps_order_and_bounds_and_power_rises_with_the_core(
    dram: float, sp: float, l2: float, core: float, memory: float, data: st.DataObject
) -> None:
    kernel = use(dram=dram, sp=sp, l2=l2)
    slow = ClockPair(core, memory)
    more_core = ClockPair(data.draw(st.floats(core, 1200)), memory)
    more_memory = ClockPair(core, data.draw(st.floats(memory, 3500)))
    found = CORRECTED.scales(kernel, [slow, more_core, more_memory, PARAMETERS.reference])
    low, high = time_bounds(slow, PARAMETERS.reference)
    assert low <= found[0].time <= high
    assert found[1].time <= found[0].time * (1 + 1e-9)
    assert found[2].time <= found[0].time * (1 + 1e-9)
    assert (found[3].time, found[3].power) == (1.0, 1.0)
    assert found[1].power >= found[0].power * (1 - 1e-9)  # type: ignore[operator]


def test_trees_for_power_nobody_measured_are_refused() -> None:
    timed = PhysicalScaling(PARAMETERS.model_copy(update={"power": None}))
    with pytest.raises(ModelError, match="tells none"):
        CorrectedScaling(timed, noisy_trees())


PACKAGED = [card for card in STORE.list() if card.family == TREES]


@pytest.mark.parametrize("card", PACKAGED, ids=lambda card: f"{card.gpu} {card.feature_schema.id}")
def test_onnx_and_native_trees_agree(card: ScalingCard) -> None:
    artifact = STORE.find(card.gpu, "scaling", TREES, card.feature_schema.id, source=card.source)
    trees = TreeModel(artifact)
    low, high = (
        np.array([getattr(f, end) for f in card.features]) for end in ("minimum", "maximum")
    )
    vectors = RNG.uniform(low, high, (200, len(low))).astype(np.float32)
    assert trees.score(vectors) == pytest.approx(trees.native.score(vectors), abs=1e-5)


@pytest.mark.parametrize("card", PACKAGED, ids=lambda card: f"{card.gpu} {card.feature_schema.id}")
def test_packaged_trees_are_served_over_their_physical_model(card: ScalingCard) -> None:
    model = served(STORE, card.gpu, card.source).scaling
    assert isinstance(model, CorrectedScaling)
    parameters = model.physical.parameters
    core = dict.fromkeys(UNITS[parameters.counters], 0.3)
    kernel = KernelUse(parameters.counters, core, 0.4, parameters.nominal, 1e-3)
    lowest = ClockPair(parameters.core_range_mhz[0], parameters.memory_range_mhz[0])
    scales = model.scales(kernel, [parameters.reference, lowest])
    assert (scales[0].time, scales[0].power) == (1.0, 1.0)
    assert scales[1].power != model.physical.scales(kernel, [lowest])[0].power


@pytest.mark.skipif(not PACKAGED, reason="no packaged trees")
def test_trees_of_another_physical_model_are_refused(tmp_path: Path) -> None:
    card = PACKAGED[0]
    root = Path(str(STORE.find(card.gpu, "scaling", TREES, card.feature_schema.id).folder)).parents[
        3
    ]
    for name in (card.folder, _physical_folder(card)):
        target = tmp_path / name
        target.mkdir(parents=True)
        for file in (root / name).iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    other = card.model_copy(update={"corrects_sha256": "0" * 64})
    (tmp_path / card.folder / "card.json").write_text(other.to_json(), "utf-8")
    store = ArtifactStore([tmp_path], kind=ScalingCard, hash_of_schema=schema_hash)
    with pytest.raises(ModelError, match="another physical model"):
        served(store, card.gpu, card.source)


def _physical_folder(card: ScalingCard) -> Path:
    found = [
        one
        for one in STORE.list()
        if (one.gpu, one.source, one.family) == (card.gpu, card.source, "physical")
    ]
    return found[0].folder


# --- Relative time from counters: worked by hand, and what must hold for any kernel and clocks

SUM = TimeParameters(
    capacities={"sp": 1.0, "l2": 1.0},
    dram_capacity=1.0,
    order=1.0,
    fill=0.0,
    fixed_share=0.0,
    latency_bias=0.0,
    latency_slope=0.0,
)
"""Order 1 adds the parts, and half of the latency is the core's: easy to work by hand."""


def table(dram: float, *core: float, units: tuple[str, ...] = ("sp", "l2")) -> UseTable:
    return UseTable(units, np.array([core]), np.array([dram]), np.array([1e-3]))


def time(parameters: TimeParameters, use: UseTable, core: float, memory: float) -> float:
    return float(relative_time(parameters, use, np.array([core]), np.array([memory]))[0])


@pytest.mark.parametrize(
    ("core", "memory", "expected"),
    [
        # memory 0.5, core 0.2 + 0.1, latency the remaining 0.2, half on each clock
        (1.0, 1.0, 1.0),
        (0.5, 1.0, 0.5 + 0.6 + 0.2 * (0.5 * 2 + 0.5)),
        (1.0, 0.5, 1.0 + 0.3 + 0.2 * (0.5 + 0.5 * 2)),
        (0.5, 0.5, 2.0),
        (2.0, 1.0, 0.5 + 0.15 + 0.2 * (0.5 / 2 + 0.5)),
    ],
)
def test_parts_add_up_at_order_1(core: float, memory: float, expected: float) -> None:
    assert time(SUM, table(0.5, 0.2, 0.1), core, memory) == pytest.approx(expected, rel=1e-12)


def test_the_path_into_l2_runs_on_the_core_clock() -> None:
    # fill 1: memory and path count alike, so that half the core clock makes 0.5 (1 + 2) / 2
    filled = SUM.model_copy(update={"fill": 1.0})
    assert time(filled, table(0.5, 0.2, 0.1), 0.5, 1.0) == pytest.approx(0.75 + 0.6 + 0.3)


def test_a_fixed_share_of_core_time_stays() -> None:
    # core time at half the clock: 0.9 * 2 + 0.1 = 1.9
    fixed = SUM.model_copy(update={"fixed_share": 0.1})
    expected = 0.5 + 0.3 * 1.9 + 0.2 * (0.5 * 1.9 + 0.5)
    assert time(fixed, table(0.5, 0.2, 0.1), 0.5, 1.0) == pytest.approx(expected)


def test_bounds_are_1_and_the_larger_ratio_below_the_reference() -> None:
    assert time_bounds(ClockPair(500, 2000), ClockPair(1000, 3000)) == (1.0, 2.0)
    assert time_bounds(ClockPair(1000, 3000), ClockPair(1000, 3000)) == (1.0, 1.0)
    assert time_bounds(ClockPair(2000, 1500), ClockPair(1000, 3000)) == (0.5, 2.0)


# --- Uses from counters: nvprof's counts by hand, and what is refused

COUNTS = {
    "dram_read_transactions": 3e6,
    "dram_write_transactions": 1e6,
    "l2_read_transactions": 6e6,
    "l2_write_transactions": 2e6,
    "shared_load_transactions": 1e6,
    "shared_store_transactions": 0.6e6,
    "inst_executed": 6.4e6,
    "inst_fp_32": 204.8e6,
    "inst_integer": 102.4e6,
    "inst_fp_64": 6.4e6,
    "flop_count_sp_special": 51.2e6,
    "tex_cache_transactions": 6.4e6,
}


def test_shares_on_the_gtx_980_by_hand() -> None:
    # 1 ms at 1000 MHz on 16 SMs: 16e6 SM cycles; 64 bytes a memory clock at 3500 MHz: 224 GB/s.
    use = nvprof_use(COUNTS, 1e-3, load_gpu("gtx-980"), ClockPair(1000, 3500))
    assert use.dram == pytest.approx(4e6 * 32 / 224e9 / 1e-3 * 1.0, rel=2e-3)
    expected = {
        "issue": 6.4e6 / (4 * 16e6),
        "sp": 204.8e6 / (128 * 16e6),
        "int": 102.4e6 / (128 * 16e6),
        "dp": 6.4e6 / (4 * 16e6),
        "sfu": 51.2e6 / (32 * 16e6),
        "shared": 1.6e6 / 16e6,
        "l2": 8e6 / 16e6,
        "texture": 6.4e6 / (2 * 16e6),
    }
    assert dict(use.core) == pytest.approx(expected)
    assert tuple(use.core) == UNITS["nvprof"]


def test_a_missing_memory_count_is_named() -> None:
    counts = {name: value for name, value in COUNTS.items() if name != "l2_write_transactions"}
    with pytest.raises(DataError, match="l2_write_transactions"):
        nvprof_use(counts, 1e-3, load_gpu("gtx-980"), ClockPair(1000, 3500))


@pytest.mark.parametrize(
    ("core", "dram", "seconds", "match"),
    [
        ({"sp": 0.1}, 0.2, None, "dcgm counters are of"),
        ({"sp": -0.1, "dp": 0.0, "sm_active": 1.0}, 0.2, None, "sp is -0.1"),
        ({"sp": 0.1, "dp": 0.0, "sm_active": 1.0}, float("nan"), None, "dram is nan"),
        ({"sp": 0.1, "dp": 0.0, "sm_active": 1.0}, 0.2, 0.0, "time_seconds is 0"),
    ],
)
def test_nonsense_is_refused(
    core: dict[str, float], dram: float, seconds: float | None, match: str
) -> None:
    with pytest.raises(DataError, match=match):
        KernelUse("dcgm", core, dram, ClockPair(1000, 877), seconds)
