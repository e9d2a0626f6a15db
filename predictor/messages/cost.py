"""What goes into ``POST /cost`` and what comes out: energy, price and CO2 of an application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator

from wattcast.predictor import messages as shared
from wattcast.predictor import reports

MOST_KERNELS = 256
"""Kernels of one application."""

Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class ApplicationKernel(shared.KernelTiming):
    """One kernel of an application and how often it is launched so."""

    launches: int = Field(strict=True, ge=1, le=shared.MAX_INTEGER)


class Tariff(shared.Message):
    """What electricity costs."""

    price_per_kwh: Amount
    """Electricity price per kWh."""
    currency: Annotated[str, StringConstraints(min_length=1, max_length=16)]
    """Currency of the price, e.g. EUR."""


class CostRequest(shared.Message, shared.Asks["CostAnswer"]):
    """Body of ``POST /cost``. ``ptx`` or ``cuda`` is what kernels without their own are in."""

    model_config = shared.examples("CostRequest")

    ptx: str | None = None
    cuda: str | None = None
    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    clocks: shared.Clocks | None = None
    model: shared.ModelChoice = "auto"
    board: shared.Board = None
    kernels: Annotated[list[ApplicationKernel], Field(min_length=1, max_length=MOST_KERNELS)]
    tariff: Tariff | None = None
    """Without it, the price is null."""
    grams_co2_per_kwh: Amount | None = None
    """Carbon intensity of the grid, g CO2 per kWh; without it, CO2 is null."""

    @model_validator(mode="before")
    @classmethod
    def _common_source(cls, given: Any) -> Any:
        """Kernels without a source of their own get the request's."""
        if not isinstance(given, Mapping) or not isinstance(given.get("kernels"), list):
            return given
        common = {name: given[name] for name in ("ptx", "cuda") if given.get(name) is not None}
        return {
            **given,
            "kernels": [
                {**common, **kernel}
                if isinstance(kernel, Mapping) and not {"ptx", "cuda"} & set(kernel)
                else kernel
                for kernel in given["kernels"]
            ],
        }


class KernelCost(shared.Answer):
    """One kernel: of one launch, and of all its launches."""

    prediction_id: UUID
    """For GET /explain and its hotspots."""
    kernel: shared.KernelName
    launches: int
    power: shared.Power
    time: shared.Time
    """Of one launch."""
    energy: shared.Energy
    """Of one launch."""
    seconds: float
    """Of all launches."""
    joules: float
    """Of all launches."""
    energy_share: float
    """Of the application's energy, 0 to 1."""


class Price(shared.Answer):
    """Energy times the tariff given; the interval is the energy's."""

    amount: float
    low: float
    high: float
    currency: str


class Carbon(shared.Answer):
    """Energy times the intensity given; the interval is the energy's."""

    grams: float
    low: float
    high: float


class CostAnswer(shared.Reported):
    """Answer of ``POST /cost``."""

    gpu: str
    covers: Literal["gpu_board_while_kernels_run"]
    """Host, transfers, cooling and idle time between launches are not included."""
    kernels: list[KernelCost]
    """In the order of the request."""
    time: shared.Time
    """One launch after the other."""
    energy: shared.Energy
    kwh: float
    price: Price | None
    """Null without a tariff."""
    co2: Carbon | None
    """Null without a carbon intensity."""
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """What each kernel takes, and all together."""
        columns = [
            reports.Column("kernel", lambda row: row.kernel.demangled),
            reports.count("launches", "launches"),
            reports.Column("each", lambda row: reports.value_of(row.energy), figures=True),
            reports.amount("together", "joules", "J"),
            reports.share("share", "energy_share"),
        ]
        interval = reports.interval_of(self.energy)
        total = f"{reports.value_of(self.energy)} ({interval}), {self.kwh:.6g} kWh"
        return [
            reports.Table(columns, self.kernels, most=MOST_KERNELS),
            reports.Line(f"{total} on the board of {self.gpu} in {reports.value_of(self.time)}"),
            *priced(self.price, self.co2),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each kernel."""
        return (kernel.data() for kernel in self.kernels)


def priced(price: Price | None, co2: Carbon | None) -> list[reports.Line]:
    """Price and CO2, where they are known."""
    lines = []
    if price is not None:
        amount_of = f"{price.amount:.6g} {price.currency}"
        lines.append(reports.Line(f"{amount_of} ({price.low:.4g} .. {price.high:.4g})"))
    if co2 is not None:
        lines.append(reports.Line(f"{co2.grams:.6g} g CO2 ({co2.low:.4g} .. {co2.high:.4g})"))
    return lines
