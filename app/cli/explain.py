"""``wattcast explain``: why a launch draws its power or takes its time, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import predictor, print_json, render
from wattcast.predictor.reports import Title, Warnings

FORMATS = ("svg", "png", "html")


def explain(
    on: inputs.OnGpu,
    launch: inputs.KernelOrWork,
    models: inputs.ModelOptions,
    target: str = "power",
    method: str = "shap",
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    rows: Annotated[int, typer.Option(min=1)] = 12,
    picture: Annotated[str | None, typer.Option("--format")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    chart: str = "waterfall",
    as_json: inputs.AsJson = False,
) -> None:
    """Explain the predicted power or time of a launch.

    Args:
        target: What to explain: power or time.
        method: Method: shap (exact) or lime (a local linear model).
        seeds: Run LIME with this many seeds and show how far they agree.
        rows: Number of parts shown.
        picture: Format: svg, png or html. Default: the ending of --output.
        output: Picture or page to write; - is standard output.
        chart: Chart in a picture: waterfall or bar.
    """
    from wattcast.predictor.explain import MOST_SEEDS, Method, Target, explained
    from wattcast.predictor.explain.page import chart_of, drawn, report
    from wattcast.predictor.explain.pictures import ChartKind
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict_one

    for option, given, known_ones in (
        ("--target", target, get_args(Target)),
        ("--method", method, get_args(Method)),
        ("--chart", chart, get_args(ChartKind)),
    ):
        inputs.check(option, given, known_ones)
    if seeds > MOST_SEEDS:
        inputs.fail(f"--seeds {seeds}: at most {MOST_SEEDS}")
    wanted = _format(picture, output)
    if wanted is not None and as_json:
        inputs.fail("give either --json or --output")
    asked = inputs.request(PredictRequest, launch, on, models)
    opened = predictor()
    prediction = predict_one(opened, asked)
    answer = explained(opened, prediction, method, target, seeds)  # type: ignore[arg-type]
    if output is not None and wanted is not None:
        inputs.write(output, drawn(answer, prediction, wanted, chart))  # type: ignore[arg-type]
    elif as_json:
        print_json(answer)
    else:
        title = Title(chart_of(answer, prediction).title)
        render([title, *report(answer, prediction, rows), Warnings(prediction.warnings)])


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
