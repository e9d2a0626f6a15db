"""``wattcast hotspots``: where a launch spends its energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wattcast.app.cli import speed
from wattcast.app.cli.inputs import AsJson, KernelOptions, ModelOptions, with_options
from wattcast.app.cli.output import Answer, line, plain_table, predictor, show, warnings
from wattcast.models.estimate import quantity

_STANDING = ("idle", "clock")
"""Components that a line draws for the time it takes, whatever it does."""


@with_options
def hotspots(
    launch: KernelOptions,
    models: ModelOptions,
    rows: Annotated[int, typer.Option(min=1, help="Rows shown in each ranking.")] = 12,
    resources: Annotated[
        bool, typer.Option("--resources", help="Print the cycles that lines take of each unit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rank the blocks and lines of a kernel by energy and time."""
    from wattcast.features.errors import ServiceError
    from wattcast.predictor.hotspots import hotspots_of
    from wattcast.predictor.messages.predict import PredictRequest
    from wattcast.predictor.predict import predict

    opened = predictor()
    request = PredictRequest.model_validate({**launch.body(), **models.request()})
    prediction = predict(opened, request)
    if prediction["energy"] is None:
        raise ServiceError("no-explanation", "the energy of this launch cannot be predicted")
    told = speed.resources if resources else _report
    show(hotspots_of(opened, request, prediction, rows), as_json, told)


def _report(out: Console, answer: Answer) -> None:
    out.print(Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", answer["gpu"]))
    line(
        out,
        f"{quantity(answer['joules'], 'J')} in {quantity(answer['seconds'], 's')}; starting the "
        f"launch {answer['start']['energy_share']:.1%} of the energy",
    )
    columns: dict[str, tuple[str, Callable[[Answer], str]]] = {
        "blocks": ("block", lambda row: f"{row['label'] or row['block']}, from line {row['line']}"),
        "lines": ("PTX line", lambda row: f"{row['line']}: {row['text']}".expandtabs()),
        "source_lines": ("source line", lambda row: f"{row['file']}:{row['line']}"),
    }
    for name, (heading, told) in columns.items():
        ranking = answer[name]
        if not ranking["rows"]:
            continue
        out.print()
        table = plain_table("energy", "time", justify="right")
        for column in ("beside idle", heading):
            table.add_column(column)
        for row in ranking["rows"]:
            table.add_row(
                f"{row['energy_share']:.1%}",
                f"{row['time_share']:.1%}",
                next((name for name in row["components"] if name not in _STANDING), ""),
                Text(told(row)),
            )
        out.print(table)
        if ranking["rest"]["rows"]:
            share = ranking["rest"]["joules"] / answer["joules"]
            line(out, f"and {ranking['rest']['rows']} more, {share:.1%} together")
    warnings(out, answer["warnings"])
