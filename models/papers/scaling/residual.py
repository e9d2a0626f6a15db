"""What boosted trees learn beyond the physical scaling model: corrections of log power.

    log power scale = EXPONENT log p + q(x, clocks) - q(x, reference)

p is the physical model's scale, x a kernel's counters; it is exactly 1 at the reference. The trees
never fall with the core clock; raising p to a power below 1 leaves them room to correct it
downwards, as constrained trees can only add. docs/frequency.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.physical import PhysicalScaling, Scale
from wattcast.models.papers.scaling.use import Floats, KernelUse, UseTable

Float32s = NDArray[np.float32]

POWER_EXPONENT = 0.9


def power_vectors(use: UseTable, core: Floats, memory: Floats) -> Float32s:
    """Inputs of the power trees, ``[n, k]``; clocks over the nominal ones."""
    columns = [np.log(core), np.log(memory), use.dram, use.core]
    return np.column_stack(columns).astype(np.float32)


class Trees(Protocol):
    """Fitted trees: ``wattcast.models.store.TreeModel``, or a library's model while training."""

    def score(self, vectors: Float32s) -> Floats:
        """Predictions ``[n]``."""


def corrected_power(scale: Floats, correction: Floats) -> Floats:
    """Power scales ``[n]`` from the physical ones and corrections against the reference."""
    return np.asarray(scale**POWER_EXPONENT * np.exp(correction))


class CorrectedScaling:
    """The physical model with trees on top of its power.

    Raises ModelError where the physical model tells no power.
    """

    def __init__(self, physical: PhysicalScaling, power: Trees) -> None:
        if physical.parameters.power is None:
            raise ModelError("trees correct power, but the physical model tells none")
        self.physical, self._power = physical, power

    def scales(
        self, use: KernelUse, clocks: Sequence[ClockPair], reference: ClockPair | None = None
    ) -> list[Scale]:
        """As ``PhysicalScaling.scales``, at the campaign's gap between launches."""
        nominal = self.physical.parameters.nominal
        pairs = [reference or self.physical.parameters.reference, *clocks]
        plain = self.physical.scales(use, clocks, pairs[0])
        table = UseTable.of([use]).take(np.zeros(len(pairs), dtype=np.int64))
        core_mhz, memory_mhz = np.array(pairs, dtype=np.float64).T
        vectors = power_vectors(
            self.physical.at_nominal(table, use.clocks),
            core_mhz / nominal.core_mhz,
            memory_mhz / nominal.memory_mhz,
        )
        q = self._power.score(vectors)
        powers = np.array([scale.power for scale in plain], dtype=np.float64)
        told = corrected_power(powers, q[1:] - q[0]).tolist()
        return [Scale(scale.time, power) for scale, power in zip(plain, told, strict=True)]


# Measurements of the same kernel at further clock pairs draw its predicted scales to them: what a
# measured scale is over the predicted one, a logarithm, is a Gaussian process over the logarithms
# of both clocks, 0 at the counters' pair, that wanders along each as a Brownian motion (Rasmussen
# and Williams 2006, sections 2.2 and 4.2.3). Beyond a known point its correction stays.

WANDERS = 0.01
"""Variance of that logarithm for a clock e times as high: 10 %, the usual error of models."""
REPEATS = 0.0004
"""Variance of a measurement: 2 %. On programs left out of every fit two points leave .53 of the
error of time and .55 of that of power; four times or a quarter of ``WANDERS`` are within .12
points of that (docs/frequency.md)."""


def drawn(
    pairs: Sequence[ClockPair],
    known: Sequence[ClockPair],
    logs: Floats,
    start: ClockPair,
    wanders: float = WANDERS,
) -> Floats:
    """Logarithm of the correction at each pair, ``[n]``, from ``logs`` ``[k]`` at known ones; 0 at
    ``start``, the counters' pair."""
    if not known:
        return np.zeros(len(pairs))
    at, of = (np.log(np.array(each, dtype=np.float64) / start) for each in (pairs, known))

    def together(a: Floats, b: Floats) -> Floats:
        same = a[:, None] * b > 0
        return np.asarray(wanders * (same * np.minimum(abs(a[:, None]), abs(b))).sum(axis=2))

    held = together(of, of) + REPEATS * np.eye(len(known))
    return np.asarray(together(at, of) @ np.linalg.solve(held, logs))
