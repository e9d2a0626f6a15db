"""What every command needs to answer: the services, a console, tables, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import typer
from pydantic_core import to_json

from wattcast.app import progress, settings
from wattcast.app.cli.exits import Exit
from wattcast.predictor import messages, reports

if TYPE_CHECKING:
    from rich.console import Console
    from sqlalchemy.engine import Engine

    from wattcast.app.services import Services
    from wattcast.predictor import Predictor

_PIPED_WIDTH = 240
"""Columns when nobody looks: a line that is cut or folded cannot be searched."""


def console() -> Console:
    """Standard output for people."""
    from rich.console import Console  # here: JSON needs none of it

    progress.clear()
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def predictor(*, registry: bool = True) -> Predictor:
    """A predictor that keeps nothing; ``registry``: by promoted models, where any are.

    Nothing is asked of the registry before a model is needed.
    """
    from wattcast.app.services.models.standalone import standalone_predictor

    return standalone_predictor(settings.Settings(), registry=registry)


@contextmanager
def database() -> Iterator[Engine]:
    """The database that the settings name, migrated if need be."""
    from wattcast.app.store.database import open_database

    engine = open_database(settings.Settings().sqlalchemy_url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def services() -> Iterator[Services]:
    """What the service has, on that database."""
    from wattcast.app.services import Services
    from wattcast.app.store.repositories import Repositories

    with database() as engine:
        yield Services(settings.Settings(), data=Repositories(engine))


def print_json(value: Any) -> None:
    """An answer as HTTP gives it, indented; NaN and infinities become ``null``."""
    progress.clear()
    text = value.json_bytes() if isinstance(value, messages.Answer) else None
    print(json.dumps(json.loads(text or to_json(value, inf_nan_mode="null")), indent=2))


Kind = TypeVar("Kind")


class Shown(NamedTuple, Generic[Kind]):
    """An answer with another report than its own, what is done after it is shown, and the exit
    status that it ends with."""

    answer: Kind
    report: Callable[[], reports.Report] | None = None
    status: Exit = Exit.DONE
    then: Callable[[], None] | None = None
    file: Path | None = None
    """What its places are in."""


def told(answer: Kind, *lines: str, status: Exit = Exit.DONE) -> Shown[Kind]:
    """An answer that people get as lines."""
    return Shown(answer, lambda: [*map(reports.Line, lines)], status)


def forms_of(answer: Any) -> list[str]:
    """How an answer of this type can be printed beside its report."""
    if answer is None:
        return []
    from wattcast.predictor.reports.brief import briefs

    short = {each.__name__ for each in briefs(answer)}
    sarif = ["sarif"] if short & {"BriefAdviceAnswer", "BriefHotspotsAnswer"} else []
    return [*(["brief"] if short else ()), *sarif, "as_json"]


def show(answer: Any, as_json: bool, brief: bool = False, sarif: bool = False) -> None:
    """An answer as JSON, also in ``brief`` or as SARIF, or its report for people."""
    shown = answer if isinstance(answer, Shown) else Shown(answer)
    if sarif and shown.file is not None:
        from wattcast.app.settings import installed_version
        from wattcast.predictor.reports.sarif import sarif as located

        progress.clear()
        print(located(shown.answer, shown.file.as_posix(), installed_version()).decode())
    elif brief:
        from wattcast.predictor.reports.brief import brief as shortened

        progress.clear()
        print(shortened(shown.answer).decode())
    elif as_json:
        print_json(shown.answer)
    else:
        render((shown.report or shown.answer.report)())
    if shown.then is not None:
        shown.then()
    if shown.status is not Exit.DONE:
        raise typer.Exit(shown.status)


def render(report: reports.Report, out: Console | None = None) -> None:
    """A report on the terminal, written at once: a reader of the first lines alone (``| head``)
    leaves the command its status. Nothing in it is markup."""
    with out or console() as out:
        _render(report, out)


def _render(report: reports.Report, out: Console) -> None:
    from rich.text import Text

    for block in report:
        match block:
            case reports.Title(name, rest):
                out.print(Text.assemble((name, "bold"), " ", rest))
            case reports.Line(text, style):
                out.print(Text(text, {"urgent": "yellow", "bold": "bold"}.get(style, "")))
            case reports.Quantities():
                _table(out, reports.quantity_table(block))
            case reports.Table():
                _table(out, block)
            case reports.Shares():
                line(out, reports.shares_line(block))
            case reports.Folded(title, lines, most, note):
                for each in lines[:most]:
                    line(out, f"{title} {each}")
                if more := len(lines[most:]):
                    line(out, f"and {more} more (--json shows all)")
                if lines and note:
                    line(out, note)
            case reports.Code(title, code):
                line(out, f"{title}:")
                for each in code.splitlines():
                    line(out, f"    {each}")
            case reports.Warnings(listed):
                for each in listed:
                    out.print(Text.assemble(("warning ", "yellow"), reports.warning_of(each)))
            case reports.Picture():
                pass


def _table(out: Console, table: reports.Table) -> None:
    from rich.table import Table
    from rich.text import Text

    if not table.rows:
        return
    if table.title:
        out.print()
        out.print(Text(table.title, "bold"))
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.show_header = any(column.heading for column in table.columns)
    for column in table.columns:
        justify: Literal["left", "right"] = "right" if column.figures else "left"
        shown.add_column(Text(column.heading), justify=justify, overflow="fold")
    for row in table.cells():
        shown.add_row(*map(Text, row))
    out.print(shown)
    if table.hidden:
        line(out, f"and {table.hidden} more (--json shows all)")


def line(out: Console, text: str) -> None:
    """One line as it stands: nothing in it is markup or coloured."""
    out.print(text, highlight=False, markup=False)
