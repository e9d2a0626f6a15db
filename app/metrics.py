"""Prometheus metrics of this process; ``GET /metrics`` prints them.

Modules that have something to count make it here, at import::

    JOBS = metrics.counter("jobs", "Jobs that ended.", ("kind", "state"))
    JOBS.labels("retrain", "done").inc()

and what is looked up only when somebody asks (a queue's length) is a gauge with a function::

    metrics.watch("waiting_uploads", "Uploads that wait.", lambda: uploads.pending)

What the database, the models and the latest predictions tell is ``wattcast.app.services.figures``.
Several replicas are told apart by the instance that Prometheus scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

REGISTRY = CollectorRegistry(auto_describe=True)
"""Ours alone: the client library's default one belongs to whoever imports us."""

ProcessCollector(registry=REGISTRY)

PREFIX = "wattcast_"

LATENCY_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
"""Buckets around the budgets of a prediction (2, 5 and 60 ms), up to an upload."""


def counter(name: str, what: str, labels: Sequence[str] = ()) -> Counter:
    """A counter ``wattcast_<name>_total``."""
    return Counter(PREFIX + name, what, labels, registry=REGISTRY)


def gauge(name: str, what: str, labels: Sequence[str] = ()) -> Gauge:
    """A gauge ``wattcast_<name>``."""
    return Gauge(PREFIX + name, what, labels, registry=REGISTRY)


def histogram(
    name: str,
    what: str,
    labels: Sequence[str] = (),
    buckets: Sequence[float] = LATENCY_SECONDS,
) -> Histogram:
    """A histogram ``wattcast_<name>``; name it with its unit."""
    return Histogram(PREFIX + name, what, labels, buckets=buckets, registry=REGISTRY)


_WATCHED: dict[str, Gauge] = {}


def watch(name: str, what: str, look: Callable[[], float]) -> None:
    """A gauge whose value ``look`` tells when somebody asks; the latest ``look`` of a name holds.
    ``look`` runs within ``GET /metrics``: it must be quick and must not raise."""
    if name not in _WATCHED:
        _WATCHED[name] = gauge(name, what)
    _WATCHED[name].set_function(look)


REQUESTS = counter("requests", "Requests answered.", ("method", "route", "status"))
REQUEST_SECONDS = histogram(
    "request_seconds", "Time from a request's first byte to its answer.", ("method", "route")
)
PREDICTIONS = counter(
    "predictions",
    "Predictions by GPU and by what their power rests on (none: no power was predicted).",
    ("gpu", "basis"),
)
UPLOADED_ROWS = counter("uploaded_rows", "Rows of uploads, by what became of them.", ("outcome",))

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@lru_cache(maxsize=1024)
def _request(method: str, route: str, status: int) -> tuple[Any, Any]:
    return (
        REQUESTS.labels(method, route, str(status)),
        REQUEST_SECONDS.labels(method, route),
    )


def served(scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
    """Count a request that was answered; ``scope`` is its ASGI scope."""
    # The route's pattern, never the path: paths are endless, and so would be the time series.
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    count, latency = _request(method, route, status)
    count.inc()
    latency.observe(seconds)


@lru_cache(maxsize=1024)
def _prediction(gpu: str, basis: str) -> Any:
    return PREDICTIONS.labels(gpu, basis)


def predicted(answers: Iterable[dict[str, Any]]) -> None:
    """Count predictions (``wattcast.predictor.messages.predict.PredictAnswer`` as plain data)."""
    for answer in answers:
        power = answer.get("power")
        _prediction(answer["gpu"], "none" if power is None else power["basis"]).inc()


class _Found(Collector):
    """Families that were looked up for one page."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def page(more: Iterable[Metric] = ()) -> tuple[bytes, str]:
    """All metrics and ``more`` in Prometheus' text format, and its media type."""
    looked_up = CollectorRegistry()
    looked_up.register(_Found(more))
    return generate_latest(REGISTRY) + generate_latest(looked_up), CONTENT_TYPE_LATEST
