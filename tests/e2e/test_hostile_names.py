"""Names that others give, in everything that is exported: in a browser nothing of them runs and
nothing is loaded, and no spreadsheet computes them."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import markdown
import pytest
from playwright.sync_api import Browser

import wattcast
from tests.app.conftest import settings_at
from tests.app.live import running
from tests.e2e.browser import PATIENCE_MILLISECONDS, needs_chromium
from wattcast.predictor.reports import markdown_name

NAMES = (
    "<script>document.title='ran'</script>",
    '"><img src=http://evil.example/x onerror="document.title=\'ran\'">',
    "<svg/onload=document.title='ran'>",
    "</style></title><script src=http://evil.example/x.js></script>",
    "<iframe srcdoc=\"<script>top.document.title='ran'</script>\">",
    "<a href=javascript:document.title='ran' autofocus onfocus=document.title='ran'>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<style>body{background:url(http://evil.example/x)}</style>",
    "![x](http://evil.example/x.png) [y](javascript:alert(1)) `|` **b**",
    "{{7*7}} ${7*7} <%= 7*7 %>",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe",
    'a\nb,c"d',
)


def events(name: str, at: int) -> list[dict[str, object]]:
    """A launch called so, below an operator and a step called so, on a stream called so."""
    launch = {"grid": [64, 1, 1], "block": [64, 1, 1], "correlation": at, "stream": name}
    return [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 20 * at, "dur": 9, "args": launch},
        {"ph": "X", "cat": "cuda_runtime", "name": "c", "ts": 20 * at + 2, "dur": 1, "tid": 1,
         "args": {"correlation": at}},
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": 20 * at, "dur": 19, "tid": 1},
    ]  # fmt: skip


def trace() -> bytes:
    listed = [one for at, name in enumerate(NAMES, 1) for one in events(name, at)]
    board = [{"id": 0, "name": NAMES[0], "numSms": 80}]
    return json.dumps({"deviceProperties": board, "traceEvents": listed}).encode()


def code() -> bytes:
    """PTX in files whose names are formulas."""
    ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("=1+1.ptx", ptx)
        packed.writestr("<b>.ptx", ptx.replace("entry k", "entry j"))
    return out.getvalue()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running(settings_at(tmp_path_factory.mktemp("home"))) as opened:
        yield opened


def exported(client: httpx.Client, form: str) -> str:
    launch = [{**events("k", 40)[0], "name": "k"}]
    both = json.loads(trace())
    both["traceEvents"] += launch
    answer = client.post(
        f"/applications?format={form}",
        files={"file": ("<b>=1.json", json.dumps(both).encode()), "code": ("=c.zip", code())},
        data={"options": json.dumps({"gpu": "v100"})},
    )
    assert answer.status_code == 200, answer.text[:500]
    return answer.text


def test_no_spreadsheet_computes_a_name(client: httpx.Client) -> None:
    rows = list(csv.reader(io.StringIO(exported(client, "csv"), newline="")))
    names = {row[0] for row in rows}
    assert {"'=cmd|' /C calc'!A0", "'+1+1", "'-2+3", "'@SUM(1)"} <= names
    assert any("=1+1.ptx" in cell for row in rows for cell in row)
    for row in rows:
        for cell in row:
            if cell.lstrip()[:1] in ("=", "+", "-", "@"):
                float(cell)  # a number, none of a name


def rendered(client: httpx.Client, form: str, folder: Path) -> str:
    if form == "report":
        return exported(client, "html")
    if form == "markdown":
        rows = "\n".join(f"| {markdown_name(name)} | 1 |" for name in NAMES)
        text = f"| kernel | J |\n|---|---|\n{rows}\n"
        return f"<title>x</title>{markdown.markdown(text, extensions=['tables'])}"
    (folder / "trace.json").write_bytes(trace())
    answer = wattcast.application(folder / "trace.json", gpu="v100")
    return f"<title>x</title>{answer._repr_html_()}"


@needs_chromium
@pytest.mark.parametrize("form", ["report", "notebook", "markdown"])
def test_nothing_of_a_name_runs_or_loads(
    form: str, client: httpx.Client, browser: Browser, tmp_path: Path
) -> None:
    """As a file of its own, without the policy that the service sends with a report."""
    file = tmp_path / "export.html"
    file.write_text(rendered(client, form, tmp_path), encoding="utf-8")
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    asked: list[str] = []
    dialogs: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.goto(file.as_uri())
    page.wait_for_timeout(500)
    assert asked == [file.as_uri()]
    assert dialogs == []
    assert "ran" not in page.title()
    active = "script, iframe, img, link:not([href='data:,']), [onload], [onerror], [onfocus]"
    found = page.evaluate(f"[...document.querySelectorAll(`{active}`)].map(e => e.outerHTML)")
    assert found == []
    shown = page.inner_text("body")
    assert "<script>" in shown
    assert "javascript:" in shown
    page.close()
