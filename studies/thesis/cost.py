"""XGBoost beside CatBoost: importance rankings, memory and time (thesis Table 5.10).

Memory and time are those of the machine that runs this, in a process of its own for each
measurement; all else repeats exactly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import spearmanr

from studies.evaluation import cross_validate
from studies.thesis.data import by_size, rows_of, study_tables
from studies.thesis.printed import Size, printed
from studies.thesis.regressors import REGRESSORS
from wattcast.training.data.cleaning import MODEL_INPUTS
from wattcast.training.families import get_family

MODELS = ("xgboost", "catboost")
SIZES: tuple[Size, ...] = ("smaller", "larger")


class Measured(NamedTuple):
    """A 5-fold cross-validation in one process with one thread.

    ``peak_mib`` is the most memory the process held, with interpreter, libraries and data;
    ``growth_mib`` what of it the fits added.
    """

    seconds: float
    peak_mib: float
    growth_mib: float


def rankings(tables: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Model -> GPU -> features by importance, the first most important.

    XGBoost's is the mean gain of its splits, CatBoost's the mean change of the prediction: what
    both libraries call feature importance unless asked otherwise.
    """
    return {
        model: {gpu: _ranking(model, frame) for gpu, frame in tables.items()} for model in MODELS
    }


def agreement(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """Spearman's rank correlation of two rankings of the same features."""
    return float(spearmanr(range(len(one)), [other.index(name) for name in one]).statistic)


def printed_ranking(model: str) -> tuple[str, ...]:
    """The ranking of Table 5.10."""
    return printed().table_5_10[model].ranking


def measure(model: str, size: Size) -> Measured:
    """Time and memory of a model on one of the K20 data sets, in a process of its own.

    Raises RuntimeError with its last words if that process fails.
    """
    command = [sys.executable, "-m", "studies.thesis.cost", model, size]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        raise RuntimeError(f"measuring {model} failed: {ended.stderr.strip()[-500:]}")
    return Measured(**json.loads(ended.stdout))


def _ranking(model: str, frame: pd.DataFrame) -> tuple[str, ...]:
    rows = rows_of(frame)
    fitted = get_family(model).fit(rows.vectors, rows.watts)
    values = _gains(fitted) if model == "xgboost" else list(fitted.get_feature_importance())
    return tuple(
        name for _, name in sorted(zip(values, MODEL_INPUTS, strict=True), key=lambda one: -one[0])
    )


def _gains(model: Any) -> list[float]:
    gains = model.get_score(importance_type="gain")  # features no split uses are left out
    return [float(gains.get(f"f{at}", 0.0)) for at in range(len(MODEL_INPUTS))]


def _memory_mib(field: str) -> float:
    # Not getrusage: its maximum begins with that of the process that started this one.
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def _measure_here(model: str, size: Size) -> Measured:
    rows = rows_of(by_size(study_tables(("tesla-k20",))["tesla-k20"])[size])
    get_family(model).fit(rows.vectors[:50], rows.watts[:50])  # loads the library
    before, start = _memory_mib("VmRSS"), time.perf_counter()
    cross_validate(rows, REGRESSORS[model], "random", [0])
    seconds, peak = time.perf_counter() - start, _memory_mib("VmHWM")
    return Measured(seconds, peak, peak - before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Prints time and memory of one model as JSON.")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("size", choices=SIZES)
    options = parser.parse_args()
    print(json.dumps(_measure_here(options.model, options.size)._asdict()))
