"""What every command needs to answer: the services, a console, tables, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_json
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wattcast.app.cli.progress import clear
from wattcast.app.settings import Settings
from wattcast.models.estimate import quantity

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

_PIPED_WIDTH = 240
"""Columns when nobody looks: a line that is cut or folded cannot be searched."""

Answer = Mapping[str, Any]
"""What HTTP answers, as plain data."""


def console() -> Console:
    """Standard output for people."""
    clear()
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def predictor(*, registry: bool = True) -> Predictor:
    """A predictor that keeps nothing; ``registry``: by promoted models, where any are.

    Nothing is asked of the registry before a model is needed.
    """
    from wattcast.app.services.models.promoted import alone

    return alone(Settings(), registry=registry)


def print_json(value: Any) -> None:
    """An answer as HTTP gives it, indented; NaN and infinities become ``null``."""
    clear()
    print(json.dumps(json.loads(to_json(value, inf_nan_mode="null")), indent=2))


def show(answer: Any, as_json: bool, told: Callable[[Console, Any], None]) -> None:
    """An answer as JSON, or ``told`` to people."""
    if as_json:
        print_json(answer)
    else:
        told(console(), answer)


def plain_table(*headings: str, justify: Literal["left", "right"] = "left") -> Table:
    """A table without lines, with one column for each heading."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify=justify)
    return table


def costs(of: Answer) -> list[str]:
    """Time, power and energy of an answer, a point or one side of a comparison."""
    names = (("time", "seconds", "s"), ("power", "watts", "W"), ("energy", "joules", "J"))
    return [quantity(of[name][unit], symbol) for name, unit, symbol in names]


def line(out: Console, text: str) -> None:
    """One line as it stands: nothing in it is markup or coloured."""
    out.print(text, highlight=False, markup=False)


def warnings(console: Console, found: Iterable[Mapping[str, Any]]) -> None:
    """One line per warning."""
    for warning in found:
        where = ""
        if warning["source_line"] is not None:
            where = f" (source line {warning['source_line']})"
        elif warning["line"] is not None:
            where = f" (line {warning['line']})"
        console.print(
            Text.assemble(("warning ", "yellow"), f"{warning['code']}: {warning['detail']}{where}")
        )


def rows(console: Console, found: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """A plain table of some members of each row."""
    names = list(columns)
    table = plain_table()
    for name in names:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in found:
        table.add_row(*(_cell(row[name]) for name in names))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
