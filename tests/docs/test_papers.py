"""docs/papers.md: every table of the four sources has a row, and what a row names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from studies.__main__ import STUDIES
from studies.papers.thesis.command import PARTS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

TABLES = {
    "thesis": [
        *(f"3.{n}" for n in range(1, 5)), *(f"4.{n}" for n in range(1, 12)),
        *(f"5.{n}" for n in range(1, 13)), "6.1", "6.2", "A.1",
    ],
    "ICPADS": ["I", "II", "III", "IV", "V", "VI"],
    "IPDPS": ["I", "II", "III", "IV", "V", "VI", "VII", "VIII"],
    "Guerreiro": ["1", "2"],
}  # fmt: skip
"""The tables that the texts print."""

SECTIONS = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.M)[1:]
COMMANDS = sorted(set(re.findall(r"`python -m studies ([^`]+)`", PAGE.read_text("utf-8"))))


@pytest.mark.parametrize("source", TABLES)
def test_every_table_has_a_row(source: str) -> None:
    (section,) = [one for one in SECTIONS if source in one.partition("\n")[0]]
    rows = re.findall(r"^\| ([^|]+) \|", section, flags=re.M)
    assert [row for row in rows if row in TABLES[source]] == TABLES[source]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command: str) -> None:
    name, *rest = command.split()
    assert name in STUDIES
    if name == "thesis":
        (part,) = rest
        assert part in PARTS
    for option in (one for one in rest if one.startswith("--")):
        module = STUDIES[name].replace(".", "/")
        assert option in (PAGE.parents[1] / "studies" / f"{module}.py").read_text("utf-8")


def test_every_page_named_exists() -> None:
    pages = re.findall(r"\]\(([\w/]+\.md)\)", PAGE.read_text("utf-8"))
    assert pages
    assert all((PAGE.parent / page).is_file() for page in pages)
