"""Every time model by name. One more is one more line of ``TIME_MODELS``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    def build(self) -> TimeModel:
        """The model; its module is imported now."""
        model: TimeModel = getattr(
            import_module(f"wattcast.models.time.{self.module}"), self.name
        )()
        return model


DEFAULT = "bottleneck"

TIME_MODELS: Mapping[str, Entry] = {
    DEFAULT: Entry("bottleneck", "BottleneckTimeModel", "the slowest resource of the launch"),
    "scheduling": Entry("scheduling", "ThesisTimeModel", "the thesis' schedule, Algorithms 6-8"),
    "delay": Entry("delay", "DelayTimeModel", "the thesis' delays, Algorithms 4-5"),
    "queueing": Entry("queueing_model", "QueueingTimeModel", "Wang and Chu, servers in a network"),
    "queueing-cases": Entry("queueing_model", "QueueingCasesTimeModel", "Wang and Chu, by cases"),
    "roofline": Entry("roofline", "RooflineTimeModel", "peak rates: a lower bound"),
    "volkov": Entry("throughput", "VolkovTimeModel", "Volkov's throughput and latency bounds"),
}
"""Every time model: what HTTP, command line, page and docs offer. One more is one more line."""


@lru_cache(maxsize=len(TIME_MODELS))
def _built(name: str) -> TimeModel:
    return TIME_MODELS[name].build()


class _TimeModels(Mapping[str, TimeModel]):
    """A mapping that builds a model when it is looked up, and once."""

    def __getitem__(self, name: str) -> TimeModel:
        return _built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(TIME_MODELS)

    def __len__(self) -> int:
        return len(TIME_MODELS)

    def __contains__(self, name: object) -> bool:
        return name in TIME_MODELS


def time_models() -> Mapping[str, TimeModel]:
    """All time models by family, in the order they are documented; built when looked up."""
    return _TimeModels()


def get_time_model(name: str) -> TimeModel:
    """The model of a family. Raises ModelError listing the known names (``known``)."""
    if name not in TIME_MODELS:
        known = sorted(TIME_MODELS)
        raise ModelError(f"unknown time model {name!r}; known: {', '.join(known)}", known=known)
    return _built(name)
