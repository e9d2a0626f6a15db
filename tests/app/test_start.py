"""What a start must not do, and what every entry point must."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("xgboost", "catboost", "shap", "lime", "sklearn", "pandas", "onnx", "matplotlib")


@pytest.mark.parametrize("entry", ["wattcast.app.cli", "wattcast.app.server", "wattcast"])
def test_heavy_libraries_wait_until_they_are_needed(entry: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    code = (
        f"import {entry}, os, sys\n"
        f"assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
