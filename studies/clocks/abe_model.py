"""Abe et al.'s unified regression: power and time of a GPU at any clocks, linear in counters.

    power = sum x_i c_i f_core + sum y_j m_j f_memory + z        (equation 1; c, m per second)
    time  = sum x_i c_i / f_core + sum y_j m_j / f_memory + z    (equation 2; c, m in total)

Y. Abe et al., Power and Performance Characterization and Modeling of GPU-Accelerated Systems, IPDPS
2014: counters are core or memory events; forward selection takes at most ten variables that
maximise the adjusted R2; one model per GPU. ``AbeSettings()`` is the method as printed.
``HARDENED`` adds what keeps it from diverging: a counter that hardly varies gets a huge coefficient
in print, and least squares of times from microseconds to seconds fits the longest kernel only.
A baseline beside the physical model, never the default. docs/frequency.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from wattcast.features.errors import ModelError
from wattcast.models.scaling.use import Floats

Quantity = Literal["power", "time"]
Domain = Literal["core", "memory"]
MOST_VARIABLES = 10
"""Section IV A: fifteen or twenty variables hardly improve the adjusted R2."""

_Frozen = ConfigDict(frozen=True, extra="forbid")


class AbeSettings(BaseModel):
    """How a regression is fitted. The defaults are the paper's.

    ``plain_clocks``: f_core and f_memory may be variables of their own (an extension).
    ``least_distinct``, ``least_variation``: counters with fewer distinct values, or a standard
    deviation below this share of their largest value, are no candidates. ``ridge``: penalty on
    standardised coefficients, over the number of rows. ``relative``: residuals over the target.
    ``clip``: predictions stay within the targets fitted on.
    """

    model_config = _Frozen

    most_variables: int = Field(default=MOST_VARIABLES, ge=1)
    plain_clocks: bool = False
    least_distinct: int = Field(default=1, ge=1)
    least_variation: float = Field(default=0.0, ge=0)
    ridge: float = Field(default=0.0, ge=0)
    relative: bool = False
    clip: bool = False


HARDENED = AbeSettings(
    plain_clocks=True, least_distinct=5, least_variation=0.02, ridge=1e-3, relative=True, clip=True
)


class AbeTerm(BaseModel):
    """One variable: a counter with the clock of its domain, or (no counter) the clock itself."""

    model_config = _Frozen

    counter: str | None
    domain: Domain
    coefficient: float


class AbeModel(BaseModel):
    """A fitted regression: coefficients for clocks in MHz; ``range`` spans the targets fitted."""

    model_config = _Frozen

    quantity: Quantity
    terms: tuple[AbeTerm, ...]
    intercept: float
    adjusted_r2: float
    range: tuple[float, float]
    clip: bool

    def predict(
        self, counters: Floats, names: Sequence[str], core_mhz: Floats, memory_mhz: Floats
    ) -> Floats:
        """Watts or seconds ``[n]`` from counters ``[n, k]`` named by ``names``.

        Rates (power) or totals (time), as the model was fitted on. Raises ModelError where a
        counter the model uses is missing.
        """
        total = np.full(len(core_mhz), self.intercept)
        for term in self.terms:
            clock = core_mhz if term.domain == "core" else memory_mhz
            if term.counter is None:
                total += term.coefficient * clock
                continue
            if term.counter not in names:
                raise ModelError(f"the regression needs the counter {term.counter!r}")
            column = counters[:, list(names).index(term.counter)]
            total += term.coefficient * _with_clock(self.quantity, column, clock)
        return np.asarray(np.clip(total, *self.range) if self.clip else total)


def fit_abe(
    quantity: Quantity,
    counters: Floats,
    names: Sequence[str],
    domains: Sequence[Domain],
    core_mhz: Floats,
    memory_mhz: Floats,
    target: Floats,
    settings: AbeSettings | None = None,
) -> AbeModel:
    """Regression of ``target`` ``[n]`` (watts or seconds) on counters ``[n, k]``.

    ``domains`` says for each counter whether it is a core or a memory event. Raises ModelError
    where no candidate is left.
    """
    settings = settings or AbeSettings()
    clocks = {"core": core_mhz, "memory": memory_mhz}
    keys: list[tuple[str | None, Domain]] = list(zip(names, domains, strict=True))
    columns = [
        _with_clock(quantity, counters[:, at], clocks[domain])
        for at, (_, domain) in enumerate(keys)
    ]
    usable = [at for at in range(len(keys)) if _varies(counters[:, at], settings)]
    if settings.plain_clocks:
        usable += [len(keys) + at for at, name in enumerate(clocks) if np.ptp(clocks[name]) > 0]
        keys += [(None, "core"), (None, "memory")]
        columns += [core_mhz, memory_mhz]
    if not usable:
        raise ModelError("no counter varies enough to regress on")
    x = np.column_stack([columns[at] for at in usable])
    weights = 1 / target if settings.relative else np.ones(len(target))
    chosen, adjusted = _forward(x, target, weights, settings.most_variables)
    coefficients, intercept = _solve(x[:, chosen], target, weights, settings.ridge)
    terms = tuple(
        AbeTerm(counter=keys[usable[at]][0], domain=keys[usable[at]][1], coefficient=float(value))
        for at, value in zip(chosen, coefficients, strict=True)
    )
    return AbeModel(
        quantity=quantity,
        terms=terms,
        intercept=intercept,
        adjusted_r2=adjusted,
        range=(float(target.min()), float(target.max())),
        clip=settings.clip,
    )


def _with_clock(quantity: Quantity, counter: Floats, clock: Floats) -> Floats:
    return counter * clock if quantity == "power" else counter / clock


def _varies(column: Floats, settings: AbeSettings) -> bool:
    if not column.any() or len(np.unique(column)) < settings.least_distinct:
        return False
    return bool(column.std() >= settings.least_variation * np.abs(column).max())


def _forward(x: Floats, target: Floats, weights: Floats, most: int) -> tuple[list[int], float]:
    """Columns of greatest adjusted R2, added one by one while it rises, and that R2.

    The R2 of weighted residuals. Columns that the chosen ones (nearly) span are passed over.
    """
    n = len(target)
    y = target * weights
    columns = x * weights[:, None]
    norms = np.sum(columns**2, axis=0)
    basis = (weights / np.linalg.norm(weights))[:, None]
    residual = y - basis @ (basis.T @ y)
    total = float(residual @ residual)
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < min(most, n - 2):
        free = columns - basis @ (basis.T @ columns)
        lengths = np.sum(free**2, axis=0)
        gain = np.where(lengths > 1e-12 * norms, (free.T @ residual) ** 2, 0.0)
        gain /= np.maximum(lengths, np.finfo(float).tiny)
        gain[chosen] = 0.0
        at = int(np.argmax(gain))
        left = float(residual @ residual) - float(gain[at])
        adjusted = 1 - (left / (n - len(chosen) - 2)) / (total / (n - 1))
        if gain[at] <= 0 or adjusted <= best:
            break
        chosen.append(at)
        best = adjusted
        direction = free[:, at] / np.sqrt(lengths[at])
        basis = np.column_stack([basis, direction])
        residual = residual - direction * float(direction @ residual)
    return chosen, best


def _solve(x: Floats, target: Floats, weights: Floats, ridge: float) -> tuple[Floats, float]:
    """Coefficients and intercept of weighted least squares, ridge on standardised columns."""
    share = weights**2 / np.sum(weights**2)
    centre = share @ x
    spread = np.sqrt(share @ (x - centre) ** 2)
    mean = float(share @ target)
    z = (x - centre) / spread * np.sqrt(share)[:, None]
    y = (target - mean) * np.sqrt(share)
    k = x.shape[1]
    stacked = np.vstack([z, np.sqrt(ridge) * np.eye(k)])
    solution, *_ = np.linalg.lstsq(stacked, np.concatenate([y, np.zeros(k)]), rcond=None)
    coefficients = solution / spread
    return coefficients, mean - float(coefficients @ centre)
