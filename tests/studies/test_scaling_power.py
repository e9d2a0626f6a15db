"""Power from counters: worked by hand, and what must hold for any kernel and clocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from studies.fitting.scaling.fits import PUBLISHED_VOLTAGES
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.power import (
    PowerParameters,
    VoltageKnots,
    duty,
    power_watts,
)
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


def test_the_terms_at_the_nominal_pair() -> None:
    assert watts(MODEL, 1000, 2000, 1.0) == pytest.approx(10 + 20 + 30 + 5 + 15 + 20 + 10)


def test_half_the_core_clock_at_lower_voltage() -> None:
    # s = 0.8, twice the time: 10 + 16 + 30*0.64/2 + 5 + 15 + (0.64*40*0.5 + 25*0.4)/2
    assert watts(MODEL, 500, 2000, 2.0) == pytest.approx(10 + 16 + 9.6 + 20 + 11.4)


def test_half_the_memory_clock_halves_only_its_clock_power() -> None:
    assert watts(MODEL, 1000, 1000, 1.0) == pytest.approx(110 - 7.5)


def test_short_kernels_seem_to_draw_less_in_a_loop_with_gaps() -> None:
    gaps = MODEL.model_copy(update={"gap_seconds": 10e-6})
    assert watts(gaps, 1000, 2000, 1.0, seconds=30e-6) == pytest.approx(80 + 0.75 * 30)
    # Slower, the kernel fills more of the loop.
    assert watts(gaps, 1000, 2000, 3.0, seconds=30e-6) == pytest.approx(80 + 0.9 * 30 / 3)
    assert watts(gaps, 1000, 2000, 1.0) == pytest.approx(110), "unknown seconds: no gap"


def test_duty_is_the_share_of_the_loop_that_works() -> None:
    assert duty(1.0, np.array([1.0, 3.0, np.nan])) == pytest.approx([0.5, 0.75, 1.0])


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


def test_published_curves_are_those_of_the_authors_repository() -> None:
    titan_x = PUBLISHED_VOLTAGES["gtx-titan-x"]
    assert titan_x.at(np.array([595.0, 975.0, 1164.0])) == pytest.approx([0.973, 1.0, 1.127])
    assert PUBLISHED_VOLTAGES["titan-xp"].at(np.array([1911.0])) == pytest.approx([1.421])


def test_negative_watts_are_refused() -> None:
    with pytest.raises(ValidationError):
        PowerParameters.model_validate({**MODEL.model_dump(), "unit_watts": {"sp": -1.0}})


@given(
    st.floats(0, 1),
    st.floats(500, 1000),
    st.floats(1, 2),
    st.floats(0, 1e-4),
    st.floats(1e-5, 1e-2),
)
def test_power_never_falls_with_the_core_clock_of_a_core_bound_kernel(
    sp: float, core_mhz: float, faster: float, gap: float, seconds: float
) -> None:
    model = MODEL.model_copy(update={"gap_seconds": gap})

    def at(mhz: float) -> float:
        return watts(model, mhz, 2000, 1000 / mhz, sp=sp, dram=0.0, seconds=seconds)

    assert at(core_mhz * faster) >= at(core_mhz) * (1 - 1e-12)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(400, 1200), st.floats(1000, 2400))
def test_power_is_never_below_what_is_always_drawn(
    sp: float, dram: float, core_mhz: float, memory_mhz: float
) -> None:
    always = watts(MODEL, core_mhz, memory_mhz, 1.0, sp=0.0, dram=0.0)
    assert watts(MODEL, core_mhz, memory_mhz, 1.0, sp=sp, dram=dram) >= always
