"""Every time model by name. One more is one more line of ``_FACTORIES``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module

from wattcast.features.errors import ModelError
from wattcast.models.time.base import TimeModel


def _model(module: str, name: str) -> Callable[[], TimeModel]:
    """What builds a model; its module is imported when it is first asked for."""

    def build() -> TimeModel:
        model: TimeModel = getattr(import_module(module), name)()
        return model

    return build


_FACTORIES: Mapping[str, Callable[[], TimeModel]] = {
    "bottleneck": _model("wattcast.models.time.bottleneck", "BottleneckTimeModel"),
    "delay": _model("wattcast.models.time.delay", "DelayTimeModel"),
    "scheduling": _model("wattcast.models.time.thesis", "ThesisTimeModel"),
    "roofline": _model("wattcast.models.time.roofline", "RooflineTimeModel"),
    "volkov": _model("wattcast.models.time.throughput", "VolkovTimeModel"),
    "queueing": _model("wattcast.models.time.queueing_model", "QueueingTimeModel"),
    "queueing-cases": _model("wattcast.models.time.queueing_model", "QueueingCasesTimeModel"),
}


@lru_cache(maxsize=len(_FACTORIES))
def _built(name: str) -> TimeModel:
    return _FACTORIES[name]()


class _TimeModels(Mapping[str, TimeModel]):
    """A mapping that builds a model when it is looked up, and once."""

    def __getitem__(self, name: str) -> TimeModel:
        return _built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_FACTORIES)

    def __len__(self) -> int:
        return len(_FACTORIES)

    def __contains__(self, name: object) -> bool:
        return name in _FACTORIES


def time_models() -> Mapping[str, TimeModel]:
    """All time models by family, in the order they are documented; built when looked up."""
    return _TimeModels()


def get_time_model(name: str) -> TimeModel:
    """The model of a family. Raises ModelError listing the known names (``known``)."""
    if name not in _FACTORIES:
        known = sorted(_FACTORIES)
        raise ModelError(f"unknown time model {name!r}; known: {', '.join(known)}", known=known)
    return _built(name)
