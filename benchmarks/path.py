"""What somebody reads who follows one prediction: functions and files of ours that it enters.

    python -m benchmarks path    the two figures beside their limits
    python -m benchmarks.path    every file with its functions

Asked is ``app/demo/vector_add.ptx`` with its arguments, which the process has never seen. Another
kernel was asked about before, so that modules, tables and model files are read. Named functions
count, once each; lambdas, comprehensions and class bodies do not.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

import wattcast
from benchmarks.measure import Row, at_most, in_fresh_process
from wattcast import predictor
from wattcast.app.services.models import standalone

ROOT = Path(__file__).parents[1]
MOST_FUNCTIONS = 643
MOST_FILES = 80
"""What it may be at most (tests/app/test_path.py): these fall, they never rise."""


def _predict(name: str, block: int, arguments: dict[str, int]) -> None:
    wattcast.predict(
        ROOT / "app" / "demo" / name,
        gpu="tesla-v100",
        grid=4096,
        block=block,
        arguments=arguments,
        registers_per_thread=10,  # else ptxas is asked, where it is installed
    )


def entered() -> dict[str, list[str]]:
    """Functions that the prediction enters, by file."""
    # However slow the machine, models and GPU profiles are not looked for anew in between.
    standalone.POLL_SECONDS = predictor._FRESH_SECONDS = float("inf")
    codes: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    _predict("softmax.ptx", 128, {"2": 1024})
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        _predict("vector_add.ptx", 256, {"3": 1 << 20})
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    found: dict[str, set[str]] = defaultdict(set)
    for code in codes:
        path = Path(code.co_filename).resolve()
        named = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        ours = path.is_relative_to(ROOT) and not {".venv", "benchmarks"} & set(path.parts)
        if named and ours and path.is_file():
            found[path.relative_to(ROOT).as_posix()].add(code.co_qualname)
    return {path: sorted(found[path]) for path in sorted(found)}


def rows() -> Iterator[Row]:
    """Both figures."""
    found = json.loads(in_fresh_process("from benchmarks import path; path.show()"))
    functions = sum(map(len, found.values()))
    yield at_most("functions that a prediction enters", functions, MOST_FUNCTIONS, "functions")
    yield at_most("files that a prediction enters", len(found), MOST_FILES, "files")


def show() -> None:
    """Print what is entered, as JSON, whatever the user's own folder holds."""
    with TemporaryDirectory() as home:
        os.environ["WATTCAST_HOME"] = home
        print(json.dumps(entered(), indent=1))


if __name__ == "__main__":
    show()
