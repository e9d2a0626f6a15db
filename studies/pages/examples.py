"""The examples of the page, solved again over HTTP, into ``app/demo/solved``.

python -m studies examples    after a change of an answer; a test compares
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import httpx

from studies import parser_of
from wattcast.app.demo import FOLDER, examples, request_of
from wattcast.app.server import serve
from wattcast.app.settings import Settings

SOLVED = Path(__file__).parents[2] / "app" / "demo" / "solved"

_ROWS = 5000
"""Rows of hotspots that the page asks for: all there are, in kernels of this size."""


def changed(example: dict[str, Any]) -> dict[str, Any]:
    """The body of ``POST /compare`` about another example and what its ``mend`` makes of it."""
    asked = request_of(examples()[example["example"]])
    code, gpu = asked["cuda"], asked["gpu"]
    mended = code.replace(*examples()[example["example"]]["mend"][example["mend"]])
    sides = {"old": {"cuda": code}, "new": {"cuda": mended}}
    return {**sides, "launch": asked["launch"], "gpus": [gpu]}


def solve(client: httpx.Client, example: dict[str, Any]) -> dict[str, Any]:
    """What a service answers about an example, without ids: as the page would ask for it.

    Raises httpx.HTTPStatusError where the service refuses, as one that cannot compile CUDA does.
    """

    def data(answer: httpx.Response) -> dict[str, Any]:
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    if "post" in example:
        asked, files = example.get("request") or changed(example), example.get("files", {})
        read = {
            member: (name, FOLDER.joinpath(name).read_bytes()) for member, name in files.items()
        }
        form = {"files": read, "data": {"options": json.dumps(asked)}} if files else {"json": asked}
        answer = data(client.post(example["post"], **form))
        if "id" in answer:
            answer["id"] = None
        return {"request": asked, "prediction": answer} | ({"files": files} if files else {})
    request = request_of(example)
    prediction = data(client.post("/predict", json=request))
    place, asked = f"/predictions/{prediction['id']}", {"prediction_id": prediction["id"]}
    hotspots = data(client.get(f"{place}/hotspots", params={"rows": _ROWS}))
    advice = data(client.get(f"{place}/advice"))
    explanation = data(client.get("/explain", params={**asked, "format": "json"}))
    ptx = data(client.get(f"{place}/request"))["request"]["ptx"]
    for each in (hotspots, advice, explanation):
        each.pop("prediction_id", None)
    return {
        "name": example["file"],
        "mend": example.get("mend", {}),
        "sweep": example.get("sweep", {}),
        "request": request,
        "prediction": {**prediction, "id": None},
        "hotspots": hotspots,
        "advice": advice,
        "explanation": explanation,
        "ptx": ptx,
    }


class _WrittenError(Exception):
    """All is written: ends the service."""


def _write(url: str) -> None:
    SOLVED.mkdir(exist_ok=True)
    with httpx.Client(base_url=url, timeout=60) as client:
        for name, example in examples().items():
            told = solve(client, example)
            text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
            file = SOLVED / f"{name}.json"
            file.write_text(text + "\n", encoding="utf-8")
            print(f"{file.name:<16} {len(text):>7,} bytes")
    raise _WrittenError


def main(arguments: list[str] | None = None) -> int:
    """Write ``solved/NAME.json`` for each; the exit status."""
    parser_of("examples", __doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), host="127.0.0.1", port=0, access_log=False,
                            database_url=None, log_level="error", job_workers=0)  # fmt: skip
        try:
            serve(settings, _write)
        except _WrittenError:
            return 0
    return 1
