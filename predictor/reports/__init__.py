"""What people see of an answer, described once: headings, lines, quantities, tables.

A report is a sequence of blocks. The command line prints them (``app/cli/output.py``), ``html``
makes cards of notebooks and pages of them, ``text`` plain text, ``markdown`` and
``comma_separated`` single tables. Text is escaped where it is written: names from kernels are
never markup or formulas.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattcast.features.checked import harmless
from wattcast.features.errors import MissingExtraError
from wattcast.models.intervals import quantity

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 40
"""Rows of a table and folded lines that are shown, unless a block says otherwise."""

UNITS = {"watts": "W", "seconds": "s", "joules": "J"}
"""Symbol by the member that holds a quantity."""

PALETTE = (
    *("#4e79a7", "#d9730d", "#c0504d", "#3c9a8f", "#59a14f", "#b8860b", "#a56ca0"),
    *("#d1607a", "#9c755f", "#808080"),
)
"""Each differs from white and from black by more than 3 : 1 (WCAG 2.2, 1.4.11)."""


# --- blocks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Title:
    """What the report is about: a kernel, and where it runs."""

    name: str
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text. ``style``: ``faint``, ``bold`` or ``urgent``."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Quantities:
    """Predictions with their intervals; ``None`` where nothing was predicted."""

    named: Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a whole, in its unit."""

    title: str
    parts: Mapping[str, float]
    unit: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and the text of a row's cell. ``figures`` stand right."""

    heading: str
    cell: Callable[[Any], str]
    figures: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns, the first ``most`` of them."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    most: int = MOST_ROWS
    more: int = 0
    """Rows that are counted, but not here."""

    def cells(self) -> list[list[str]]:
        """Text of the rows that are shown."""
        return [[column.cell(row) for column in self.columns] for row in self.rows[: self.most]]

    @property
    def hidden(self) -> int:
        """How many rows are not shown."""
        return max(0, len(self.rows) - self.most) + self.more


@dataclass(frozen=True, slots=True)
class Folded:
    """Lines of which the first ``most`` are printed; a page opens them with a click."""

    title: str
    lines: Sequence[str]
    most: int = 8
    note: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Source code under a title."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Warnings:
    """Warnings of an answer (``messages.WarningLine``)."""

    listed: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing: an SVG element, made here from numbers and escaped text. Pages alone show it."""

    svg: str


Block = Title | Line | Quantities | Shares | Table | Folded | Code | Warnings | Picture
Report = Sequence[Block]


# --- formats ---------------------------------------------------------------------------------


def value_of(part: Any) -> str:
    """A quantity with its unit: 1.2 mJ."""
    name = unit_of(part)
    return quantity(getattr(part, name), UNITS[name])


def unit_of(part: Any) -> str:
    """The member that holds the quantity."""
    return next(name for name in UNITS if hasattr(part, name))


def interval_of(part: Any) -> str:
    """Both ends of a quantity: 1.1 mJ .. 1.4 mJ."""
    unit = UNITS[unit_of(part)]
    return f"{quantity(part.low, unit)} .. {quantity(part.high, unit)}"


def figures(of: Any) -> list[str]:
    """Time, power and energy of an answer, a point or one side of a comparison."""
    return [value_of(part) for part in (of.time, of.power, of.energy)]


def costs() -> list[Column]:
    """Time, power and energy as columns."""
    return [
        Column(name, lambda row, name=name: _value(getattr(row, name)), figures=True)  # type: ignore[misc]
        for name in ("time", "power", "energy")
    ]


def _value(part: Any) -> str:
    return "-" if part is None else value_of(part)


def amount(heading: str, member: str, unit: str) -> Column:
    """A column of one member with its unit; ``-`` where it is not known."""

    def cell(row: Any) -> str:
        value = getattr(row, member)
        return "-" if value is None else quantity(value, unit)

    return Column(heading, cell, figures=True)


def count(heading: str, member: str) -> Column:
    """A column of whole numbers."""
    return Column(heading, lambda row: f"{getattr(row, member):,}", figures=True)


def share(heading: str, member: str) -> Column:
    """A column of shares in percent."""
    return Column(heading, lambda row: f"{getattr(row, member):.1%}", figures=True)


def word(heading: str, member: str) -> Column:
    """A column of one member as it is."""
    return Column(heading, lambda row: cell_of(getattr(row, member)))


def members_table(rows: Sequence[Any], names: Iterable[str], most: int | None = None) -> Table:
    """A plain table of some members of each row, all rows unless ``most`` says otherwise."""
    shown = [
        Column(words(name), lambda row, name=name: cell_of(row[name]))  # type: ignore[misc]
        for name in names
    ]
    return Table(shown, rows, most=most or len(rows))


def cell_of(value: Any) -> str:
    """A value for people: ``-`` for none, six digits of a number."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def dims(sizes: Sequence[int]) -> str:
    """``256x16``; trailing ones are left out."""
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(str(size) for size in kept)


def percent(change: float) -> str:
    """A change with its sign; none is +0.0 %."""
    return f"{round(change, 1) + 0.0:+.1f} %"


def saved(point: Any) -> str:
    """What a point costs over the reference: +1.0 % time, -8.0 % energy."""
    time = getattr(point, "time_penalty_percent", None)
    if time is None:
        time = -point.time_saved_percent
    return f"{percent(time)} time, {percent(-point.energy_saved_percent)} energy"


def short(text: str, most: int = 120) -> str:
    """The text without tabs, cut where it is longer than a line of a terminal holds."""
    text = text.expandtabs()
    return text if len(text) <= most else f"{text[: most - 3]}..."


def words(name: str) -> str:
    """A member's name for people."""
    return name.replace("_", " ")


def megahertz(pair: Any, *, unit: bool = True) -> str:
    """A pair of clocks: 1164/3505 MHz."""
    return f"{pair.core_mhz:g}/{pair.memory_mhz:g}" + (" MHz" if unit else "")


def warning_of(each: Any) -> str:
    """A warning as one line, with its place in the code."""
    where = ""
    if each.source_line is not None:
        where = f" (source line {each.source_line})"
    elif each.line is not None:
        where = f" (PTX line {each.line})"
    return f"{each.code}: {each.detail}{where}"


# --- tables as text --------------------------------------------------------------------------


def text(report: Report) -> str:
    """The report as plain text, columns aligned."""
    lines: list[str] = []
    for block in report:
        match block:
            case Title(name, rest):
                lines.append(f"{name} {rest}".rstrip())
            case Line(told):
                lines.append(told)
            case Quantities() | Table():
                lines += _aligned(block if isinstance(block, Table) else quantity_table(block))
            case Shares():
                lines += [shares_line(block)] if block.parts else []
            case Folded(title, folded, most, note):
                lines += [f"{title}: {each}" for each in folded[:most]] + [note] * bool(note)
            case Code(title, code):
                lines += [f"{title}:", *(f"  {each}" for each in code.splitlines())]
            case Warnings(listed):
                lines += [f"warning {warning_of(each)}" for each in listed]
            case Picture():
                pass
    return "\n".join(lines)


def _aligned(table: Table) -> list[str]:
    rows = [[column.heading for column in table.columns], *table.cells()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if column.figures else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in rows
    ]
    more = [f"and {table.hidden} more"] if table.hidden else []
    return [*([table.title] if table.title else []), *lines, *more]


def quantity_table(block: Quantities) -> Table:
    """Predictions as a table: value, interval, level and basis."""

    def told(of: Callable[[Any], str], otherwise: str = "") -> Callable[[tuple[str, Any]], str]:
        return lambda row: otherwise if row[1] is None else of(row[1])

    columns = [
        Column("", lambda row: row[0]),
        Column("prediction", told(value_of, "none")),
        Column("interval", told(interval_of)),
        Column("level", told(lambda part: f"{part.level:.0%}")),
        Column("basis", told(lambda part: words(part.basis))),
    ]
    return Table(columns, block.named)


def shares_line(block: Shares) -> str:
    """Parts of a whole in one line."""
    parts = ", ".join(
        f"{name} {part:.1f} {block.unit}" for name, part in block.parts.items() if part >= 0.05
    )
    return f"{block.title}: {parts}"


def comma_separated(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV that no spreadsheet executes: text that begins like a formula gets a quote before it."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        texts = {name: harmless(cell) for name, cell in row.items() if isinstance(cell, str)}
        writer.writerow({**row, **texts})
    return out.getvalue()


def markdown(table: Table) -> str:
    """The table in Markdown; cells are written so that none becomes markup."""
    rules = ("---:" if column.figures else "---" for column in table.columns)
    lines = [
        "| " + " | ".join(column.heading for column in table.columns) + " |",
        "|" + "|".join(rules) + "|",
        *("| " + " | ".join(row) + " |" for row in table.cells()),
    ]
    return "\n".join(lines)


def markdown_name(name: str) -> str:
    """A name as HTML text: neither pipes nor backticks nor tags of it mean anything."""
    letters = (
        each if each.isalnum() or each in " _,:()" else f"&#{ord(each)};"
        for each in name[:200]
        if each.isprintable()
    )
    return f"<code>{''.join(letters)}</code>"


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of nested data as a pandas table. Raises MissingExtraError without pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("pandas", "notebook") from error
    return pd.DataFrame([_flat(row) for row in rows])


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Nested members as columns: a quantity with its unit, a kernel by name, a shape as text."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            unit = next((unit for unit in UNITS if unit in value), None)
            if unit is not None and "low" in value:
                columns[f"{name}_{unit}"] = value[unit]
                columns |= {f"{name}_{end}_{unit}": value[end] for end in ("low", "high")}
                columns |= {f"{name}_{member}": value[member] for member in ("level", "basis")}
            elif "demangled" in value:
                columns[name] = value["demangled"]
            else:
                columns |= {f"{name}_{key}": part for key, part in _flat(value).items()}
        elif name in ("grid", "block") and isinstance(value, Sequence):
            columns[name] = dims(value)
        else:
            columns[name] = value
    return columns
