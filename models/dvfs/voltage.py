"""Voltage of a clock domain over its clock: what power rises with, besides the clock itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from wattcast.models.dvfs.use import Floats


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


PUBLISHED_VOLTAGES: Mapping[str, VoltageKnots] = MappingProxyType(
    {
        "gtx-titan-x": VoltageKnots(mhz=(785, 975, 1164), relative=(0.973, 1.0, 1.127)),
        "titan-xp": VoltageKnots(mhz=(898, 1404, 1911), relative=(0.979, 1.0, 1.421)),
        "tesla-k40c": VoltageKnots(mhz=(666, 875), relative=(0.855, 1.0)),
    }
)
"""Core voltage ratios that Guerreiro et al. inferred (HPCA 2018, github.com/hpc-ulisboa/
gpupowermodel): flat below the first clock. Priors of the fits, which see the same boards."""
