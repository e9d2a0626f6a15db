"""Power of a kernel at other clocks, from what it used at one pair.

    P = board + leak_c s + clock_c s^2 c + leak_m s_m + clock_m s_m^2 m
        + duty (s^2 sum_j w_j u_j + s_m^2 w_dram u_dram) / t

c, m: clocks over the nominal pair; s, s_m: voltages over those there (Guerreiro et al., HPCA 2018);
u: uses, t: relative time, so that u/t is work per second. All watts are >= 0. ``duty`` is
T / (T + gap): a campaign repeats a kernel in a loop and reads the board's average, so that a kernel
of 40 us seems to draw little; ``gap`` is the campaign's idle time between two launches. With
``gap_seconds`` 0 the kernel runs back to back.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.use import Floats, UseTable

# --- voltage of a clock domain over its clock: what power rises with, besides the clock itself


class VoltageKnots(BaseModel):
    """Relative voltage at some clocks: 1 at the nominal clock, never falling as the clock rises.

    Straight lines between the knots; beyond them the voltage of the last one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mhz: tuple[float, ...] = Field(min_length=1)
    relative: tuple[float, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sound(self) -> VoltageKnots:
        if len(self.mhz) != len(self.relative):
            raise ValueError("a voltage for every clock")
        if any(b <= a for a, b in zip(self.mhz, self.mhz[1:], strict=False)):
            raise ValueError("clocks must ascend")
        if min(self.relative) <= 0 or any(
            b < a for a, b in zip(self.relative, self.relative[1:], strict=False)
        ):
            raise ValueError("voltages must be above 0 and never fall")
        return self

    def at(self, mhz: Floats) -> Floats:
        """Relative voltage at each clock, in the shape of ``mhz``."""
        return np.interp(mhz, self.mhz, self.relative)


# --- power of a kernel at other clocks, from what it used at one pair -------------------------


STATIC_WATTS = (
    "board_watts",
    "core_leakage_watts",
    "core_clock_watts",
    "memory_leakage_watts",
    "memory_clock_watts",
)
"""What a board draws whatever runs on it, by what moves it."""


class PowerParameters(BaseModel):
    """Parameters of ``power_watts`` for one GPU and one kind of counters.

    Watts at the nominal pair; ``unit_watts`` and ``dram_watts`` at a use of 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    board_watts: float = Field(ge=0)
    core_leakage_watts: float = Field(ge=0)
    core_clock_watts: float = Field(ge=0)
    memory_leakage_watts: float = Field(ge=0)
    memory_clock_watts: float = Field(ge=0)
    unit_watts: dict[str, float] = Field(min_length=1)
    dram_watts: float = Field(ge=0)
    gap_seconds: float = Field(ge=0)
    core_voltage: VoltageKnots
    memory_voltage: VoltageKnots

    @model_validator(mode="after")
    def _sound(self) -> PowerParameters:
        if any(watts < 0 for watts in self.unit_watts.values()):
            raise ValueError("a unit's watts are negative")
        return self

    @property
    def watts(self) -> Floats:
        """All watts in the order of ``power_terms``, ``[6 + k]``."""
        fixed = [getattr(self, name) for name in (*STATIC_WATTS, "dram_watts")]
        return np.array([*fixed, *self.unit_watts.values()])


def power_watts(
    parameters: PowerParameters,
    use: UseTable,
    nominal: ClockPair,
    core_mhz: Floats,
    memory_mhz: Floats,
    time: Floats,
) -> Floats:
    """Board watts, ``[n]``, at clocks ``[n]``; ``time`` is relative to the counters' clocks.

    The uses are at the nominal pair. Where their seconds are unknown (NaN), the kernel is taken
    to be long against the campaign's gap.
    """
    terms = power_terms(
        use.select(tuple(parameters.unit_watts)),
        use.dram,
        core_mhz / nominal.core_mhz,
        memory_mhz / nominal.memory_mhz,
        parameters.core_voltage.at(core_mhz),
        parameters.memory_voltage.at(memory_mhz),
        duty(parameters.gap_seconds, use.seconds * time) / time,
    )
    # Not a matrix product: its last bits depend on the row, and equal rows must give equal watts.
    return np.asarray(np.sum(terms * parameters.watts, axis=1))


def power_terms(
    units: Floats,
    dram: Floats,
    core: Floats,
    memory: Floats,
    core_voltage: Floats,
    memory_voltage: Floats,
    work_rate: Floats,
) -> Floats:
    """What each of ``PowerParameters.watts`` is multiplied by, ``[n, 6 + k]``.

    Clocks and voltages over the nominal ones; ``work_rate`` is duty over relative time.
    """
    core_work = core_voltage**2 * work_rate
    return np.column_stack(
        [
            np.ones_like(core),
            core_voltage,
            core_voltage**2 * core,
            memory_voltage,
            memory_voltage**2 * memory,
            memory_voltage**2 * work_rate * dram,
            core_work[:, None] * units,
        ]
    )


def duty(gap_seconds: float, seconds: Floats) -> Floats:
    """Share of a campaign's loop in which the kernel runs, ``[n]``; 1 where seconds are NaN."""
    known = np.where(np.isnan(seconds), np.inf, seconds)
    return np.asarray(1 / (1 + gap_seconds / known))
