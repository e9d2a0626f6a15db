"""``wattcast explain``: why a launch draws its power or takes its time, part by part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.output import (
    Answer,
    console,
    line,
    plain_table,
    predictor,
    print_json,
    warnings,
)
from wattcast.models.estimate import quantity

FORMATS = ("svg", "png", "html")
BAR = 20
"""Characters of the longest bar."""


@inputs.with_options
def explain(
    gpu: inputs.Gpu,
    launch: inputs.LaunchOptions,
    file: inputs.MaybePtx = None,
    target: Annotated[str, typer.Option(help="What to explain: power or time.")] = "power",
    method: Annotated[
        str, typer.Option(help="Method: shap (exact) or lime (a local linear model).")
    ] = "shap",
    seeds: Annotated[
        int, typer.Option(min=1, help="Run LIME with this many seeds and show how far they agree.")
    ] = 1,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of parts shown.")] = 12,
    picture: Annotated[
        str | None,
        typer.Option("--format", help="Format: svg, png or html. Default: the ending of --output."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Picture or page to write; - is standard output."
        ),
    ] = None,
    chart: Annotated[str, typer.Option(help="Chart in a picture: waterfall or bar.")] = "waterfall",
    work: inputs.Work = None,
    known: inputs.Known = None,
    *,
    models: inputs.ModelOptions,
    as_json: inputs.AsJson = False,
) -> None:
    """Explain the predicted power or time of a launch."""
    from wattcast.predictor.explain import MOST_SEEDS, Method, Target, explained
    from wattcast.predictor.explain.pictures import ChartKind
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict

    for option, given, known_ones in (
        ("--target", target, get_args(Target)),
        ("--method", method, get_args(Method)),
        ("--chart", chart, get_args(ChartKind)),
    ):
        if given not in known_ones:
            inputs.fail(f"{option} {given!r}: expected {' or '.join(known_ones)}")
    if seeds > MOST_SEEDS:
        inputs.fail(f"--seeds {seeds}: at most {MOST_SEEDS}")
    wanted = _format(picture, output)
    if wanted is not None and as_json:
        inputs.fail("give either --json or --output")
    body = {
        **launch.request_or_work(file, work),
        "known": inputs.known_request(known),
        "gpu": gpu,
        **models.request(),
    }
    opened = predictor()
    prediction = predict(opened, PredictRequest.model_validate(body))
    answer = explained(opened, prediction, method, target, seeds)  # type: ignore[arg-type]
    if output is not None and wanted is not None:
        _write(output, _drawn(answer, prediction, wanted, chart))
    elif as_json:
        print_json(answer)
    else:
        _report(console(), answer, prediction, rows)


def _format(given: str | None, output: Path | None) -> str | None:
    """Of the picture that is asked for, if one is."""
    if output is None:
        if given is not None:
            inputs.fail("--format needs --output FILE")
        return None
    wanted = given or output.suffix.removeprefix(".")
    if wanted not in FORMATS:
        inputs.fail(f"{output}: give --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return wanted


def _drawn(answer: Answer, prediction: Answer, wanted: str, chart: str) -> bytes:
    from wattcast.predictor.explain.page import chart_of, page
    from wattcast.predictor.explain.pictures import draw, png, svg

    if wanted == "html":
        return page(answer, prediction, chart).encode()  # type: ignore[arg-type]
    drawing = draw(chart_of(answer, prediction), chart)  # type: ignore[arg-type]
    return svg(drawing).encode() if wanted == "svg" else png(drawing)


def _write(output: Path, content: bytes) -> None:
    if str(output) == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        inputs.fail(f"{output}: {error.strerror}")


def _report(out: Console, answer: Answer, prediction: Answer, most: int) -> None:
    from wattcast.predictor.explain.page import QUANTITIES, chart_of, label, sentence

    amount, unit = QUANTITIES[answer["target"]]
    chart = chart_of(answer, prediction)
    out.print(Text(chart.title, "bold"))
    for text in (chart.subtitle, sentence(answer)):
        line(out, text)
    parts = [part for part in answer["contributions"] if part[amount]]
    longest = max((abs(part[amount]) for part in parts), default=1.0)
    table = plain_table()
    table.add_column(answer["target"], justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("part", overflow="fold")
    table.add_column("what it is")
    table.add_row(quantity(chart.start[1], unit), "", chart.start[0], "")
    for part in parts[:most]:
        bar = "█" * max(1, round(BAR * abs(part[amount]) / longest))
        colour = "red" if part[amount] > 0 else "blue"
        told = _signed(part[amount], unit)
        table.add_row(told, Text(bar, colour), Text(label(part)), Text(part["meaning"]))
    if rest := parts[most:]:
        total = sum(part[amount] for part in rest)
        table.add_row(_signed(total, unit), "", f"{len(rest)} more", "")
    table.add_row(quantity(chart.end[1], unit), "", chart.end[0], "")
    out.print(table)
    warnings(out, prediction["warnings"])


def _signed(value: float, unit: str) -> str:
    return f"{'+' if value > 0 else ''}{quantity(value, unit)}"
