"""The documentation site is built, its links lead somewhere, and its examples do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.examples import DOCS, PAGES, ROOT, has_examples, rendered
from tests.needs import needs_nvrtc, needs_ptxas


class _Page(HTMLParser):
    """What a page links to, what it loads by itself, and the ids it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("link", "script", "img", "iframe", "source"):
            self.loads += [given[name] for name in ("href", "src") if name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, _Page]:
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: what is not logged does not fail a strict build.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {path: _Page(path) for path in folder.rglob("*.html") if path.name != "404.html"}


def _folder(site: dict[Path, _Page]) -> Path:
    return min((path.parent for path in site), key=lambda path: len(path.parts))


def test_every_page_of_the_repository_is_on_the_site(site: dict[Path, _Page]) -> None:
    for source in DOCS.rglob("*.md"):
        name = source.relative_to(DOCS).with_suffix("")
        built = _folder(site) / ("" if str(name) == "index" else name) / "index.html"
        assert built in site, source


def test_every_link_within_the_site_resolves(site: dict[Path, _Page]) -> None:
    broken = [f"{path}: {link}" for path in site for link in _broken(site, path)]
    assert not broken


def _broken(site: dict[Path, _Page], path: Path) -> Iterator[str]:
    for link in (*site[path].links, *site[path].loads):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        known = site.get(target)
        if not target.is_file() or (
            known and parts.fragment and unquote(parts.fragment) not in known.ids
        ):
            yield link


def test_pages_named_in_the_text_are_links(site: dict[Path, _Page]) -> None:
    assert "docs/physical.md" in (DOCS / "power.md").read_text(encoding="utf-8")
    built = (_folder(site) / "power" / "index.html").read_text(encoding="utf-8")
    assert '(<a href="../physical/">physical</a>)' in built
    assert "docs/physical.md" not in built


def test_no_page_loads_anything_from_elsewhere(site: dict[Path, _Page]) -> None:
    loaded = {load for page in site.values() for load in page.loads}
    assert loaded
    assert not [load for load in loaded if urlsplit(load).netloc]
    styles = list(_folder(site).rglob("*.css"))
    assert styles
    for style in styles:
        text = style.read_text(encoding="utf-8")
        assert "url(http" not in text, style
        assert "@import" not in text, style


@needs_nvrtc
@needs_ptxas
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem == "fleet" else ())
        for page in PAGES
        if has_examples(page)
    ],
    ids=lambda page: page.stem,
)
def test_examples_print_what_the_page_shows(page: Path) -> None:
    told = "python -m tests.docs.examples writes the outputs anew"
    assert rendered(page) == page.read_text(encoding="utf-8"), told


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_pages_on_tasks_are_below_120_lines(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) < 120
