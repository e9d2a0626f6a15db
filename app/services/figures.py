"""What ``GET /metrics`` looks up when somebody asks, as families of Prometheus' client library.

jobs     from the database: every replica tells the same, whichever process ran them
models   what this process answers by
drift    of the latest predictions of this process
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client.core import (
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from sqlalchemy.exc import SQLAlchemyError

from wattcast.app.jobs.worker import KINDS
from wattcast.app.metrics import PREFIX
from wattcast.app.store.jobs import JobFigures, job_figures

if TYPE_CHECKING:
    from wattcast.app.services import Services

JOB_SECONDS = (5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0)
"""Buckets around a small retraining (60 s, the budget) up to ``job_seconds``' default."""


def families(services: Services) -> Iterator[Metric]:
    """All of them. A database that does not answer is a 0, not an error."""
    if services.data is not None:
        found: JobFigures | None = None
        with suppress(SQLAlchemyError):
            found = job_figures(services.data.engine, KINDS, JOB_SECONDS)
        what = "Whether the database answered when these metrics were asked for."
        yield GaugeMetricFamily(f"{PREFIX}database_up", what, float(found is not None))
        if found is not None:
            yield from _jobs(found)
    yield _models(services)
    yield from _drift(services)


def _jobs(found: JobFigures) -> Iterator[Metric]:
    by_state = GaugeMetricFamily(f"{PREFIX}jobs", "Jobs in the database.", labels=("kind", "state"))
    for labels, count in found.by_state.items():
        by_state.add_metric(labels, count)
    yield by_state
    oldest = GaugeMetricFamily(
        f"{PREFIX}oldest_queued_job_seconds",
        "How long the oldest queued job has waited; 0 where none waits.",
        labels=("kind",),
    )
    for kind, seconds in found.oldest_queued_seconds.items():
        oldest.add_metric((kind,), seconds)
    yield oldest
    durations = HistogramMetricFamily(
        f"{PREFIX}job_seconds",
        "Time of jobs from their first start to their end.",
        labels=("kind", "outcome"),
    )
    for each in found.durations:
        bounds = (*(f"{bound:g}" for bound in JOB_SECONDS), "+Inf")
        buckets = list(zip(bounds, (*each.at_most, each.count), strict=True))
        durations.add_metric((each.kind, each.outcome), buckets, each.seconds)
    yield durations


def _models(services: Services) -> Metric:
    info = InfoMetricFamily(
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


def _drift(services: Services) -> Iterator[Metric]:
    by = ("gpu", "schema")
    seen = GaugeMetricFamily(
        f"{PREFIX}drift_predictions", "Latest predictions that drift is told of.", labels=by
    )
    outside = GaugeMetricFamily(
        f"{PREFIX}drift_outside_share",
        "Share of them that was flagged as unlike the training rows.",
        labels=by,
    )
    index = GaugeMetricFamily(
        f"{PREFIX}drift_stability_index",
        "Population stability index of a feature against training.",
        labels=(*by, "feature"),
    )
    for drift in services.drift.all():
        labels = drift.gpu, drift.schema_id
        seen.add_metric(labels, drift.predictions)
        outside.add_metric(labels, drift.outside_share)
        for name, value in drift.stability_index.items():
            index.add_metric((*labels, name), value)
    yield from (seen, outside, index)
