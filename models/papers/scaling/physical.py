"""The physical scaling model of one GPU: time, power and energy at any clock pair.

    model = read_scaling(content)                   # parameters of one GPU, JSON
    model.scale(use, ClockPair(900, 3505))         # against the reference pair
    -> Scale(time=1.31, power=0.62, energy=0.81)

``use`` is what a profiler counted at one clock pair (``use.py``); the reference defaults to the
highest pair of the campaign the parameters were fitted on. Forms: ``timing.py`` and ``power.py``;
energy is always time x power. docs/frequency.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wattcast.features.errors import ClockError, ModelError
from wattcast.models.clocks import ABOVE, BELOW, ClockPair, checked
from wattcast.models.papers.scaling.power import PowerParameters, power_watts
from wattcast.models.papers.scaling.timing import TimeParameters, relative_time
from wattcast.models.papers.scaling.use import UNITS, CounterKind, Floats, KernelUse, UseTable

PARAMETERS_NAME = "model.json"


class Scale(NamedTuple):
    """Time, power and energy over those at the reference pair; ``None`` where nobody measured."""

    time: float
    power: float | None

    @property
    def energy(self) -> float | None:
        """Time x power."""
        return None if self.power is None else self.time * self.power


class ScalingParameters(BaseModel):
    """Everything the physical model knows of one GPU by one campaign.

    ``nominal`` is the pair the campaign counted at and voltages are 1 at, ``reference`` the pair
    that scales refer to unless told otherwise; ``core_range_mhz`` and ``memory_range_mhz`` span
    the clocks fitted on. ``time_source`` says whether times were measured, or told from how
    power follows the clocks. Without ``power`` the campaign measured none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu: str
    campaign: str
    counters: CounterKind
    nominal: ClockPair
    reference: ClockPair
    core_range_mhz: tuple[float, float]
    memory_range_mhz: tuple[float, float]
    time_source: str = Field(pattern="^(measured|power)$")
    time: TimeParameters
    power: PowerParameters | None

    @model_validator(mode="after")
    def _sound(self) -> ScalingParameters:
        known = UNITS[self.counters]
        used = set(self.time.capacities) | set(self.power.unit_watts if self.power else ())
        if not used <= set(known):
            raise ValueError(f"{self.counters} counters do not include {sorted(used - set(known))}")
        for pair in (self.nominal, self.reference):
            checked(pair)
        return self

    @property
    def domains(self) -> int:
        """Clock domains the campaign moved: 1 (core) or 2 (core and memory)."""
        return 1 if self.memory_range_mhz[0] == self.memory_range_mhz[1] else 2

    def extrapolates(self, clocks: ClockPair) -> bool:
        """Whether a pair lies outside the clocks fitted on.

        Raises ClockError beyond half the lowest or 1.2 times the highest.
        """
        outside = False
        for name, mhz, (low, high) in (
            ("core_mhz", clocks.core_mhz, self.core_range_mhz),
            ("memory_mhz", clocks.memory_mhz, self.memory_range_mhz),
        ):
            least, most = low * BELOW, high * ABOVE
            if not least <= mhz <= most:
                raise ClockError(
                    f"{name} is {mhz:g}; the frequency model of {self.gpu} by {self.campaign} is "
                    f"asked from {least:g} to {most:g} MHz",
                    field=name,
                )
            outside = outside or not low <= mhz <= high
        return outside


class PhysicalScaling:
    """Scales of kernels on one GPU by the physical model."""

    def __init__(self, parameters: ScalingParameters) -> None:
        self.parameters = parameters

    def scale(
        self,
        use: KernelUse,
        clocks: ClockPair,
        reference: ClockPair | None = None,
        *,
        gap_seconds: float | None = None,
    ) -> Scale:
        """Scale of one kernel at one pair; see ``scales``."""
        return self.scales(use, [clocks], reference, gap_seconds=gap_seconds)[0]

    def scales(
        self,
        use: KernelUse,
        clocks: Sequence[ClockPair],
        reference: ClockPair | None = None,
        *,
        gap_seconds: float | None = None,
    ) -> list[Scale]:
        """Time, power and energy at each pair over those at ``reference``, there exactly 1.

        ``gap_seconds`` between two launches defaults to the campaign's; 0 is a kernel run back
        to back. It changes power only. Raises ModelError for counters of another kind, ClockError
        for clocks far outside those fitted on.
        """
        pairs = [reference or self.parameters.reference, *clocks]
        self.check(use, pairs)
        table = UseTable.of([use]).take(np.zeros(len(pairs), dtype=np.int64))
        core, memory = (np.array([pair[at] for pair in pairs], dtype=np.float64) for at in (0, 1))
        time = self.times(table, use.clocks, core, memory)
        power = self.watts(table, use.clocks, core, memory, time, gap_seconds=gap_seconds)
        return [
            Scale(
                # The form keeps these bounds; rounding may not.
                float(np.clip(time[at] / time[0], *time_bounds(pairs[at], pairs[0]))),
                None if power is None else float(power[at] / power[0]),
            )
            for at in range(1, len(pairs))
        ]

    def times(
        self, use: UseTable, counted_at: ClockPair, core_mhz: Floats, memory_mhz: Floats
    ) -> Floats:
        """Time over that at the counters' clocks, ``[n]``; one row of ``use`` for each pair."""
        return relative_time(
            self.parameters.time,
            use,
            core_mhz / counted_at.core_mhz,
            memory_mhz / counted_at.memory_mhz,
        )

    def watts(
        self,
        use: UseTable,
        counted_at: ClockPair,
        core_mhz: Floats,
        memory_mhz: Floats,
        time: Floats,
        *,
        gap_seconds: float | None = None,
    ) -> Floats | None:
        """Board watts, ``[n]``, given ``times``; ``None`` where the campaign measured none."""
        parameters = self.parameters.power
        if parameters is None:
            return None
        if gap_seconds is not None:
            parameters = parameters.model_copy(update={"gap_seconds": gap_seconds})
        nominal = self.parameters.nominal
        at_nominal = self.at_nominal(use, counted_at)
        return power_watts(parameters, at_nominal, nominal, core_mhz, memory_mhz, time)

    def at_nominal(self, use: UseTable, counted_at: ClockPair) -> UseTable:
        """The same work per second as uses of the nominal clocks: what watts belong to."""
        nominal = self.parameters.nominal
        return UseTable(
            use.units,
            use.core * (counted_at.core_mhz / nominal.core_mhz),
            use.dram * (counted_at.memory_mhz / nominal.memory_mhz),
            use.seconds,
        )

    def check(self, use: KernelUse, pairs: Sequence[ClockPair]) -> None:
        """Raises ModelError for counters of another kind, ClockError for clocks far outside."""
        if use.kind != self.parameters.counters:
            raise ModelError(
                f"the frequency model of {self.parameters.gpu} takes {self.parameters.counters} "
                f"counters, not {use.kind}",
                gpu=self.parameters.gpu,
            )
        for pair in pairs:
            self.parameters.extrapolates(checked(pair))


def time_bounds(clocks: ClockPair, reference: ClockPair) -> tuple[float, float]:
    """Least and most time scale that clocks allow: 1 and the larger clock ratio, if both fall.

    Both ends never rise with a clock, so that cutting a prediction to them keeps its order.
    """
    ratios = [r / c for r, c in zip(reference, clocks, strict=True)]
    return min(1.0, *ratios), max(1.0, *ratios)


def read_scaling(content: bytes) -> PhysicalScaling:
    """The model of a ``model.json``. Raises ModelError if it does not hold."""
    try:
        return PhysicalScaling(ScalingParameters.model_validate_json(content))
    except ValidationError as error:
        raise ModelError(f"frequency model {PARAMETERS_NAME}: {error}") from error
