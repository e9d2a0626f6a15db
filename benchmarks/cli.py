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
LIMITS_SECONDS = {"predict": 0.7, "judge": 1.2}
"""Issues 22 and 40: of small kernels, on a quiet machine."""


def rows() -> Iterator[Row]:
    """The least of some runs, over a home with a service's database: what a loaded machine adds
    to others says nothing of the program. Its children (ptxas, if installed) count too."""
    file = str(files("wattcast.app.demo").joinpath("vector_add.ptx"))
    launch = [file, "--gpu", "v100", "--grid", "4096", "--block", "256"]
    calls = {"predict": launch, "judge": [file, *launch], "--help": []}
    with tempfile.TemporaryDirectory() as home:
        _once(home, ["keys", "list"])  # makes the database, as the first start of a service does
        for name, words in calls.items():
            spent = [_once(home, [name, *words]) for _ in range(RUNS)]
            processor, wall = (min(times) for times in zip(*spent, strict=True))
            if limit := LIMITS_SECONDS.get(name):
                yield at_most(f"wattcast {name}, small kernels: processor", processor, limit, "s")
                yield at_most(f"wattcast {name}, small kernels: wall", wall, limit, "s")
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
