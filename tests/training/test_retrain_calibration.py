"""Calibration of the physical models on measured launches: what holds is learned, garbage not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.training.uploaded import uploads as given_rows
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import ModelCard, SchemaReference
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.intervals import Estimate
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import PhysicalParameters, PhysicalPowerModel, predicted_power
from wattcast.models.store import ArtifactStore, schema_hash
from wattcast.models.time.base import TimePrediction
from wattcast.models.time.calibration import (
    REGIMES,
    CorrectedTimes,
    TimeCorrectionCard,
    features_of,
    interval_of,
)
from wattcast.training.calibrated import COLUMNS, DEFAULT, calibrate_power, calibrate_time
from wattcast.training.evaluation.scores import Rows
from wattcast.training.gate import BASELINE, Opponent
from wattcast.training.uploads import Candidate, Order, Uploads

GPU = load_gpu("a100-sxm4-80gb")
CLOCKS = default_clocks(GPU)
NOW = "uncalibrated physical model that answers now"
ORDER = Order(
    gpu=GPU.id,
    board="left",
    schema=SchemaReference(id="activity1", sha256=schema_hash("activity1")),
    version=7,
)
KERNELS, LAUNCHES = 20, 4
GROUPS = np.repeat(np.arange(KERNELS), LAUNCHES)


@pytest.fixture(scope="module", autouse=True)
def dated(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1767225600")


class Start(NamedTuple):
    """Parameters to start from, and the card of their model."""

    parameters: PhysicalParameters
    card: ModelCard


@pytest.fixture(scope="module")
def pooled() -> Start:
    artifact = ArtifactStore().find("pooled", "power", "physical", "activity1")
    return Start(PhysicalPowerModel(artifact, GPU).parameters, artifact.card)


def uploads(vectors: np.ndarray, measured: np.ndarray, new: bool = True) -> Uploads:
    return given_rows(Rows.of(vectors, measured, GROUPS), new)


# --- power -------------------------------------------------------------------------------


def activities(seed: int = 0) -> np.ndarray:
    """Kernels that use issue, FMA, ALU, load/store, L2 and DRAM to some degree; others nothing."""
    generator = np.random.default_rng(seed)
    used = [name in ("issue", "fma", "alu", "load_store", "l2", "dram") for name in COLUMNS[:-2]]
    kernels = generator.uniform(0.02, 0.7, (KERNELS, len(used))) * used
    found = kernels[GROUPS] * generator.uniform(0.8, 1.2, (len(GROUPS), 1))
    found[:, COLUMNS.index("sms")] = 1.0
    return found


def watts_of(parameters: PhysicalParameters, units: np.ndarray) -> np.ndarray:
    return np.array(
        [predicted_power(parameters, UnitActivities(*row), CLOCKS).watts for row in units.tolist()]
    )


def truth(start: PhysicalParameters) -> PhysicalParameters:
    """A board that draws less than the pooled one, and rather for memory than for arithmetic."""
    more = {"dram": 1.1, "dram_core": 1.1, "fma": 0.3}
    weights = {name: 0.6 * more.get(name, 1.0) * one for name, one in start.weights.items()}
    return start.model_copy(update={"weights": weights, "idle_watts": 0.7 * start.idle_watts})


def calibrated(start: Start, watts: np.ndarray, out: Path, *, new: bool = True) -> Candidate:
    units = activities()
    vectors = np.column_stack([units, np.tile(CLOCKS, (len(units), 1))])
    now = watts_of(start.parameters, units)
    given = uploads(vectors, watts, new)
    return calibrate_power(ORDER, given, *start, out, opponents=[Opponent(NOW, now)], champion=now)


def noisy(watts: np.ndarray, share: float = 0.01) -> np.ndarray:
    return watts * np.exp(np.random.default_rng(5).normal(0, share, len(watts)))


def test_a_new_gpu_is_learned_from_few_launches_and_served_from_its_artifact(
    pooled: Start, tmp_path: Path
) -> None:
    board = truth(pooled.parameters)
    made = calibrated(pooled, noisy(watts_of(board, activities())), tmp_path)
    assert made.verdict.promoted, made.verdict.reasons
    assert [one.opponent for one in made.verdict.comparisons] == [NOW, BASELINE]
    model = PhysicalPowerModel(
        ArtifactStore((tmp_path,)).find(GPU.id, "power", "physical", "activity1", version=7), GPU
    )
    assert model.card == made.card
    assert (model.card.board.label, model.card.board.batches) == ("left", ("1",))
    assert set(pooled.card.sources) < set(model.card.sources)
    # Another board's voltage curve is still that of other GPUs; the weights are its own.
    assert (model.pooled, model.typical_voltage) == (False, True)
    unseen = activities(seed=9)
    predicted = np.array(
        [model.of_activities(UnitActivities(*row), CLOCKS).estimate.value for row in unseen]
    )
    errors = np.abs(np.log(predicted / watts_of(board, unseen)))
    before = np.abs(np.log(watts_of(pooled.parameters, unseen) / watts_of(board, unseen)))
    assert np.median(errors) < 0.03 < 0.2 < np.median(before)


def test_what_was_not_measured_is_extrapolated(pooled: Start, tmp_path: Path) -> None:
    made = calibrated(pooled, watts_of(truth(pooled.parameters), activities()), tmp_path)
    model = PhysicalPowerModel(
        ArtifactStore((tmp_path,)).find(GPU.id, "power", "physical", "activity1"), GPU
    )
    seen = UnitActivities(*activities()[0])
    inside = model.of_activities(seen, CLOCKS)
    assert (inside.estimate.basis, inside.outside) == ("unseen_kernel", ())
    assert inside.estimate.level == made.card.intervals.level
    busy = model.of_activities(seen._replace(tensor=0.5), CLOCKS)
    assert (busy.estimate.basis, busy.outside) == ("extrapolated", ("tensor",))
    slow = model.of_activities(seen, ClockPair(0.8 * CLOCKS.core_mhz, CLOCKS.memory_mhz))
    assert (slow.estimate.basis, slow.outside) == ("extrapolated", ("core_mhz",))
    far = model.of_activities(seen, ClockPair(0.5 * CLOCKS.core_mhz, CLOCKS.memory_mhz))

    def width(estimate: Estimate) -> float:
        return np.log(estimate.high / estimate.value)

    assert width(busy.estimate) > 1.4 * width(inside.estimate)
    # The farther from the clocks that were measured, the wider.
    assert width(far.estimate) > 1.05 * width(slow.estimate) > 1.05 * width(busy.estimate)


def test_shuffled_watts_are_refused(pooled: Start, tmp_path: Path) -> None:
    watts = watts_of(truth(pooled.parameters), activities())
    verdict = calibrated(pooled, np.random.default_rng(1).permutation(watts), tmp_path).verdict
    assert not verdict.promoted
    assert any(BASELINE in reason for reason in verdict.reasons)


def test_a_board_whose_power_hangs_on_nothing_gets_its_median(
    pooled: Start, tmp_path: Path
) -> None:
    watts = noisy(np.full(len(GROUPS), 150.0), 0.05)
    made = calibrated(pooled, watts, tmp_path)
    assert made.card.hyperparameters["way"] == "median"
    assert not made.verdict.promoted
    model = PhysicalPowerModel(
        ArtifactStore((tmp_path,)).find(GPU.id, "power", "physical", "activity1"), GPU
    )
    found = model.of_activities(UnitActivities(*activities()[0]), CLOCKS).estimate.value
    assert found == pytest.approx(np.median(watts))


def test_a_calibration_that_forgets_what_was_measured_before_is_refused(
    pooled: Start, tmp_path: Path
) -> None:
    units = activities()
    board = watts_of(truth(pooled.parameters), units)
    new = GROUPS >= KERNELS // 2
    other = np.where(new, 1.5 * board, board)  # as if another board had crept in
    vectors = np.column_stack([units, np.tile(CLOCKS, (len(units), 1))])
    for watts, worse in ((board, False), (other, True)):
        found = replace(uploads(vectors, watts), new=new)
        verdict = calibrate_power(
            ORDER, found, *pooled, tmp_path, opponents=[Opponent(NOW, board)], champion=board
        ).verdict
        assert verdict.old is not None
        assert (verdict.old.rows, verdict.old.worse) == ((~new).sum(), worse)


# --- time --------------------------------------------------------------------------------


def launches() -> tuple[np.ndarray, np.ndarray]:
    """Predicted seconds and regime numbers: every other kernel waits for memory."""
    generator = np.random.default_rng(2)
    seconds = 10 ** generator.uniform(-5, -2, KERNELS)[GROUPS]
    seconds *= generator.uniform(0.8, 1.2, len(GROUPS))
    return seconds, GROUPS % 2


def timed(factors: tuple[float, float], out: Path, *, shuffled: bool = False) -> Candidate:
    predicted, regime = launches()
    measured = noisy(predicted * np.array(factors)[regime], 0.03)
    if shuffled:
        measured = np.random.default_rng(3).permutation(measured)
    vectors = np.array(
        [
            features_of(REGIMES[number], seconds, CLOCKS)
            for seconds, number in zip(predicted, regime, strict=True)
        ]
    )
    return calibrate_time(
        ORDER, GPU, uploads(vectors, measured), out, opponents=[Opponent(DEFAULT, predicted)]
    )


def prediction(seconds: float, regime: str = "memory", clocks: ClockPair = CLOCKS):
    width = interval_of(GPU, regime)[0]  # type: ignore[arg-type]
    low, high = seconds * width.low_factor, seconds * width.high_factor
    estimate = Estimate(seconds, low, high, 0.9, "uncalibrated")
    return TimePrediction("bottleneck", estimate, clocks, {"dram": seconds}, regime)  # type: ignore[arg-type]


def correction(root: Path) -> CorrectedTimes:
    store = ArtifactStore((root,), kind=TimeCorrectionCard)
    return CorrectedTimes(store.find(GPU.id, "time", "bottleneck", "activity1"))


def test_a_slow_board_is_learned_and_served_with_the_interval_it_earned(tmp_path: Path) -> None:
    made = timed((1.6, 1.6), tmp_path)
    assert made.verdict.promoted, made.verdict.reasons
    assert [one.opponent for one in made.verdict.comparisons] == [DEFAULT, BASELINE]
    assert made.card.hyperparameters["way"] == "one factor"
    model = correction(tmp_path)
    assert model.card == made.card
    found = model.corrected(prediction(1e-3), GPU)
    assert found.estimate.value == pytest.approx(1.6e-3, rel=0.03)
    assert found.estimate.basis == "unseen_kernel"
    assert sum(found.parts.values()) == pytest.approx(found.estimate.value)
    assert found.estimate.high / found.estimate.value < 1.2
    for outside in (
        prediction(10.0),
        prediction(1e-3, "launch"),
        prediction(1e-3, clocks=ClockPair(CLOCKS.core_mhz / 2, CLOCKS.memory_mhz)),
    ):
        wider = model.corrected(outside, GPU).estimate
        assert wider.basis == "extrapolated"
        assert wider.high / wider.value > found.estimate.high / found.estimate.value
    scores = made.card.scores[0]
    assert scores.model["median_ape_percent"].mean < 5 < 35
    assert scores.others[DEFAULT]["median_ape_percent"].mean > 35


def test_regimes_that_err_apart_get_a_factor_each(tmp_path: Path) -> None:
    made = timed((1.0, 2.0), tmp_path)
    assert made.verdict.promoted, made.verdict.reasons
    assert made.card.hyperparameters["way"] == "factor by regime"
    model = correction(tmp_path)
    slow, right = (
        model.corrected(prediction(1e-3, name), GPU).estimate.value / 1e-3
        for name in ("memory", "compute")
    )
    assert slow / right > 1.5


def test_shuffled_times_are_refused(tmp_path: Path) -> None:
    verdict = timed((1.6, 1.6), tmp_path, shuffled=True).verdict
    assert not verdict.promoted
    assert any(BASELINE in reason for reason in verdict.reasons)


def test_times_that_are_predicted_well_already_are_left_as_they_are(tmp_path: Path) -> None:
    made = timed((1.0, 1.0), tmp_path)
    assert made.card.hyperparameters["way"] == "none"
    assert not made.verdict.promoted
