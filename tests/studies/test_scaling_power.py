"""Power from counters: worked by hand, and what must hold for any kernel and clocks."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.physical import PowerParameters, VoltageKnots, power_watts
from wattcast.models.papers.scaling.use import UseTable

NOMINAL = ClockPair(1000.0, 2000.0)
MODEL = PowerParameters(
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
    return float(power_watts(model, use, NOMINAL, *pair, np.array([time]))[0])


def test_half_the_core_clock_at_lower_voltage() -> None:
    # s = 0.8, twice the time: 10 + 16 + 30*0.64/2 + 5 + 15 + (0.64*40*0.5 + 25*0.4)/2
    assert watts(MODEL, 500, 2000, 2.0) == pytest.approx(10 + 16 + 9.6 + 20 + 11.4)


def test_short_kernels_seem_to_draw_less_in_a_loop_with_gaps() -> None:
    gaps = MODEL.model_copy(update={"gap_seconds": 10e-6})
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
