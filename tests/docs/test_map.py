"""README, CONTRIBUTING and the package's docstring name the files and folders that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import wattcast
from tests import conftest

ROOT = Path(__file__).parents[2]


def _section(page: str, heading: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_path_of_the_map_exists():
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", _section("CONTRIBUTING.md", "Where to look"), re.M)
    rows = [row for row in rows if not set(row[0]) <= {"-"} and row[0] != "to change"]
    assert len(rows) >= 13
    for change, where in rows:
        paths = re.findall(r"`([\w./-]+)`", where)
        assert paths, change
        for path in paths:
            assert (ROOT / path).exists(), f"{change}: {path}"


def test_the_layout_of_the_readme_is_that_of_the_repository():
    named = set(re.findall(r"^    (\w+)/ ", _section("README.md", "Layout"), re.M))
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    folders = {path.partition("/")[0] for path in tracked if "/" in path}
    assert named == {name for name in folders if not name.startswith(".")}


def test_the_docstring_of_the_package_names_its_folders():
    told = set(re.findall(r"^    wattcast\.(\w+)  ", wattcast.__doc__ or "", re.M))
    assert told == {path.name for path in (ROOT / "wattcast").iterdir() if path.is_symlink()}


def test_what_is_called_quick_is_there() -> None:
    for start in (*conftest.QUICK, *conftest.NOT_QUICK):
        path, _, name = start.partition("::")
        text = (ROOT / path).read_text("utf-8") if path.endswith(".py") else ""
        assert (ROOT / path).exists(), start
        assert not name or f"def {name.split('[')[0]}" in text, start


def test_no_ptx_names_a_folder_of_the_machine_that_made_it():
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for room in ("app", "measure", "studies", "tests")
        for path in (ROOT / room).rglob("*.ptx")
        for name in re.findall(r'^\s*\.file\s+\d+\s+"(/[^"]*)"', path.read_text("utf-8"), re.M)
    ]
    assert found == []
