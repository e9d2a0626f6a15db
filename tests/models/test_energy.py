"""Energy has an interval of its own: what power and time miss is not missed together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp, hypot, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.test_power_physical import NOTHING, REFERENCE, parameters
from wattcast.features.activity import Activity
from wattcast.features.errors import ClockError, DataError, LaunchError
from wattcast.features.gpus import list_gpus, load_gpu
from wattcast.models.clocks import (
    ClockPair,
    checked_limit,
    clocks_within,
    default_clocks,
    held_back,
    lower_clocks,
)
from wattcast.models.energy import JOINT, energy
from wattcast.models.intervals import Basis, Estimate, between
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.anchoring import (
    NOISE,
    AnchoredWidth,
    anchored,
    corrected,
    launch_coordinates,
    width_of,
)
from wattcast.models.power.boosted import Novelty
from wattcast.models.power.physical import PhysicalParameters, predicted_power
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.calibration import LEAST_LAUNCH_SECONDS, interval_of, least_seconds
from wattcast.training.calibrated import design, refitted
from wattcast.training.provenance import summarise

GPU = load_gpu("tesla-v100")

WIDTH = interval_of(GPU)[0].high_factor


def estimate(value: float, factor: float, basis: Basis = "unseen_kernel") -> Estimate:
    return Estimate(value, value / factor, value * factor, 0.9, basis)


def timed(
    factor: float, basis: Basis = "unseen_kernel", family: str = "bottleneck"
) -> TimePrediction:
    return TimePrediction(
        family, estimate(1e-3, factor, basis), default_clocks(GPU), {"dram": 1e-3}
    )


def half(found: Estimate) -> float:
    assert log(found.high / found.value) == pytest.approx(log(found.value / found.low))
    return log(found.high / found.value)


def test_the_models_own_errors_are_calibrated_together() -> None:
    found = energy(estimate(100, 1.3), timed(WIDTH), GPU)
    assert found.value == pytest.approx(0.1)
    assert half(found) == pytest.approx(JOINT * hypot(log(1.3), log(WIDTH)))


def test_what_was_measured_otherwise_joins_as_independent_errors() -> None:
    joined = hypot(log(1.3), log(1.2))
    known = energy(estimate(100, 1.3, "seen_kernel"), timed(1.2), GPU)
    assert half(known) == pytest.approx(joined)
    assert half(energy(estimate(100, 1.3), timed(1.2, family="delay"), GPU)) == pytest.approx(
        joined
    )


def test_uncertain_trips_are_not_narrowed() -> None:
    wide = energy(estimate(100, 1.3), timed(1000 * WIDTH), GPU)
    assert half(wide) > log(1000)


@given(st.floats(1, 50), st.floats(1, 1e4), st.booleans())
def test_it_lies_within_the_product_of_the_ends(power: float, time: float, seen: bool) -> None:
    watts, duration = estimate(80, power, "seen_kernel" if seen else "extrapolated"), timed(time)
    found = energy(watts, duration, GPU)
    assert watts.low * duration.estimate.low <= found.low * (1 + 1e-12)
    assert found.low <= found.value <= found.high
    assert found.high <= watts.high * duration.estimate.high * (1 + 1e-12)


def test_an_end_of_zero_watts_is_an_end() -> None:
    found = energy(Estimate(50, 0, 60, 0.9, "unseen_kernel"), timed(WIDTH), GPU)
    assert 0 <= found.low < 1e-3 * found.value


def test_an_estimate_between_what_can_be() -> None:
    assert between(Estimate(20, 5, 90, 0.9, "unseen_kernel"), 30, 60) == Estimate(
        30, 30, 60, 0.9, "unseen_kernel"
    )


def test_no_launch_is_shorter_than_its_operations_and_bytes() -> None:
    fields = dict.fromkeys(Activity.__dataclass_fields__, 0.0)
    nothing = Activity(**{**fields, "kernel_launches": 1.0})
    clocks = default_clocks(GPU)
    assert least_seconds([nothing], GPU, clocks) == LEAST_LAUNCH_SECONDS
    assert least_seconds([], GPU, clocks) == LEAST_LAUNCH_SECONDS
    moved = replace(nothing, footprint_bytes=9e9 + GPU.l2_bytes)
    assert least_seconds([moved], GPU, clocks) == pytest.approx(0.01, rel=0.01)
    flops = replace(nothing, fp32_instructions=1e12 / 64)
    peak = 2 * GPU.fp32_lanes * GPU.sm_count * GPU.max_core_mhz * 1e6
    assert least_seconds([flops], GPU, clocks) == pytest.approx(1e12 / peak, rel=0.01)
    # What may be either is as short as the shorter.
    each = [least_seconds([one], GPU, clocks) for one in (moved, flops)]
    assert least_seconds([moved, flops], GPU, clocks) == min(each) < max(each)


def test_an_interval_of_another_gpu_narrows_alike() -> None:
    for gpu in list_gpus()[::25]:
        factor = interval_of(gpu)[0].high_factor
        watts = estimate(100, 1.4, "uncalibrated")
        found = energy(watts, timed(factor, "uncalibrated"), gpu)
        assert found.high / found.value <= exp(log(1.4) + log(factor))
        assert found.basis == "uncalibrated"


# --- Measured launches of a kernel correct its others: exactly where alike, less where not

ANCHORING_WIDTH = AnchoredWidth("any", "any", 2.3, 0.8, 7)


def test_a_repeated_launch_answers_what_was_measured() -> None:
    place = launch_coordinates([64], [256], [80.0])
    found = anchored([80.0], [120.0], place, place, [80.0])
    assert found.watts[0] == pytest.approx(120.0, rel=0.01)
    assert found.log_deviation[0] < 2 * NOISE


def test_nothing_known_changes_nothing() -> None:
    nothing = np.empty((0, 3))
    found = anchored([], [], nothing, launch_coordinates([64], [256], [80.0]), [80.0])
    assert found.watts.tolist() == [80.0]
    assert found.log_deviation[0] > 0.2


def test_the_correction_fades_with_distance_and_doubt_grows() -> None:
    known = launch_coordinates([64], [256], [80.0])
    predicted = np.array([80.0, 100.0, 160.0, 320.0])
    new = launch_coordinates([64, 128, 1024, 10**6], [256] * 4, predicted)
    found = anchored([80.0], [120.0], known, new, predicted)
    gain = found.watts / predicted
    assert (np.diff(gain) < 0).all()
    assert (gain > 1).all()
    assert (np.diff(found.log_deviation) > 0).all()


def test_several_known_launches_beat_one() -> None:
    # A kernel whose power falls behind its prediction as launches grow.
    predicted = np.array([60.0, 80.0, 120.0])
    measured = predicted * [1.0, 0.9, 0.8]
    places = launch_coordinates([16, 64, 256], [256] * 3, predicted)
    new = launch_coordinates([128], [256], [100.0])
    all_three = anchored(predicted, measured, places, new, [100.0])
    only_one = anchored(predicted[:1], measured[:1], places[:1], new, [100.0])
    assert 80 < all_three.watts[0] < 90
    assert only_one.watts[0] == pytest.approx(100.0, rel=0.02)
    assert all_three.log_deviation[0] < only_one.log_deviation[0]


def test_a_kernel_that_is_known_to_be_odd_is_promised_less() -> None:
    # A Gaussian process would promise the same of both: on K20 it held .83 of the rows of kernels
    # whose known launches lie far from their predictions, .92 of the others.
    places = launch_coordinates([16, 64, 256], [256] * 3, [80.0] * 3)
    new = launch_coordinates([128], [256], [80.0])
    usual = anchored([80.0] * 3, [79.0, 81.0, 80.0], places, new, [80.0])
    odd = anchored([80.0] * 3, [60.0, 110.0, 70.0], places, new, [80.0])
    assert odd.log_deviation[0] > 1.3 * usual.log_deviation[0]
    nothing = anchored([], [], np.empty((0, 3)), new, [80.0])
    assert usual.log_deviation[0] < nothing.log_deviation[0]


def test_repetitions_that_disagree_are_averaged() -> None:
    place = launch_coordinates([64], [256], [80.0])
    found = anchored([80.0, 80.0], [100.0, 104.0], np.vstack([place, place]), place, [80.0])
    assert found.watts[0] == pytest.approx(102.0, rel=0.005)


def test_the_interval_narrows_and_never_widens() -> None:
    estimate = Estimate(80.0, 60.0, 110.0, 0.9, "unseen_kernel")
    place = launch_coordinates([64], [256], [80.0])
    near = corrected(estimate, anchored([80.0], [120.0], place, place, [80.0]), ANCHORING_WIDTH)
    assert near.basis == "seen_kernel"
    assert near.high / near.low < 1.2
    far = launch_coordinates([10**6], [1024], [300.0])
    wide = corrected(estimate, anchored([300.0], [310.0], far, place, [80.0]), ANCHORING_WIDTH)
    assert wide.level == near.level == 0.8
    assert wide.high / wide.value <= 110 / 80 * (1 + 1e-9)
    assert wide.value / wide.low <= 80 / 60 * (1 + 1e-9)


def test_widths_are_those_of_the_board_or_of_any() -> None:
    assert (
        width_of("tesla-k20", "thesis").deviations < width_of("ada-24sm", "powerquant").deviations
    )
    assert width_of("tesla-k20", "uploads") == width_of("h100-sxm5", "dvfs")
    assert width_of("h100-sxm5", "dvfs").level == 0.8


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_impossible_watts_are_refused(bad: float) -> None:
    place = launch_coordinates([64], [256], [80.0])
    with pytest.raises(LaunchError, match="power_watts"):
        anchored([80.0], [bad], place, place, [80.0])
    with pytest.raises(LaunchError, match="predicted_watts"):
        launch_coordinates([64], [256], [bad])


# --- What is unlike the training rows scores high, also where no single feature leaves its range


def _rows(seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.lognormal(0, 1, 400)
    return np.column_stack([x, 5 * x * generator.lognormal(0, 0.05, 400), np.full(400, 7.0)])


NOVELTY = Novelty(summarise(_rows(), ["a", "b", "constant"]))


def test_rows_like_those_of_training_are_usual() -> None:
    score = NOVELTY.score(_rows(seed=1))
    assert np.quantile(score, 0.8) < 1.5
    assert (score >= 0).all()


def test_a_combination_that_training_never_had_is_novel() -> None:
    low, high = np.quantile(_rows(), [0.05, 0.95], axis=0)
    usual = NOVELTY.score([[low[0], low[1], 7.0], [high[0], high[1], 7.0]])
    mixed = NOVELTY.score([[low[0], high[1], 7.0], [high[0], low[1], 7.0]])
    assert mixed.min() > 2 * usual.max()


def test_novelty_grows_outside_the_range_up_to_a_bound() -> None:
    top = _rows().max(axis=0)
    inside, beyond, far, endless = NOVELTY.score(
        [top, top * [1.5, 1.5, 1], top * [2.5, 2.5, 1], top * [1e9, 1e9, 1]]
    )
    assert inside < beyond < far <= endless < 200


def test_a_missing_value_is_no_novelty() -> None:
    row = np.median(_rows(), axis=0)
    gap = row.copy()
    gap[1] = np.nan
    full, missing = NOVELTY.score([row, gap])
    assert missing <= full + 0.5


def test_constant_features_and_no_rows() -> None:
    assert NOVELTY.score(np.zeros((0, 3))).shape == (0,)
    other = Novelty(summarise(np.full((5, 2), 3.0), ["a", "b"]))
    assert other.score([[3.0, 3.0]])[0] == 0.0


# --- A board at its power limit: which clock it falls to, and what it holds back below the lowest

GPUS = ("a40", "a100-sxm4-40gb", "gtx-titan-x", "jetson-agx-thor", "tesla-v100")


def cubic(pair: ClockPair) -> float:
    """A board of 50 W idle, and 250 W at 1500 MHz."""
    return 50 + 200 * (pair.core_mhz / 1500) ** 3


@given(st.sampled_from(GPUS), st.floats(60, 600))
def test_the_highest_clock_that_fits(gpu_id: str, limit: float) -> None:
    gpu = load_gpu(gpu_id)
    asked = default_clocks(gpu)
    steps = lower_clocks(gpu, asked)
    found = clocks_within(limit, cubic, gpu, asked)
    assert steps[0] == asked
    assert found in steps
    above = steps[: steps.index(found)]
    assert all(cubic(pair) > limit for pair in above)
    assert cubic(found) <= limit or found == steps[-1]


@pytest.mark.parametrize("gpu_id", GPUS)
def test_steps_fall_and_keep_the_memory_clock(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    steps = lower_clocks(gpu, default_clocks(gpu))
    assert len(steps) > 1
    assert {pair.memory_mhz for pair in steps} == {gpu.memory_mhz}
    assert all(one.core_mhz > other.core_mhz for one, other in pairwise(steps))


def test_a_limit_outside_the_range_of_the_board_is_refused() -> None:
    gpu = load_gpu("a40")
    assert checked_limit(None, gpu) is None
    assert checked_limit(250, gpu) == 250
    for watts in (99, 301):
        with pytest.raises(ClockError, match="100 to 300 W") as error:
            checked_limit(watts, gpu)
        assert error.value.field == "power_limit_watts"


@given(st.floats(61, 300), st.floats(61, 400))
def test_held_back_the_mean_power_is_the_limit(limit: float, watts: float) -> None:
    runs = held_back(limit, watts, 60)
    assert 0 < runs <= 1
    assert 60 + (watts - 60) * runs == pytest.approx(min(watts, limit))


def test_idling_alone_above_the_limit_is_refused() -> None:
    with pytest.raises(ClockError, match="60 W idle"):
        held_back(50, 100, 60)


# --- A few measured launches draw parameters to a board, and never to nonsense

BUSY = NOTHING._replace(issue=0.5, fma=0.6, dram=0.3)

PRIOR = parameters(base=0.05, clock=0.1, issue=0.2, fma=0.3, dram=0.2)

Launch = tuple[UnitActivities, float]


def recalibrated(prior: PhysicalParameters, launches: list[Launch]) -> PhysicalParameters:
    if not launches:
        return prior
    rows = design(prior, np.array([(*activities, *REFERENCE) for activities, _ in launches]))
    return refitted(prior, rows, np.array([watts for _, watts in launches]))


def test_launches_as_predicted_change_nothing() -> None:
    rows = [(a, predicted_power(PRIOR, a, REFERENCE).watts) for a in (BUSY, NOTHING)]
    assert recalibrated(PRIOR, rows).weights == pytest.approx(PRIOR.weights, abs=1e-9)


def test_a_unit_with_a_weight_of_its_own_keeps_it_and_is_drawn_to_what_it_draws() -> None:
    own = PRIOR.model_copy(update={"own_weights": {"tensor": 0.6}})
    matrix = NOTHING._replace(issue=0.1, tensor=0.8)
    as_said = predicted_power(own, matrix, REFERENCE).watts
    same = recalibrated(own, [(matrix, as_said)])
    assert same.weights == pytest.approx(own.weights, abs=1e-9)
    assert same.own_weights == pytest.approx(own.own_weights, abs=1e-9)
    # What matrix units draw more says something of them, not of FMA.
    found = recalibrated(own, [(matrix, 1.3 * as_said)] * 10)
    assert predicted_power(found, matrix, REFERENCE).watts == pytest.approx(1.3 * as_said, rel=0.05)
    assert found.own_weights["tensor"] > own.own_weights["tensor"]
    assert found.own_weights["tensor"] / 0.6 > found.weights["fma"] / own.weights["fma"]


@pytest.mark.parametrize("share", [0.5, 1.5])
def test_a_board_that_draws_another_share_is_met_the_better_the_more_is_known(share: float) -> None:
    idle = PRIOR.idle_watts
    truth = idle + share * (predicted_power(PRIOR, BUSY, REFERENCE).watts - idle)
    errors = [
        abs(
            predicted_power(recalibrated(PRIOR, [(BUSY, truth)] * n), BUSY, REFERENCE).watts - truth
        )
        for n in (0, 1, 10)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_no_weight_falls_below_0_however_little_a_board_draws() -> None:
    found = recalibrated(PRIOR, [(BUSY, 1.0)])
    assert min(found.weights.values()) >= 0
    assert predicted_power(found, NOTHING, ClockPair(800.0, 400.0)).watts >= PRIOR.idle_watts


@pytest.mark.parametrize("watts", [0.0, -3.0, float("nan")])
def test_a_reading_that_is_not_positive_is_refused(watts: float) -> None:
    with pytest.raises(DataError, match="not positive"):
        recalibrated(PRIOR, [(BUSY, watts)])
