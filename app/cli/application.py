"""``wattcast app``: energy of a whole application from its trace."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from wattcast.app.cli import inputs, output
from wattcast.predictor import Predictor
from wattcast.predictor.messages.application import ApplicationAnswer, ApplicationRequest
from wattcast.predictor.messages.cost import CostAnswer, CostRequest, Tariff
from wattcast.predictor.messages.fleet import FleetAnswer, FleetRequest

# ``wattcast cost``: what an application of several kernels costs.


class PriceOptions(inputs.Options):
    """What electricity costs."""

    panel = inputs.OWN
    members = inputs.scalars(Tariff, under="tariff") | inputs.fields(
        CostRequest, "grams_co2_per_kwh"
    )


def cost(file: Annotated[Path, typer.Argument(metavar="FILE")], prices: PriceOptions) -> CostAnswer:
    """Add up the energy, price and CO2 of a whole application.

    Args:
        file: JSON file, as POST /cost takes it; - reads standard input.
    """
    told = prices.body()
    if len(told.get("tariff", {})) == 1:
        inputs.fail("give --price-per-kwh and --currency together")
    body = inputs.read_json(file, dict, "a JSON object, as POST /cost takes it")
    return inputs.ask(CostRequest, {**body, **told})


# ``wattcast fleet``: which jobs go on which boards, at which power limits.


class FleetOptions(inputs.Options):
    """What the placement must keep to."""

    panel = inputs.OWN
    members = inputs.scalars(FleetRequest)


class FleetBoards(inputs.Options):
    """What there is."""

    panel = inputs.OWN
    reader = inputs.BOARDS
    members = inputs.fields(FleetRequest, "boards")


def fleet(
    jobs: Annotated[Path, typer.Argument(metavar="JOBS")], boards: FleetBoards, keep: FleetOptions
) -> FleetAnswer:
    """Place jobs on a fleet of boards, each at a power limit.

    The least joules within --makespan or the jobs' deadlines, else the shortest makespan.

    Args:
        jobs: TOML file of jobs as POST /fleet takes them; file names a kernel's code, config a
            model's config.json, both beside it.
    """
    from wattcast.app.python.code import read_jobs

    return inputs.ask(FleetRequest, read_jobs(jobs), boards, keep)


TOLD_EVERY, ANALYSED_EVERY = 500_000, 50
"""Launches or events read, and launches analysed, between two lines of progress."""


class TraceOptions(inputs.Options):
    """By which models the power of a trace's launches is predicted."""

    panel = inputs.MODELS
    members = inputs.scalars(
        ApplicationRequest, without=("gpu", "launches", "most_slowdown", "grams_co2_per_kwh")
    )


class WorthOptions(PriceOptions):
    """What electricity costs, and how much slower it may get."""

    short = MappingProxyType({"price_per_kwh": "--price", "grams_co2_per_kwh": "--co2"})
    members = PriceOptions.members | inputs.fields(ApplicationRequest, "most_slowdown")


def app(
    trace: Annotated[Path, typer.Argument(metavar="TRACE")],
    prices: WorthOptions,
    clocks: inputs.ClockOptions,
    models: TraceOptions,
    gpu: list[str] | None = None,
    code: list[Path] | None = None,
    top: Annotated[int, typer.Option(min=1)] = 10,
    launches: Annotated[bool, typer.Option("--launches/--no-launches")] = False,
    against: Path | None = None,
    energy: Path | None = None,
    csv: Path | None = None,
    html: Path | None = None,
    counters: Path | None = None,
) -> output.Shown[ApplicationAnswer]:
    """Add up the energy of all kernels in a trace.

    Durations are those measured in the trace, power is predicted.

    Args:
        trace: SQLite export of Nsight Systems, or JSON (.gz) trace of the PyTorch profiler.
        gpu: GPU id or alias; or DEVICE=GPU for one device of the trace. Repeatable. Default: by the
            name in the trace.
        code: Folder or file with PTX of the kernels: Triton's or inductor's cache, .ptx files,
            binaries. Repeatable.
        top: Kernels, operators and steps shown.
        launches: With --json: a row for every launch.
        against: An older trace: shows what changed since.
        energy: Log of the measured energy, to compare with: dcgmi dmon -e 155,156, CSV of
            dcgm-exporter's fields, or sacct --parsable2 with ConsumedEnergyRaw.
        csv: CSV file of the kernels to write.
        html: HTML report to write.
        counters: Chrome JSON to write, for Perfetto: each GPU's power over time beside the trace's
            events.
    """
    from wattcast.predictor.explain.page import STYLE
    from wattcast.predictor.messages.application import MOST_EVENTS
    from wattcast.predictor.reports.html import page
    from wattcast.predictor.traces import own_events
    from wattcast.predictor.traces.totals import changes

    told = prices.body()
    if "tariff" in told:
        if "price_per_kwh" not in told["tariff"]:
            inputs.fail("give --price with --currency")
        told["tariff"].setdefault("currency", "units")
    devices = dict(one.split("=", 1) for one in gpu or () if "=" in one)
    common = [one for one in gpu or () if "=" not in one]
    if len(common) > 1:
        inputs.fail("give one --gpu, or --gpu DEVICE=GPU for each device of the trace")
    where = {
        "gpu": common[0] if common else None,
        "gpus": devices,
        "launches": launches or counters is not None,
    }
    request = inputs.request(ApplicationRequest, where, clocks, models, told)
    use = output.predictor()
    answer = _answer(use, trace, request, code or [])
    if against is not None:
        compared = changes(_answer(use, against, request, code or []), answer)
        answer = answer.model_copy(update={"changes": compared})
    if energy is not None:
        from wattcast.predictor.traces.energy import compared as beside

        answer = beside(answer, inputs.read_text(energy))
    if csv is not None:
        inputs.write(csv, answer.table().encode())
    if html is not None:
        inputs.write(html, page(trace.name, answer.report(100), STYLE).encode())
    if counters is not None:
        inputs.write(counters, answer.chrome(own_events(trace, MOST_EVENTS)))
        if not launches:
            answer = answer.model_copy(update={"launch_columns": None})
    return output.Shown(answer, lambda: answer.report(top))


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
