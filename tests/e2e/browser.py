"""A real browser on a real service; what it must never do is collected and checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
"""Where Debian's package puts it."""

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PATIENCE_MILLISECONDS = 60_000
"""Longest wait for anything to appear, on a machine that is busy with other tests."""

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
"""Colour schemes that a reader may prefer."""

needs_chromium = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM} (apt-get install chromium)"
)


@dataclass
class Watched:
    """A page of a service, and what it did that it should not have."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Collect console errors, exceptions, dialogs, and requests that leave the origin."""
        page = self.page
        page.on(
            "console",
            lambda told: (
                self.complaints.append(told.text) if told.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        page.on("request", self._seen)  # no route: it would switch the browser's cache off

    def _seen(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, path: str = "/") -> None:
        """Go to a path and wait until the page has what it needs."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector("html[data-ready=true]")

    def view(self, name: str) -> None:
        """Go to a view as a reader does: to its place, then unfold it."""
        view = self.page.locator(f"#view-{name}")
        place = "view.closest('[role=tabpanel]')"
        tab = view.evaluate(f"view => {place}.getAttribute('aria-labelledby')")
        self.page.click(f"#{tab}")
        if view.evaluate("view => view.matches('details:not([open])')"):
            view.locator("> summary").click()

    def vector_add(self) -> str:
        """The demonstration's kernel with its launch, in the form: its PTX."""
        ptx = files("wattcast.app.demo").joinpath("vector_add.ptx").read_text(encoding="utf-8")
        file: Any = {"name": "vector_add.ptx", "mimeType": "text/plain", "buffer": ptx.encode()}
        self.view("predict")
        self.page.set_input_files("#source-file", file)
        self.page.wait_for_selector("#source-note:has-text('vector_add.ptx')")
        self.page.fill("#grid", "4096")
        self.page.fill("#block", "256")
        return ptx

    def predict_example(self) -> None:
        """A prediction with all that explains it."""
        self.vector_add()
        self.predict()

    def predict(self) -> None:
        """Press the button and wait for everything that comes of it."""
        with self.page.expect_response("**/predict"):
            self.page.click("#predict")
        self.settled()

    def settled(self) -> None:
        """Wait until what is shown is about the form as it is, with heat on the code."""
        self.page.wait_for_selector("#result[data-state=fresh]")
        self.page.wait_for_selector("#waterfall")
        self.page.wait_for_selector("#hot-list tbody tr", state="attached")

    def number(self, name: str) -> str:
        """The large figure of a card: ``power``, ``time`` or ``energy``."""
        return self.page.inner_text(f"#number-{name} .value")

    def check_access(self, where: str) -> None:
        """No violation of axe's rules that is serious or worse."""
        found = [
            (rule["id"], [node["html"][:200] for node in rule["nodes"][:3]])
            for rule in Axe().run(self.page).response["violations"]
            if rule["impact"] in ("serious", "critical")
        ]
        assert not found, (where, found)

    def check_width(self, where: str) -> None:
        """Nothing sticks out of the window: only tables and code scroll sideways."""
        root = "document.documentElement"
        wide = self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth")
        assert wide <= 0, (where, wide)

    def check_quiet(self) -> None:
        """No console error and no request to elsewhere since the last look."""
        assert not self.foreign, self.foreign
        assert not self.complaints, self.complaints


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser: Browser, client: httpx.Client, **context: Any) -> Iterator[Watched]:
    """A page of the service that ``client`` speaks to, in a session of its own."""
    own = browser.new_context(**context)
    own.set_default_timeout(PATIENCE_MILLISECONDS)
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    try:
        made = Watched(own.new_page(), str(client.base_url).rstrip("/"))
        made.watch()
        yield made
    finally:
        own.close()
