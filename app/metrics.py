"""Prometheus metrics of this process; ``GET /metrics`` prints them.

Modules that have something to count make it here, at import::

    JOBS = metrics.counter("jobs", "Jobs that ended.", ("kind", "state"))
    JOBS.labels("retrain", "done").inc()

and what is looked up only when somebody asks (a queue's length) is a gauge with a function::

    metrics.watch("waiting_uploads", "Uploads that wait.", lambda: uploads.pending)

What ``families`` looks up when somebody asks:

    jobs     from the database: every replica tells the same, whichever process ran them
    models   what this process answers by
    drift    of the latest predictions of this process
    coverage what intervals held of measurements that came in later

Several replicas are told apart by the instance that Prometheus scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import prometheus_client as prometheus
from prometheus_client import core
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from wattcast.app.jobs.worker import KINDS
from wattcast.app.store.jobs import JobFigures, job_figures

if TYPE_CHECKING:
    from wattcast.app.services import Services
    from wattcast.predictor.messages.predict import PredictAnswer

REGISTRY = prometheus.CollectorRegistry(auto_describe=True)
"""Ours alone: the client library's default one belongs to whoever imports us."""

prometheus.ProcessCollector(registry=REGISTRY)

PREFIX = "wattcast_"

LATENCY_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
"""Buckets around the budgets of a prediction (2, 5 and 60 ms), up to an upload."""


def counter(name: str, what: str, labels: Sequence[str] = ()) -> prometheus.Counter:
    """A counter ``wattcast_<name>_total``."""
    return prometheus.Counter(PREFIX + name, what, labels, registry=REGISTRY)


_WATCHED: dict[str, prometheus.Gauge] = {}


def watch(name: str, what: str, look: Callable[[], float]) -> None:
    """A gauge whose value ``look`` tells when somebody asks; the latest ``look`` of a name holds.
    ``look`` runs within ``GET /metrics``: it must be quick and must not raise."""
    if name not in _WATCHED:
        _WATCHED[name] = prometheus.Gauge(PREFIX + name, what, registry=REGISTRY)
    _WATCHED[name].set_function(look)


REQUESTS = counter("requests", "Requests answered.", ("method", "route", "status"))
REQUEST_SECONDS = prometheus.Histogram(
    f"{PREFIX}request_seconds",
    "Time from a request's first byte to its answer.",
    ("method", "route"),
    buckets=LATENCY_SECONDS,
    registry=REGISTRY,
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


def predicted(answers: Iterable[PredictAnswer]) -> None:
    """Count predictions."""
    for answer in answers:
        _prediction(answer.gpu, "none" if answer.power is None else answer.power.basis).inc()


class _Found(Collector):
    """Families that were looked up for one page."""

    def __init__(self, found: Iterable[core.Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[core.Metric]:
        return self._found


def page(more: Iterable[core.Metric] = ()) -> tuple[bytes, str]:
    """All metrics and ``more`` in Prometheus' text format, and its media type."""
    looked_up = prometheus.CollectorRegistry()
    looked_up.register(_Found(more))
    return prometheus.generate_latest(REGISTRY) + prometheus.generate_latest(
        looked_up
    ), prometheus.CONTENT_TYPE_LATEST


JOB_SECONDS = (5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0)
"""Buckets around a small retraining (60 s, the budget) up to ``job_seconds``' default."""


def families(services: Services) -> Iterator[core.Metric]:
    """All of them. A database that does not answer is a 0, not an error."""
    if services.data is not None:
        found: JobFigures | None = None
        with suppress(SQLAlchemyError):
            found = job_figures(services.data.engine, KINDS, JOB_SECONDS)
        what = "Whether the database answered when these metrics were asked for."
        yield core.GaugeMetricFamily(f"{PREFIX}database_up", what, float(found is not None))
        if found is not None:
            yield from _jobs(found)
    yield _models(services)
    yield from _drift(services)
    yield from _coverage(services)


def _jobs(found: JobFigures) -> Iterator[core.Metric]:
    yield _gauges("jobs", "Jobs in the database.", ("kind", "state"), found.by_state.items())
    yield _gauges(
        "oldest_queued_job_seconds",
        "How long the oldest queued job has waited; 0 where none waits.",
        ("kind",),
        (((kind,), seconds) for kind, seconds in found.oldest_queued_seconds.items()),
    )
    durations = core.HistogramMetricFamily(
        f"{PREFIX}job_seconds",
        "Time of jobs from their first start to their end.",
        labels=("kind", "outcome"),
    )
    for each in found.durations:
        bounds = (*(f"{bound:g}" for bound in JOB_SECONDS), "+Inf")
        buckets = list(zip(bounds, (*each.at_most, each.count), strict=True))
        durations.add_metric((each.kind, each.outcome), buckets, each.seconds)
    yield durations


def _models(services: Services) -> core.Metric:
    info = core.InfoMetricFamily(
        f"{PREFIX}model",
        "Models that answer for a GPU, or for one board of it.",
        labels=("gpu", "target", "board", "family", "schema", "source", "version", "champion"),
    )
    for serving in services.power.answering():
        card = serving.card
        schema, version = card.feature_schema.id, str(card.version)
        champion = "promoted" if serving.promoted else "default"
        labels = (card.gpu, card.target, serving.board, card.family, schema, card.source)
        info.add_metric((*labels, version, champion), {})
    return info


def _gauges(
    name: str, what: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> core.Metric:
    """A gauge with a value for each row of labels."""
    family = core.GaugeMetricFamily(PREFIX + name, what, labels=labels)
    for row, value in values:
        family.add_metric(row, value)
    return family


def _drift(services: Services) -> Iterator[core.Metric]:
    by = ("gpu", "schema")
    found = [((each.gpu, each.schema_id), each) for each in services.drift.all()]
    what = "Latest predictions that drift is told of."
    yield _gauges("drift_predictions", what, by, ((row, each.predictions) for row, each in found))
    what = "Share of them that was flagged as unlike the training rows."
    shares = ((row, each.outside_share) for row, each in found)
    yield _gauges("drift_outside_share", what, by, shares)
    what = "Population stability index of a feature against training."
    indices = (
        ((*row, name), value) for row, each in found for name, value in each.stability_index.items()
    )
    yield _gauges("drift_stability_index", what, (*by, "feature"), indices)


def _coverage(services: Services) -> Iterator[core.Metric]:
    by, found = ("target", "gpu", "board", "model"), services.power.serving.coverage
    what = "Kernels measured after they were predicted."
    yield _gauges("observed_kernels", what, by, ((row, o.kernels) for row, o in found.items()))
    what = "Share of them whose first measured launch lay in its interval."
    shares = ((row, o.inside / o.kernels) for row, o in found.items())
    yield _gauges("observed_coverage", what, by, shares)
    what = "How many times as wide intervals are told for it, in logarithms; 1: as calibrated."
    yield _gauges("interval_widening", what, by, ((row, o.widening) for row, o in found.items()))
