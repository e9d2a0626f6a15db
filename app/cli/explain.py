"""``wattcast explain``: why a launch draws its power or takes its time, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Shown, predictor
from wattcast.predictor.messages import analyze as analyses
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.explain import Explanation, HotspotsAnswer
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.reports import Title, Warnings, members_table

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
) -> Shown[Explanation]:
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
        return Shown(answer, list)
    title, warnings = Title(chart_of(answer, prediction).title), Warnings(prediction.warnings)
    return Shown(answer, lambda: [title, *report(answer, prediction, rows), warnings])


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


# ``wattcast advise``: what to change about a launch.


def advise(
    on: inputs.OnGpu, launch: inputs.KernelOptions, clocks: inputs.ClockOptions, patch: bool = False
) -> Shown[AdviceAnswer]:
    """Suggest changes to a launch and estimate what each saves.

    Args:
        patch: Also change the lines of a .cu file where that is safe and saves energy, as diffs.
    """
    from wattcast.predictor.advise import advise as run

    asked = inputs.request(PredictRequest, launch, on, clocks)
    if patch and asked.cuda is None:
        raise typer.BadParameter("--patch changes lines of CUDA source: give a .cu file")
    answer = run(predictor(), asked, patch=launch.file.name if patch else None)
    return Shown(answer, file=launch.file)


# ``wattcast analyze``: what a launch does.


def analyze(on: inputs.OnGpu, launch: inputs.KernelOptions) -> analyses.AnalyzeAnswer:
    """Show what a launch does: loops, memory, occupancy, hot lines."""
    return inputs.ask(analyses.AnalyzeRequest, launch, on)


# ``wattcast features`` and ``wattcast schemas``: what a model would see of a launch.


def features(
    on: inputs.OnGpu, launch: inputs.KernelOptions, schema: str = "alavani2023"
) -> analyses.FeaturesAnswer:
    """Print the feature vector that a model sees.

    Args:
        schema: Feature schema; wattcast schemas lists them.
    """
    return inputs.ask(analyses.FeaturesRequest, launch, on, schema=schema)


def schemas() -> Shown[Any]:
    """List the feature schemas and the GPUs each one supports."""
    from wattcast.predictor.catalog import schema_summaries

    found = schema_summaries()
    return Shown(found, lambda: [members_table(found, ("id", "version", "title", "gpus"))])


# ``wattcast hotspots``: where a launch spends its energy.


def hotspots(
    on: inputs.OnGpu,
    launch: inputs.KernelOptions,
    models: inputs.ModelOptions,
    rows: Annotated[int, typer.Option(min=1)] = 12,
    resources: bool = False,
) -> Shown[HotspotsAnswer]:
    """Rank the blocks and lines of a kernel by energy and time.

    Args:
        rows: Rows shown in each ranking.
        resources: Print the cycles that lines take of each unit.
    """
    from wattcast.features.errors import ServiceError
    from wattcast.predictor.hotspots import hotspots_of
    from wattcast.predictor.predict import predict_one

    opened = predictor()
    request = inputs.request(PredictRequest, launch, on, models)
    prediction = predict_one(opened, request)
    if prediction.energy is None:
        raise ServiceError("no-explanation", "the energy of this launch cannot be predicted")
    answer = _with_source(hotspots_of(opened, request, prediction, rows), launch.file)
    report = answer.resources if resources else answer.report
    return Shown(answer, report, file=launch.file)


def _with_source(answer: HotspotsAnswer, file: Path) -> HotspotsAnswer:
    """The caller's own file name, and ``text``, where the line's file can be read: the CUDA source
    itself, or what a file of PTX was compiled from, at its place or beside it."""
    from wattcast.features.cuda.compile import SOURCE_NAME

    own = file.suffix in inputs.CUDA_SUFFIXES
    read: dict[str, list[str]] = {}
    rows = []
    for row in answer.source_lines.rows:
        name = row.file or ""
        if name not in read:
            at = Path(name)
            places = [file] if own and name == SOURCE_NAME else [at, file.parent / at.name]
            read[name] = next((_lines(place) for place in places if place.is_file()), [])
        lines = read[name]
        text = lines[row.line - 1].strip() if 0 < row.line <= len(lines) else None
        named = {"file": file.name} if own and name == SOURCE_NAME else {}
        rows.append(row.model_copy(update={**named, "text": text}))
    ranking = answer.source_lines.model_copy(update={"rows": rows})
    return answer.model_copy(update={"source_lines": ranking})


def _lines(place: Path) -> list[str]:
    try:
        return place.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
