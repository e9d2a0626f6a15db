"""The core as its users install it: the wheel in an environment of its own (needs the index)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from benchmarks.measure import Row

ROOT = Path(__file__).parents[1]
BUILD = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
ASK = (
    "import time; t = time.perf_counter(); import wattcast; wattcast.predict; "
    "print(time.perf_counter() - t)"
)
PREDICT = (
    "import wattcast, wattcast.app.demo as d; from pathlib import Path; "
    "p = Path(d.__file__).with_name('vector_add.ptx'); "
    "print(wattcast.predict(p, gpu='v100', grid=4096, block=256).power.watts)"
)


def rows() -> Iterator[Row]:
    """Direct dependencies, megabytes and import time of the core (issue: 14, 300 MB, 0.4 s)."""
    direct = [line for line in requires("wattcast") or () if "extra ==" not in line]
    yield Row("core: direct dependencies", len(direct), "", "<= 14", len(direct) <= 14)
    with tempfile.TemporaryDirectory() as folder:
        wheel = _run([sys.executable, "-c", BUILD, folder], ROOT).split()[-1]
        python = Path(folder) / "venv" / "bin" / "python"
        _run([sys.executable, "-m", "venv", str(python.parents[1])])
        empty = _megabytes(python.parents[1])
        _run([str(python), "-m", "pip", "install", "-q", str(Path(folder) / wheel)])
        size = _megabytes(python.parents[1]) - empty
        yield Row("core: installed", size, "MB", "<= 300", size <= 300)
        _run([str(python), "-c", PREDICT], Path(folder))  # an answer, and compiled bytecode
        seconds = min(float(_run([str(python), "-c", ASK], Path(folder))) for _ in range(5))
        yield Row("core: import", seconds, "s", "<= 0.4", seconds <= 0.4)


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
