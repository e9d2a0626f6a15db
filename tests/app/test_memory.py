"""Resident memory of the service under many kernels: a plateau, printed.

Slow, a real process and thousands of kernels: ``python -m pytest -m slow -s tests/app``
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from benchmarks.ptx_text import kernel as synthetic
from benchmarks.service import Client, free_port, server
from wattcast.features.ptx import read_module

pytestmark = [pytest.mark.slow, pytest.mark.alone]

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"
KERNELS = int(os.environ.get("MEMORY_TEST_KERNELS", "600"))
MANY = 5000
"""Kernels that fill the default budget several times over, in about a quarter of an hour on two
cores; with fewer, a smaller budget is set: 48 MiB are full after 200 kernels of 0.28 MiB. Without
a limit the last 300 of 600 would take twice what they may."""
SMALL_BUDGET = 48 * 2**20
COMMAND = [sys.executable, "-m", "wattcast.app.cli", "serve"]


def fixtures() -> list[tuple[str, str]]:
    """Text and name of every kernel of the fixtures; some texts hold several."""
    texts = [path.read_text() for path in sorted(FIXTURES.glob("*.ptx"))]
    return [(text, kernel.name) for text in texts for kernel in read_module(text).kernels]


def ask(client: Client, ptx: str, name: str) -> None:
    """A prediction, which has to be answered."""
    body = {
        "ptx": ptx,
        "kernel": name,
        "gpu": "tesla-v100",
        "launch": {"grid": [64], "block": [128]},
        "loops": {"default": 4},
    }
    status, answer = client.request("POST", "/predict", json.dumps(body).encode())
    assert status == 200, f"{name}: {status} {answer[:300]!r}"


def resident_mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20


def test_thousands_of_kernels_reach_a_plateau(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last half grows by less than a tenth of what the first did, or by 40 MiB.

    ``MEMORY_TEST_KERNELS=5000``: with the default budget.
    """
    if KERNELS < MANY:
        monkeypatch.setenv("WATTCAST_CACHE_BYTES", str(SMALL_BUDGET))
    port, seen = free_port(), []
    with server(COMMAND, port, str(tmp_path)) as (process, _), ExitStack() as opened:
        client = opened.enter_context(closing(Client(port)))
        start = resident_mib(process)
        kernels = itertools.islice(itertools.cycle(fixtures()), KERNELS)
        for number, (text, name) in enumerate(kernels, 1):
            ask(client, f"// {number}\n{text}", name)
            if number % max(1, KERNELS // 20) == 0:
                seen.append(resident_mib(process))
                print(f"{number} kernels answered: {seen[-1]:.0f} MiB", flush=True)
    half = max(seen[: len(seen) // 2])
    assert max(seen) - half < max(40.0, 0.1 * (half - start))
    assert max(seen) < 900


def test_large_ptx_stays_below_900_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 texts of 12 MB, each of many kernels of which one is asked for."""
    monkeypatch.setenv("WATTCAST_ANALYSIS_SECONDS", "300")  # memory is asked here, not speed
    one = synthetic(1000)
    head, _, body = one.partition(".visible")
    many = head + "".join(
        f".visible{body.replace('synthetic', f'kernel_{number}')}\n"
        for number in range(12_000_000 // len(one))
    )
    most, port = 0.0, free_port()
    with server(COMMAND, port, str(tmp_path)) as (process, _), ExitStack() as opened:
        client = opened.enter_context(closing(Client(port)))
        for number in range(40):
            ask(client, f"// {number}\n{many}", "kernel_7")
            most = max(most, resident_mib(process))
            print(f"{number + 1} of 12 MB: {resident_mib(process):.0f} MiB", flush=True)
    assert most < 900
