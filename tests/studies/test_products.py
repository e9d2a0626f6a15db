"""Energies of code from measured operators: what was put in comes out, and what serves has it."""

from __future__ import annotations

import numpy as np
import pytest

from studies.fitting.physical.products import CHIPS, Energies, carried, fitted, parameters
from studies.fitting.physical.rows import UNITS, GpuRows
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import UnitActivities
from wattcast.models.power.physical import (
    PhysicalParameters,
    PhysicalPowerModel,
    events_per_second,
    predicted_power,
)
from wattcast.models.store import ArtifactStore

H200 = load_gpu("h200-sxm5")
REFERENCE = ClockPair(H200.max_core_mhz, H200.memory_mhz)
TRUE = Energies(180.0, 1e-12, 60e-12)
SECTOR = 100e-12


def test_energies_are_found_among_readings_after_pauses_and_at_the_limit():
    chance, count = np.random.default_rng(1), 900
    busy = {"sms": np.ones(count), "tensor": chance.uniform(0, 0.7, count),
            "dram": chance.uniform(0, 0.9, count), "l2": chance.uniform(0, 0.5, count)}  # fmt: skip
    activities = np.column_stack([busy.get(name, np.zeros(count)) for name in UNITS])
    most = events_per_second(H200, REFERENCE)
    above = (
        TRUE.clock_watts
        + TRUE.tensor_joules * most["tensor"] * busy["tensor"]
        + TRUE.dram_joules * most["dram"] * busy["dram"]
        + SECTOR * most["l2"] * busy["l2"]
    )
    paused = chance.uniform(size=count) < 0.2
    watts = np.minimum(130 + above * np.where(paused, chance.uniform(0.2, 0.9, count), 1.0), 700.0)
    names = np.full(count, "gemm")
    rows = GpuRows(
        H200, activities, np.tile(np.array(REFERENCE), (count, 1)), watts, names, names, names,
        paused | True, paused | True, 130.0, 700.0, REFERENCE, (),
    )  # fmt: skip
    assert fitted(rows, SECTOR, None) == pytest.approx(TRUE, rel=0.03)
    assert fitted(rows, SECTOR, TRUE.dram_joules) == pytest.approx(TRUE, rel=0.03)


@pytest.mark.parametrize("gpu_id", [name for names in CHIPS.values() for name in names])
def test_what_serves_has_the_energies_of_its_card(gpu_id: str):
    gpu, store = load_gpu(gpu_id), ArtifactStore()
    found = store.find(gpu_id, "power", "physical", "activity1")
    told = found.card.hyperparameters
    served = PhysicalPowerModel(found, gpu)
    donor = next(one for one, names in CHIPS.items() if gpu_id in names)
    assert served.lent_by == ("" if donor == gpu_id else donor)
    resting = dict.fromkeys(UnitActivities._fields, 0.0) | {"sms": 1.0}
    watts = {
        unit: predicted_power(
            served.parameters, UnitActivities(**{**resting, unit: 1.0}), served.parameters.reference
        ).components
        for unit in ("sms", "tensor", "dram")
    }
    most = events_per_second(gpu, served.parameters.reference)
    assert watts["sms"]["clock"] == pytest.approx(told["clock_watts"], abs=0.1)
    expected = 1e-12 * float(told["tensor_picojoules"]) * most["tensor"]
    assert watts["tensor"]["tensor"] == pytest.approx(expected, rel=1e-3)
    expected = 1e-12 * float(told["dram_picojoules_a_byte"]) * most["dram"]
    assert watts["dram"]["dram"] == pytest.approx(expected, rel=1e-3)


def test_another_board_of_the_chip_pays_for_its_own_sms_and_clock():
    pcie = load_gpu("h100-pcie")
    there = carried(TRUE, H200, pcie)
    share = 114 * pcie.max_core_mhz / (132 * 1980)
    assert there == pytest.approx((180 * share, 1e-12, 60e-12))
    pooled = ArtifactStore().find("pooled", "power", "physical", "activity1")
    stored = pooled.parameters(PhysicalParameters)
    found = parameters(pcie, there, 60.0, stored)
    full = UnitActivities(**dict.fromkeys(UnitActivities._fields, 0.0) | {"sms": 1.0})
    told = predicted_power(found, full, found.reference).watts
    assert told == pytest.approx(60 + 180 * share, abs=0.01)
