"""Typical mistakes: one line that says what to do, on the command line (in
words and as JSON), over HTTP, in Python and by the tools for agents."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

import wattcast
from tests.app.conftest import Run
from tests.app.test_agents import Agent
from tests.fixtures.ptx_text import stored_ptx
from wattcast.features.errors import WattcastError

DEMO = files("wattcast.app.demo")
ADD = DEMO.joinpath("vector_add.ptx").read_text(encoding="utf-8")
TRANSPOSE = DEMO.joinpath("transpose.cu").read_text(encoding="utf-8")
LAUNCH: dict[str, Any] = {"grid": 4096, "block": 256}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "wrong kernel name": ({"kernel": "vecadd"}, "the PTX holds: vector_add"),
    "missing grid": ({"launch": {"block": 256}}, "grid"),
    "unknown GPU": ({"gpu": "tesla-v100x"}, "did you mean tesla-v100"),
    "typo in an argument's name": (
        {"launch": {**LAUNCH, "arguments": {"m": 5}}},
        "takes: 0 vector_add_param_0",
    ),
    "binary file": ({"ptx": "\x7fELF\x00\xff\xfe"}, "line 1"),
    "empty file": ({"ptx": ""}, "empty"),
}
"""What is wrong in a request, and what the error says of the way out."""

WARNED: dict[str, tuple[dict[str, Any], str]] = {
    "PTX for another board": (
        {"ptx": ADD.replace(".target sm_75", ".target sm_90")},
        "newer_target: the PTX is for sm_90, which tesla-v100 (sm_70) cannot run: compile it for",
    ),
    "forgotten argument": ({}, "argument_assumed: vector_add_param_3 is not given"),
    "2-D block as one number": (
        {"ptx": None, "cuda": TRANSPOSE, "launch": {"grid": [64, 64], "block": 256}},
        "flat_block: the code reads threadIdx.y, but the block has threads along x alone",
    ),
    "grid in threads": (
        {"launch": {"grid": 1 << 20, "block": 256, "arguments": {"3": 1 << 20}}},
        "grid_in_threads: a grid counts blocks: 1,048,576 of 256 threads are 268,435,456 threads, "
        "most of which do nothing: for 1,048,576 elements give 4096 blocks along x",
    ),
}
"""What cannot be refused, since somebody may mean it."""


def request(change: dict[str, Any]) -> dict[str, Any]:
    body = {"ptx": ADD, "gpu": "tesla-v100", "launch": LAUNCH, **change}
    return {name: value for name, value in body.items() if value is not None}


def command(body: dict[str, Any], folder: Path) -> list[str]:
    """The same on the command line."""
    file = folder / ("kernel.cu" if "cuda" in body else "kernel.ptx")
    text = body.get("cuda", body.get("ptx"))
    file.write_bytes(text.encode("latin-1") if "\xff" in text else text.encode())
    given = ["predict", str(file), "--gpu", body["gpu"], "--json"]
    for name in ("grid", "block"):
        value = body["launch"].get(name)
        if value is not None:
            given += [
                f"--{name}",
                "x".join(map(str, value)) if isinstance(value, list) else str(value),
            ]
    given += [
        f"--arg={name}={value}" for name, value in body["launch"].get("arguments", {}).items()
    ]
    return given + (["--kernel", body["kernel"]] if "kernel" in body else [])


@pytest.mark.parametrize("mistake", REFUSED)
def test_it_is_refused_with_the_way_out(
    client: httpx.Client, agent: Agent, run: Run, mistake: str, tmp_path: Path
) -> None:
    change, way_out = REFUSED[mistake]
    body = request(change)
    answer = client.post("/predict", json=body)
    assert answer.status_code == 422
    told = answer.json()
    assert way_out in told["detail"] + json.dumps(told.get("errors", []))
    given = command(body, tmp_path)
    (line,) = run(*given, status=2)[1].splitlines()
    assert way_out in json.loads(line)["detail"]
    given.remove("--json")
    (line,) = run(*given, status=2)[1].splitlines()
    assert line.startswith("wattcast: ")
    assert way_out in line
    refused = agent("predict", **body)
    assert refused.failed
    assert way_out in refused
    code = next(tmp_path.glob("kernel.*"))
    with pytest.raises((WattcastError, ValueError, TypeError), match=way_out.split(":")[0]):
        wattcast.predict(code, gpu=body["gpu"], kernel=body.get("kernel"), **body["launch"])


@pytest.mark.parametrize("mistake", WARNED)
def test_it_is_answered_with_a_warning(
    client: httpx.Client, agent: Agent, run: Run, mistake: str, tmp_path: Path
) -> None:
    change, warning = WARNED[mistake]
    body = request(change)
    code, _, detail = warning.partition(": ")

    def told(warnings: Any) -> bool:
        return any(each["code"] == code and each["detail"].startswith(detail) for each in warnings)

    assert told(client.post("/predict", json=body).json()["warnings"])
    given = command(body, tmp_path)
    assert told(json.loads(run(*given)[0])["warnings"])
    given.remove("--json")
    assert f"warning {warning}" in " ".join(run(*given)[0].split())
    assert told(agent("predict", **body).data["warnings"])
    made = wattcast.predict(body.get("ptx", body.get("cuda")), gpu=body["gpu"], **body["launch"])
    assert told([each.model_dump() for each in made.warnings])


def test_a_board_that_can_run_the_code_is_not_warned_of(client: httpx.Client) -> None:
    body = request({"gpu": "h100-sxm5", "launch": {**LAUNCH, "arguments": {"3": 1 << 20}}})
    codes = {each["code"] for each in client.post("/predict", json=body).json()["warnings"]}
    assert not codes & {"newer_target", "flat_block", "grid_in_threads"}


ROWS = stored_ptx("block_for_each_row")


def test_a_block_for_each_row_is_no_grid_in_threads(client: httpx.Client) -> None:
    """One thread of each block stores, as after a reduction."""
    launch = {"grid": 4096, "block": 256, "arguments": {"n": 4096, "out": {"elements": 4096}}}
    answer = client.post("/predict", json=request({"ptx": ROWS, "launch": launch}))
    assert answer.status_code == 200
    assert "grid_in_threads" not in {each["code"] for each in answer.json()["warnings"]}
