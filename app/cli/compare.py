"""``wattcast diff``: what a change of code changes; fails where it costs more than allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.exits import Exit
from wattcast.app.cli.output import console, line, plain_table, predictor, print_json, warnings
from wattcast.models.estimate import quantity

NOTHING = 1e-6
"""Share of the energy below which a change is rounding and not shown."""

_PERCENT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*%?\s*")

Percent = Annotated[
    str | None, typer.Option(help="Largest change allowed: +5%; -2% asks for a saving of 2 %.")
]


@inputs.with_options
def diff(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="PTX or CUDA source before the change.")
    ],
    new: Annotated[
        Path,
        typer.Argument(
            metavar="NEW", help="PTX or CUDA source after it; - reads PTX from standard input."
        ),
    ],
    gpu: inputs.Gpus,
    launch: inputs.LaunchOptions,
    max_energy: Percent = None,
    max_time: Percent = None,
    max_power: Percent = None,
    *,
    models: inputs.PhysicalOptions,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown for a pull request.")
    ] = False,
    as_json: inputs.AsJson = False,
) -> None:
    """Compare old and new code; exit with 3 if a limit is exceeded."""
    from wattcast.predictor.compare import compare
    from wattcast.predictor.messages.compare import CompareRequest

    if str(old) == str(new) == "-":
        inputs.fail("only one of OLD and NEW can be standard input")
    body: dict[str, Any] = {
        "old": {**launch.request(old), "time_model": models.time_model},
        "new": {**launch.request(new), "time_model": models.time_model},
        "gpus": gpu,
        **models.operating(),
        "model": models.model,
        "board": models.board,
        "limits": {
            "max_energy_percent": _percent("--max-energy", max_energy),
            "max_time_percent": _percent("--max-time", max_time),
            "max_power_percent": _percent("--max-power", max_power),
        },
    }
    answer = compare(predictor(), CompareRequest.model_validate(body))
    if as_json:
        print_json(answer)
    elif markdown:
        print(answer["markdown"], end="")
    else:
        _report(answer)
    if not answer["passed"]:
        raise typer.Exit(Exit.EXCEEDED)


def _percent(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = _PERCENT.fullmatch(text)
    if found is None:
        inputs.fail(f"{option} {text!r}: expected a percentage, as in +5% or -2%")
    return float(found[1])


def _report(answer: dict[str, Any]) -> None:
    table = plain_table("kernel", "GPU", "energy", "", "time", "", "power", "", "")
    for each in answer["comparisons"]:
        cells = [Text(each["new"]["kernel"]["demangled"]), Text(each["gpu"])]
        for name, unit, symbol in (
            ("energy", "joules", "J"), ("time", "seconds", "s"), ("power", "watts", "W"),
        ):  # fmt: skip
            before, after = each["old"][name][unit], each["new"][name][unit]
            cells.append(Text(f"{quantity(before, symbol)} -> {quantity(after, symbol)}"))
            cells.append(Text(f"{each['change'][f'{name}_percent']:+.1f} %"))
        broken = ", ".join(name.replace("_", " ") for name in each["exceeded"])
        table.add_row(*cells, Text(f"breaks {broken}" if broken else "", "red"))
    out = console()
    out.print(table)
    for each in answer["comparisons"]:
        largest = [
            f"{name} {quantity(joules, 'J') if joules < 0 else '+' + quantity(joules, 'J')}"
            for name, joules in list((each["components"] or {}).items())[:4]
            if abs(joules) > NOTHING * each["old"]["energy"]["joules"]
        ]
        if largest:
            told = f"{each['gpu']}, {each['new']['kernel']['demangled']}: {', '.join(largest)}"
            line(out, told)
    for what in ("added", "removed"):
        for kernel in answer[what]:
            line(out, f"{what}: {kernel['demangled']}")
    warnings(out, answer["warnings"])
