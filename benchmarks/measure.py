"""Timing helpers: medians over repeats, peak memory of a fresh process."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the report: what was measured, the figure, the budget it is held against."""

    name: str
    value: float
    unit: str
    budget: str
    ok: bool


def at_most(name: str, value: float, limit: float, unit: str) -> Row:
    """A row whose figure must not exceed ``limit``."""
    return Row(name, value, unit, f"<= {limit:g}", value <= limit)


def at_least(name: str, value: float, limit: float, unit: str) -> Row:
    """A row whose figure must reach ``limit``."""
    return Row(name, value, unit, f">= {limit:g}", value >= limit)


def fact(name: str, value: float, unit: str) -> Row:
    """A figure without a budget, printed for comparison."""
    return Row(name, value, unit, "", True)


def median_seconds(call: Callable[[], object], repeats: int = 30, warm_up: int = 3) -> float:
    """Median wall time of one call in seconds, garbage collector off."""
    for _ in range(warm_up):
        call()
    samples = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
    finally:
        gc.enable()
    return statistics.median(samples)


def in_fresh_process(code: str) -> str:
    """Run Python ``code`` in a new interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
