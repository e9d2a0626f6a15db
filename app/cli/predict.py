"""``wattcast predict``: power, time and energy of a kernel launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Answer, line, plain_table, predictor, show, warnings
from wattcast.app.cli.speed import speed_of_light
from wattcast.models.estimate import quantity


@inputs.with_options
def predict(
    gpu: inputs.Gpus,
    launch: inputs.LaunchOptions,
    file: inputs.MaybePtx = None,
    work: inputs.Work = None,
    known: inputs.Known = None,
    *,
    models: inputs.ModelOptions,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print SHAP contributions.")
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also print each unit's share of its peak.")
    ] = False,
    registry: Annotated[
        bool, typer.Option(help="Use the models promoted in the service's database, if any.")
    ] = True,
    open_: Annotated[
        bool,
        typer.Option("--open", help="Show the answer in the page of the service running here."),
    ] = False,
    as_json: inputs.AsJson = False,
) -> None:
    """Predict the power, time and energy of a kernel launch."""
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict as run

    body: dict[str, Any] = {
        **launch.request_or_work(file, work),
        "known": inputs.known_request(known),
        **({"gpu": gpu[0]} if len(gpu) == 1 else {"gpus": gpu}),
        **models.request(),
        "explain": "shap" if explain else None,
        "details": details,
    }
    answer = run(predictor(registry=registry), PredictRequest.model_validate(body))
    show(answer, as_json, _predictions)
    if open_:
        _open(body)


def _open(body: Mapping[str, Any]) -> None:
    from wattcast.app.cli.page import links, show_in_browser

    found = links(body)
    for link in found:
        inputs.progress(f"page: {link}")
    show_in_browser(found[0])


def _predictions(out: Console, answer: Answer) -> None:
    for number, one in enumerate(answer.get("predictions", [answer])):
        if number:
            out.print()
        prediction(out, one)
        if (found := one.get("speed_of_light")) is not None:
            speed_of_light(out, found)


def prediction(out: Console, answer: Answer) -> None:
    """One prediction: power, time, energy with intervals, then what they rest on."""
    kernel = answer["kernel"]
    name = "measured work" if kernel is None else kernel["demangled"]
    out.print(Text.assemble((name, "bold"), " on ", (answer["gpu"], "bold")))
    needs(out, answer)
    table = plain_table("", "prediction", "interval", "level", "basis")
    for name, key, unit in (
        ("power", "watts", "W"),
        ("time", "seconds", "s"),
        ("energy", "joules", "J"),
    ):
        part = answer[name]
        if part is None:
            table.add_row(name, "none", "", "", "")
        else:
            table.add_row(
                name,
                quantity(part[key], unit),
                f"{quantity(part['low'], unit)} .. {quantity(part['high'], unit)}",
                f"{part['level']:.0%}",
                part["basis"].replace("_", " "),
            )
    out.print(table)
    line(out, f"at {megahertz(answer['clocks'])}")
    if (trust := answer.get("trust")) is not None:
        line(out, f"trust: {trust['mark']} ({trust['why']})")
    _basis(out, answer)
    if explanation := answer.get("explanation"):
        contributions(out, explanation)
    warnings(out, answer["warnings"])


def needs(out: Console, answer: Answer) -> None:
    """Arguments to give first, before any number that rests on their absence."""
    for need in answer.get("needs", ()):
        what = "trips" if need["assumes"] == "trips" else "as its value"
        out.print(
            f"give {need['argument']} (argument {need['position']}): it decides the "
            f"{need['decides']}; {need['effect']}. Assumed: {need['assumed']:,.10g} {what}. "
            f"Pass --arg {need['position']}=...",
            style="yellow",
            highlight=False,
            markup=False,
        )


def _basis(out: Console, answer: Answer) -> None:
    model, occupancy, registers = answer["model"], answer["occupancy"], answer["registers"]
    if model is not None:
        line(out, f"power model {model['family']} version {model['version']} on {model['schema']}")
    if (timing := answer["time_model"]) is not None:
        bound = timing.get("bound") or timing["regime"]
        line(out, f"time model {timing['family']}{f', bound by {bound}' if bound else ''}")
    if (components := answer["components"]) is not None:
        told = ", ".join(
            f"{name} {watts:.1f} W" for name, watts in components.items() if watts >= 0.05
        )
        line(out, f"power by component: {told}")
    if occupancy is not None:
        told = f"occupancy {occupancy['occupancy']:.0%}, limited by {occupancy['limiter']}"
        line(out, f"{told}; {registers_told(registers)}")
    for trip in answer["trip_counts"]:
        line(
            out,
            f"loop {trip['loop'] or '?'} (line {trip['line']}): {trip['trips']:g} trips, "
            f"{trip['how']}",
        )


def contributions(out: Console, explanation: Answer, most: int = 6) -> None:
    """The features that move the prediction most, in watts."""
    line(out, f"base {explanation['base_watts']:.2f} W")
    components = explanation["model"]["family"] == "physical"  # they have watts and no value
    for part in explanation["contributions"][:most]:
        shown = "missing" if part["value"] is None else f"{part['value']:g}"
        named = part["feature"] if components else f"{part['feature']} = {shown}"
        line(out, f"  {part['watts']:+8.2f} W  {named}")
    rest = explanation["contributions"][most:]
    if rest:
        total = sum(part["watts"] for part in rest)
        line(out, f"  {total:+8.2f} W  {len(rest)} other features")


def registers_told(registers: Answer) -> str:
    """The register count, its spread and how it is known."""
    low, high = registers["low"], registers["high"]
    spread = "" if low == high else f" ({low} to {high})"
    return f"{registers['value']} registers per thread{spread}, {registers['how']}"


def megahertz(pair: Answer, *, unit: bool = True) -> str:
    """A pair of clocks, as in 1164/3505 MHz."""
    return f"{pair['core_mhz']:g}/{pair['memory_mhz']:g}" + (" MHz" if unit else "")
