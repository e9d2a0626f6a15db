"""Kernels of ours with their launches: the one that ``wattcast serve --demo`` predicts (source, and
the PTX nvcc makes of it), and the examples that the page opens with, solved.

``python -m wattcast.app.demo`` renews ``solved/`` after a change of an answer; a test compares.
"""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

FOLDER = files("wattcast.app.demo")
SOLVED = FOLDER.joinpath("solved")
"""One JSON file for each example."""

_ROWS = 5000
"""Rows of hotspots that the page asks for: all there are, in kernels of this size."""


def examples() -> dict[str, dict[str, Any]]:
    """``examples.toml`` by name."""
    return tomllib.loads(FOLDER.joinpath("examples.toml").read_text(encoding="utf-8"))


def request_of(example: dict[str, Any]) -> dict[str, Any]:
    """The body of ``POST /predict`` that the page sends for it."""
    source = FOLDER.joinpath(example["file"]).read_text(encoding="utf-8")
    language = "ptx" if PurePosixPath(example["file"]).suffix == ".ptx" else "cuda"
    launch = {"gpu": example["gpu"], "launch": example["launch"]}
    return {language: source, **launch, "details": True}


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
