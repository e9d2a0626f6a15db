"""Clocks of a GPU: what it runs at, and which pairs of clocks can be set.

Selectable clocks are written as one grid (``supported_core_mhz`` with ``supported_memory_mhz``)
or, where the core clocks depend on the memory clock, as several (``supported_grids``). Either
gives the same thing: ``Clocks.supported_pairs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from wattcast.features.gpus.facts import Fact, InUnit, Megahertz, PositiveFloat, Strict, Text

_MOST_IN_A_RANGE = 1000
"""Drivers list some 200 core clocks; a longer range is a slip of the step."""


class _Range(Strict):
    """``from``, ``from + step``, ... up to ``to``: the compact form of a list of clocks."""

    first: PositiveFloat = Field(alias="from")
    last: PositiveFloat = Field(alias="to")
    step: PositiveFloat

    def clocks(self) -> tuple[float, ...]:
        """Every clock. Raises ValueError where ``to`` is not met by whole steps."""
        steps = (self.last - self.first) / self.step
        if steps < 0 or steps != round(steps) or steps >= _MOST_IN_A_RANGE:
            raise ValueError(
                f"from {self.first:g} to {self.last:g} must be at most {_MOST_IN_A_RANGE} "
                f"whole steps of {self.step:g} upwards"
            )
        return tuple(self.first + self.step * index for index in range(round(steps) + 1))


def _expanded(value: Any) -> Any:
    """The clocks of a range; anything else unchanged. Raises ValueError for a bad range."""
    if not isinstance(value, dict):
        return value
    try:
        return _Range.model_validate(value).clocks()
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(str(part) for part in item["loc"])
        raise ValueError(f"range {{ from, to, step }}: {key}: {item['msg']}") from None


def _ascending(clocks: tuple[float, ...]) -> tuple[float, ...]:
    if list(clocks) != sorted(set(clocks)):
        raise ValueError("clocks must ascend without repeating")
    return clocks


ClockList = Annotated[
    tuple[PositiveFloat, ...],
    Field(min_length=1),
    BeforeValidator(_expanded),
    AfterValidator(_ascending),
]
MegahertzList = Annotated[Fact[ClockList], AfterValidator(InUnit("MHz"))]


class ClockGrid(Strict):
    """Core clocks that can be set at each of the memory clocks, all in MHz.

    ``reference_mhz``: the pair (core, memory) that the source's own figures relate to, where
    the grid is one of published measurements.
    """

    core_mhz: ClockList
    memory_mhz: ClockList
    reference_mhz: tuple[PositiveFloat, PositiveFloat] | None = None
    source: Text
    note: Text | None = None

    def pairs(self) -> Iterator[tuple[float, float]]:
        """Every pair of the grid."""
        return product(self.core_mhz, self.memory_mhz)


class Clocks(Strict):
    """Clocks in MHz. Memory clocks as NVML reports them (two transfers a clock).

    ``core_mhz``: what the board runs compute kernels at, and what predictions use when the
    request names no clock. ``base_core_mhz`` and ``max_core_mhz`` are the ends the vendor states.
    """

    core_mhz: Megahertz
    memory_mhz: Megahertz
    base_core_mhz: Megahertz | None = None
    max_core_mhz: Megahertz | None = None
    supported_core_mhz: MegahertzList | None = None
    supported_memory_mhz: MegahertzList | None = None
    supported_grids: Annotated[tuple[ClockGrid, ...], Field(min_length=1)] | None = None

    @property
    def supported_pairs(self) -> tuple[tuple[float, float], ...]:
        """Pairs (core, memory) known to be selectable, sorted; empty if none is published."""
        if self.supported_grids:
            return tuple(sorted({pair for grid in self.supported_grids for pair in grid.pairs()}))
        if self.supported_core_mhz and self.supported_memory_mhz:
            return tuple(product(self.supported_core_mhz.value, self.supported_memory_mhz.value))
        return ()

    def problems(self) -> Iterator[str]:
        """What does not agree within the section, as ``key: what``."""
        if self.supported_grids and (self.supported_core_mhz or self.supported_memory_mhz):
            yield (
                "clocks.supported_grids: takes the place of supported_core_mhz and "
                "supported_memory_mhz, which are given too"
            )
        for index, grid in enumerate(self.supported_grids or ()):
            if grid.reference_mhz is not None and grid.reference_mhz not in set(grid.pairs()):
                yield (
                    f"clocks.supported_grids.{index}.reference_mhz: "
                    f"{grid.reference_mhz} is not a pair of the grid"
                )
