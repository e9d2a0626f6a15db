"""The command line from a shell: processor time and wall time of one call, start to end."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.resources import files

from benchmarks.measure import Row, at_most, fact

RUNS = 9
LIMIT_SECONDS = 0.7
"""Issue 22: a small kernel, on a quiet machine."""


def rows() -> Iterator[Row]:
    """The least of some runs, over a home with a service's database: what a loaded machine adds
    to others says nothing of the program. Its children (ptxas, if installed) count too."""
    kernel = files("wattcast.app.demo").joinpath("vector_add.ptx")
    predict = ["predict", str(kernel), "--gpu", "v100", "--grid", "4096", "--block", "256"]
    with tempfile.TemporaryDirectory() as home:
        _once(home, ["keys", "list"])  # makes the database, as the first start of a service does
        for name, words in (("predict, a small kernel", predict), ("--help", ["--help"])):
            spent = [_once(home, words) for _ in range(RUNS)]
            processor, wall = (min(times) for times in zip(*spent, strict=True))
            if words is predict:
                yield at_most(f"wattcast {name}: processor", processor, LIMIT_SECONDS, "s")
                yield at_most(f"wattcast {name}: wall", wall, LIMIT_SECONDS, "s")
            else:
                yield fact(f"wattcast {name}: processor", processor, "s")


def _once(home: str, words: list[str]) -> tuple[float, float]:
    """Seconds of processor and by the clock of one call."""
    given = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "wattcast.app.cli", *words],
        env={**given, "WATTCAST_HOME": home}, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall
