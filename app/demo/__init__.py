"""Kernels of ours with their launches: the one that ``wattcast serve --demo`` predicts (source, and
the PTX nvcc makes of it), and the examples that the page opens with, solved.

``python -m studies examples`` renews ``solved/`` after a change of an answer; a test compares.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

FOLDER = files("wattcast.app.demo")
SOLVED = FOLDER.joinpath("solved")
"""One JSON file for each example."""


def examples() -> dict[str, dict[str, Any]]:
    """``examples.toml`` by name."""
    return tomllib.loads(FOLDER.joinpath("examples.toml").read_text(encoding="utf-8"))


def request_of(example: dict[str, Any]) -> dict[str, Any]:
    """The body of ``POST /predict`` that the page sends for it."""
    source = FOLDER.joinpath(example["file"]).read_text(encoding="utf-8")
    language = "ptx" if PurePosixPath(example["file"]).suffix == ".ptx" else "cuda"
    launch = {"gpu": example["gpu"], "launch": example["launch"]}
    return {language: source, **launch, "details": True}
