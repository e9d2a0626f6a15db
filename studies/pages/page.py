"""Studies as Markdown: sections of text and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Titles over rows of plain text; ``caption`` is a line of Markdown above it, or empty."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.titles):
                raise ValueError(f"{len(row)} cells under {len(self.titles)} titles: {row}")


Block = str | Table
"""What a section is made of; a string is Markdown text."""


@dataclass(frozen=True, slots=True)
class Section:
    """A title over blocks."""

    title: str
    blocks: Sequence[Block]


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """A page as Markdown (GitHub's, for the tables)."""
    parts = [f"# {_plain(title)}"]
    for section in sections:
        parts += [f"## {_plain(section.title)}", *map(_block_markdown, section.blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block_markdown(block: Block) -> str:
    if isinstance(block, Table):
        return "\n\n".join(part for part in (block.caption, _table_markdown(block)) if part)
    return block.strip()


def _table_markdown(table: Table) -> str:
    columns = [[row[at] for row in table.rows] for at in range(len(table.titles))]
    rules = ["---:" if _holds_numbers(column) else "---" for column in columns]
    rows = [[_plain(cell) for cell in row] for row in (table.titles, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rules, *rows[1:]))


def _holds_numbers(cells: Sequence[str]) -> bool:
    given = [cell for cell in cells if cell not in ("", "-")]
    return bool(given) and all(re.match(r"[-+]?\d", cell) for cell in given)


def _plain(text: str) -> str:
    """Plain text as Markdown that shows it: one line, nothing in it marks anything up."""
    marked = re.sub(r"([\\`*\[\]<>|~&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", marked)
