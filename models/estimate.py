"""What every predictor answers: a value, its interval and what the interval rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Basis = Literal["seen_kernel", "unseen_kernel", "extrapolated", "uncalibrated"]
"""What an interval rests on, from narrow to wide (docs/design.md, predictors).

``seen_kernel``: this PTX has accepted measurements, or the request brings them.
``unseen_kernel``: calibrated on kernels left out of training.
``extrapolated``: the kernel or launch lies outside what the model was trained on.
``uncalibrated``: datasheet facts and no measurement on this GPU.
"""

BASIS_ORDER: tuple[Basis, ...] = ("seen_kernel", "unseen_kernel", "extrapolated", "uncalibrated")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted quantity. ``level`` is the nominal coverage of ``[low, high]``, which is
    ``widened`` times as wide, in logarithms, as it was calibrated (``models/intervals.py``)."""

    value: float
    low: float
    high: float
    level: float
    basis: Basis
    widened: float = 1.0

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] does not hold {self.value}")


def unsure(estimate: Estimate, error: float) -> Estimate:
    """An estimate that goes with an input known to plus or minus ``error``, relative."""
    return replace(estimate, low=estimate.low / (1.0 + error), high=estimate.high * (1.0 + error))


def weaker(*bases: Basis) -> Basis:
    """The least certain of several bases."""
    return max(bases, key=BASIS_ORDER.index)


def between(estimate: Estimate, least: float, most: float) -> Estimate:
    """An estimate of which value and ends lie between what can be at all."""
    value, low, high = (
        min(max(each, least), most) for each in (estimate.value, estimate.low, estimate.high)
    )
    return replace(estimate, value=value, low=low, high=high)


_PREFIXES = (
    (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"),
    (1e-9, "n"),
)  # fmt: skip


def quantity(value: float, unit: str) -> str:
    """Three significant digits with an SI prefix: ``1.93e-5, "s"`` -> ``19.3 µs``."""
    if value == 0:
        return f"0 {unit}"
    scale, prefix = next(
        ((s, p) for s, p in _PREFIXES if abs(value) >= s), (_PREFIXES[-1][0], _PREFIXES[-1][1])
    )
    return f"{value / scale:.3g} {prefix}{unit}"
