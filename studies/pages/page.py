"""A report as a page: sections of text, tables and figures, written as Markdown and as HTML.

One page, two files: ``NAME.md`` with its figures as SVG files beside it, and ``NAME.html`` with
the figures inside, which needs nothing else: no script, no font, no request. Text is Markdown
(no HTML in it: it is shown as written), cells of tables and captions are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from studies.pages.figures import BACKGROUND, INK, Figure
from wattcast.features.errors import WattcastError

STYLE_FILE = Path(__file__).with_name("page.css")

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser that follows it could not load anything, had something slipped in."""


class ReportError(WattcastError):
    """A report that cannot be written; ``folder`` says where."""

    slug = "report"


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


Block = str | Table | Figure
"""What a section is made of; a string is Markdown text."""


@dataclass(frozen=True, slots=True)
class Section:
    """A title over blocks."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Page:
    """A report. ``name`` names its files; ``lead`` is Markdown under the title."""

    name: str
    title: str
    lead: str
    sections: Sequence[Section]

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure, in order."""
        return tuple(
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, Figure)
        )


def write_page(page: Page, folder: Path) -> tuple[Path, ...]:
    """Write both files and the figures into a folder, which is made; the paths, pages first.

    Raises ReportError where the folder cannot be written.
    """
    texts = {
        f"{page.name}.html": to_html(page),
        f"{page.name}.md": to_markdown(page),
        **{f"{figure.name}.svg": figure.svg for figure in page.figures},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ReportError(
            f"{folder} cannot be written: {error.strerror}", folder=str(folder)
        ) from error
    return tuple(folder / name for name in texts)


# --- Markdown ---------------------------------------------------------------------------------


def to_markdown(page: Page) -> str:
    """The page as Markdown (GitHub's, for the tables); figures are files beside it."""
    parts = [f"# {_plain(page.title)}", page.lead.strip()]
    for section in page.sections:
        parts += [f"## {_plain(section.title)}", *map(_block_markdown, section.blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block_markdown(block: Block) -> str:
    if isinstance(block, Table):
        return "\n\n".join(part for part in (block.caption, _table_markdown(block)) if part)
    if isinstance(block, Figure):
        caption = _plain(block.caption)
        return f"![{caption}]({block.name}.svg)\n\n*{caption}*"
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


# --- HTML -------------------------------------------------------------------------------------


def to_html(page: Page) -> str:
    """The page as one HTML file that needs nothing else."""
    markdown = _renderer()
    anchors = [f"section-{number}" for number in range(1, len(page.sections) + 1)]
    contents = "".join(
        f'<li><a href="#{anchor}">{escape(section.title)}</a></li>'
        for anchor, section in zip(anchors, page.sections, strict=True)
    )
    sections = "".join(
        f'<section id="{anchor}">\n<h2>{escape(section.title)}</h2>\n'
        f"{''.join(_block_html(block, markdown) for block in section.blocks)}</section>\n"
        for anchor, section in zip(anchors, page.sections, strict=True)
    )
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n"
        f"<style>\n{STYLE_FILE.read_text('utf-8')}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(page.title)}</h1>\n{markdown.render(page.lead)}"
        f"<nav><ol>{contents}</ol></nav>\n{sections}</main>\n</body>\n</html>\n"
    )


def _renderer() -> MarkdownIt:
    """Markdown as GitHub reads it, but HTML in it is shown; tables scroll where they are wide."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.add_render_rule("table_open", lambda *_: '<div class="wide">\n<table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    return markdown


def _block_html(block: Block, markdown: MarkdownIt) -> str:
    if isinstance(block, Table):
        return str(markdown.render(_block_markdown(block)))
    if isinstance(block, Figure):
        return (
            f'<figure>\n<div class="wide">{inline_svg(block)}</div>\n'
            f"<figcaption>{escape(block.caption)}</figcaption>\n</figure>\n"
        )
    return str(markdown.render(block))


def inline_svg(figure: Figure) -> str:
    """A figure as an element of an HTML page: its ids its own, its ink the page's.

    The file is black on white, wherever it is shown; inside the page the ink becomes the colour
    of the text and the background nothing, so that one figure serves light and dark.
    """
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", figure.svg, flags=re.DOTALL)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{figure.name}-\1"', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{figure.name}-", svg)
    svg = svg.replace(INK, "currentColor").replace(BACKGROUND, "none")
    label = escape(figure.caption)
    # Width and height as the file has them would not shrink with the page; viewBox does.
    return re.sub(
        r'^<svg\b(.*?) width="([\d.]+)pt" height="[\d.]+pt"',
        rf'<svg role="img" aria-label="{label}" style="max-width: \2pt"\1',
        re.sub(r"\s+", " ", svg[: svg.index(">")]) + svg[svg.index(">") :],
        count=1,
        flags=re.DOTALL,
    ).strip()
