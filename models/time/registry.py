"""Every time model by name: the default one, and those of papers (``wattcast.models.papers``).

This table is the one way to the papers' models: a module is imported when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple

from wattcast.features.errors import ModelError
from wattcast.models.time.base import TimeModel


class Entry(NamedTuple):
    """Where a time model is defined, and what it is, for people."""

    module: str
    name: str
    help: str


DEFAULT = "bottleneck"

TIME_MODELS: Mapping[str, Entry] = {
    DEFAULT: Entry("time.bottleneck", "BottleneckTimeModel", "the slowest resource of the launch"),
    "scheduling": Entry(
        "papers.thesis.scheduling", "SchedulingTimeModel", "the thesis' schedule, Algorithms 6-8"
    ),
    "delay": Entry("papers.thesis.delay", "DelayTimeModel", "the thesis' delays, Algorithms 4-5"),
    "queueing": Entry(
        "papers.wang_chu.model", "QueueingTimeModel", "Wang and Chu, servers in a network"
    ),
    "queueing-cases": Entry(
        "papers.wang_chu.model", "QueueingCasesTimeModel", "Wang and Chu, by cases"
    ),
    "roofline": Entry("papers.roofline", "RooflineTimeModel", "peak rates: a lower bound"),
    "volkov": Entry("papers.volkov", "VolkovTimeModel", "Volkov's throughput and latency bounds"),
}
"""Every time model: what HTTP, command line, page and docs offer. One more is one more line."""


@lru_cache(maxsize=len(TIME_MODELS))
def get_time_model(name: str) -> TimeModel:
    """The model of a family, its module imported when it is first asked for.

    Raises ModelError listing the known names (``known``).
    """
    if name not in TIME_MODELS:
        known = sorted(TIME_MODELS)
        raise ModelError(f"unknown time model {name!r}; known: {', '.join(known)}", known=known)
    entry = TIME_MODELS[name]
    module = import_module(f"wattcast.models.{entry.module}")
    model: TimeModel = getattr(module, entry.name)()
    return model
