"""The page's files, and the calls that only it needs so far."""

from __future__ import annotations

import gzip
import json
import re
from importlib.resources import files
from typing import Any

import httpx
import pytest

from tests.app.test_problems import json_of
from wattcast.app.api.pages import assets, bundle

DATA = re.compile(r'<script type="application/json" id="transpose.json">([^<]*)</script>')
"""What the page holds and no browser runs (HTML standard, data blocks)."""


@pytest.fixture(scope="module")
def html(client: httpx.Client) -> str:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def loaded(html: str) -> list[str]:
    return re.findall(r'(?:src|href)="(/static/[^"]+)"', html)


def predicted(client: httpx.Client, ptx: str, **more: object) -> dict[str, Any]:
    body = {"ptx": ptx, "gpu": "v100", "launch": {"grid": [64], "block": [128]}, **more}
    return json_of(client.post("/predict", json=body))


def test_its_policy_lets_nothing_inline_and_nothing_from_elsewhere(
    client: httpx.Client, html: str
) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    bare = DATA.sub("", html)
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son\w+=|https?://", bare)


def test_every_file_it_names_is_there_and_kept_for_good(client: httpx.Client, html: str) -> None:
    paths = loaded(html)
    assert {path.rpartition("/")[2] for path in paths} >= {"main.js", "codemirror.js", "page.css"}
    for path in [*paths, paths[0].rpartition("/")[0] + "/plotly.js"]:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "immutable" in answer.headers["cache-control"]
        assert (
            client.get(path, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
        )


def test_the_example_comes_along_where_nothing_else_is_asked_for(
    client: httpx.Client, html: str
) -> None:
    (solved,) = DATA.findall(html)
    assert json.loads(solved) == client.get("/static/x/transpose.json").json()
    assert "transpose.json" not in client.get("/", params={"prediction": "x"}).text


def test_what_changes_is_asked_for_again(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.headers["cache-control"] == "no-cache"
    assert client.get("/", headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    older = client.get("/static/0123456789abcdef/main.js")
    assert older.status_code == 200
    assert older.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/swagger-ui.css", "/static/x/page.css"])
def test_not_modified_leaves_the_policy_of_the_page(client: httpx.Client, path: str) -> None:
    """Its headers replace those that the browser stored."""
    whole = client.get(path)
    again = client.get(path, headers={"If-None-Match": whole.headers["etag"]})
    assert (whole.status_code, again.status_code) == (200, 304)
    assert "script-src 'self'" in whole.headers["content-security-policy"]
    for name in ("content-security-policy", "cache-control", "etag", "vary"):
        assert again.headers.get_list(name) == whole.headers.get_list(name), name


def test_files_are_compressed_for_those_who_can_read_it(client: httpx.Client, html: str) -> None:
    path = next(path for path in loaded(html) if path.endswith("main.js"))
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as zipped:
        assert zipped.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(zipped.iter_raw())) == plain.content


@pytest.mark.parametrize("name", ["nothing.js", "..", "%2e%2e%2fmain.py", "page.html.j2"])
def test_nothing_else_is_served(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/static/x/{name}")
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/not-found"


def test_the_page_loads_one_script_of_all_its_modules() -> None:
    made = bundle("a", {
        "a": 'import {\n  one as two, three,\n} from "./b.js";\nimport * as c from "./c.js";\n'
             "export const four = two;\n",
        "b": "export function one() {}\nexport class three {}\nexport async function five() {}\n",
    })  # fmt: skip
    assert made == (
        "const $b = (() => {\nfunction one() {}\nclass three {}\nasync function five() {}\n\n"
        'return { one, three, five };\n})();\nimport * as $c from "./c.js";\nconst $a = (() => {\n'
        "const {\n  one: two, three,\n} = $b;\nconst c = $c;\nconst four = two;\n\n"
        "return { four };\n})();"
    )
    script = assets()["main.js"].content.decode()
    assert re.findall(r"^(?:import|export) .*", script, re.MULTILINE) == [
        'import * as $codemirror from "./codemirror.js";'
    ]


def test_no_module_writes_markup() -> None:
    modules = [
        f for f in files("wattcast.app.web").joinpath("static").iterdir() if f.name.endswith(".js")
    ]
    assert modules
    for module in modules:
        text = module.read_text(encoding="utf-8")
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
        assert not found, module.name


def test_predictions_are_listed_newest_first_in_pages(
    client: httpx.Client, vector_add: str
) -> None:
    made = [predicted(client, vector_add, registers_per_thread=20 + i) for i in range(3)]
    wanted = [one["id"] for one in reversed(made)]
    listed: list[dict[str, Any]] = []
    while [one["id"] for one in listed][:1] != wanted[:1]:  # until the last one is written
        listed = client.get("/predictions", params={"limit": 2}).json()
    assert [one["id"] for one in listed] == wanted[:2]
    assert listed[0]["kernel"] == "vector_add"
    assert listed[0]["gpu"] == "tesla-v100"
    assert (listed[0]["grid"], listed[0]["block"]) == ([64], [128])
    assert listed[0]["core_mhz"] == made[-1]["clocks"]["core_mhz"]
    assert listed[0]["joules"] == made[-1]["energy"]["joules"]
    older = client.get("/predictions", params={"limit": 1, "before": listed[-1]["id"]}).json()
    assert [one["id"] for one in older] == wanted[2:]


def test_a_request_can_be_asked_again(client: httpx.Client, vector_add: str) -> None:
    first = predicted(client, vector_add, loops={"default": 8}, registers_per_thread=24)
    asked = client.get(f"/predictions/{first['id']}/request").json()
    assert asked["compiled"] is False
    assert asked["request"]["ptx"] == vector_add
    again = client.post("/predict", json=asked["request"]).json()
    assert {**again, "id": first["id"]} == first
    missing = client.get("/predictions/00000000-0000-0000-0000-000000000000/request")
    assert missing.status_code == 404


def test_measured_work_has_no_code_to_ask_again(client: httpx.Client) -> None:
    work = {"dram_bytes": 1e9, "int_ops": 1e9}
    body = {"work": work, "gpu": "rtx-3080", "launch": {"grid": 64, "block": 256}}
    made = client.post("/predict", json=body).json()
    answer = client.get(f"/predictions/{made['id']}/request")
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/no-explanation"
    listed = client.get("/predictions").json()
    while made["id"] not in {one["id"] for one in listed}:
        listed = client.get("/predictions").json()
    assert next(one for one in listed if one["id"] == made["id"])["kernel"] is None


def test_the_packaged_default_has_a_name(client: httpx.Client, vector_add: str) -> None:
    for gpu in ("tesla-v100", "tesla-k20", "rtx-4090"):
        told = client.get(f"/models/{gpu}/power/registry").json()["default"]
        assert predicted(client, vector_add, gpu=gpu)["model"] == told
    assert client.get("/models/tesla-v100/time/registry").json()["default"] is None


def check(client: httpx.Client, table: str) -> httpx.Response:
    files = {"file": ("rows.csv", table.encode())}
    return client.post("/measurements/check", files=files, data={"schema": "activity1"})


def test_a_check_tells_what_an_upload_would_and_stores_nothing(client: httpx.Client) -> None:
    before = client.get("/measurements").json()
    found = check(client, "gpu,kernel,power_watts\nnone-such,a,50\n")
    assert found.status_code == 200
    assert (found.json()["accepted"], found.json()["rejected"]) == (0, 1)
    assert found.json()["rejections"][0]["row"] == 1
    assert "none-such" in found.json()["rejections"][0]["reason"]
    empty = check(client, "gpu,kernel,power_watts\n")
    assert empty.status_code == 422
    assert empty.json()["type"] == "/problems/data"
    assert client.get("/measurements").json() == before
