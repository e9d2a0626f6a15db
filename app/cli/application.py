"""``wattcast app``: energy of a whole application from its trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, show

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.application import ApplicationAnswer, ApplicationRequest

TOLD_EVERY, ANALYSED_EVERY = 500_000, 50
"""Launches or events read, and launches analysed, between two lines of progress."""


def app(
    trace: Annotated[Path, typer.Argument(metavar="TRACE")],
    gpu: list[str] | None = None,
    code: list[Path] | None = None,
    price_per_kwh: Annotated[float | None, typer.Option("--price-per-kwh", "--price")] = None,
    currency: str | None = None,
    grams_co2_per_kwh: Annotated[float | None, typer.Option("--grams-co2-per-kwh", "--co2")] = None,
    core_mhz: inputs.CoreMhz = None,
    memory_mhz: inputs.MemoryMhz = None,
    max_slowdown: float = 1.05,
    top: Annotated[int, typer.Option(min=1)] = 10,
    launches: bool = False,
    against: Path | None = None,
    csv: Path | None = None,
    html: Path | None = None,
    counters: Path | None = None,
    *,
    models: inputs.TraceOptions,
    as_json: inputs.AsJson = False,
) -> None:
    """Add up the energy of all kernels in a trace.

    Durations are those measured in the trace, power is predicted.

    Args:
        trace: SQLite export of Nsight Systems, or JSON (.gz) trace of the PyTorch profiler.
        gpu: GPU id or alias; or DEVICE=GPU for one device of the trace. Repeatable. Default: by the
            name in the trace.
        code: Folder or file with PTX of the kernels: Triton's or inductor's cache, .ptx files,
            binaries. Repeatable.
        price_per_kwh: Electricity price per kWh.
        currency: Currency of the price, e.g. EUR.
        grams_co2_per_kwh: Carbon intensity, g CO2 per kWh.
        max_slowdown: How many times as long kernels may take at the clock advised.
        top: Kernels, operators and steps shown.
        launches: With --json: a row for every launch.
        against: An older trace: shows what changed since.
        csv: CSV file of the kernels to write.
        html: HTML report to write.
        counters: Chrome JSON of launches and of each GPU's power over time to write, for Perfetto.
    """
    from wattcast.predictor.explain.page import STYLE
    from wattcast.predictor.messages.application import ApplicationRequest
    from wattcast.predictor.reports.html import page
    from wattcast.predictor.traces.changes import changes

    if price_per_kwh is None and currency is not None:
        inputs.fail("give --price with --currency")
    common = [one for one in gpu or () if "=" not in one]
    if len(common) > 1:
        inputs.fail("give one --gpu, or --gpu DEVICE=GPU for each device of the trace")
    body: dict[str, Any] = {
        "gpu": common[0] if common else None,
        "gpus": dict(one.split("=", 1) for one in gpu or () if "=" in one),
        **models.request(),
        "most_slowdown": max_slowdown,
        "launches": launches or counters is not None,
        "grams_co2_per_kwh": grams_co2_per_kwh,
    }
    if price_per_kwh is not None:
        body["tariff"] = {"price_per_kwh": price_per_kwh, "currency": currency or "units"}
    if core_mhz is not None or memory_mhz is not None:
        body["clocks"] = {"core_mhz": core_mhz, "memory_mhz": memory_mhz}
    request = ApplicationRequest.model_validate(body)
    use = predictor()
    answer = _answer(use, trace, request, code or [])
    if against is not None:
        compared = changes(_answer(use, against, request, code or []), answer)
        answer = answer.model_copy(update={"changes": compared})
    if csv is not None:
        inputs.write(csv, answer.table().encode())
    if html is not None:
        inputs.write(html, page(trace.name, answer.report(100), STYLE).encode())
    if counters is not None:
        inputs.write(counters, answer.chrome())
        if not launches:
            answer = answer.model_copy(update={"launch_columns": None})
    show(answer, as_json, lambda: answer.report(top))


def _answer(
    use: Predictor, path: Path, request: ApplicationRequest, code: list[Path]
) -> ApplicationAnswer:
    from wattcast.predictor.application import application as run
    from wattcast.predictor.traces import read_trace
    from wattcast.predictor.traces.code import library

    told: dict[str, int] = {}

    def tell(what: str, count: int) -> None:
        if count >= told.get(what, 0) + (ANALYSED_EVERY if "analysed" in what else TOLD_EVERY):
            told[what] = count
            inputs.progress(f"{path.name}: {count:,} {what}")

    return run(use, read_trace(path, tell), request, library(code), tell)
