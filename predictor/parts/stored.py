"""Predictions answered before, and the requests behind them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from pydantic import ValidationError

from wattcast.features.errors import ServiceError

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest


@dataclass(frozen=True, slots=True)
class PredictionRecord:
    """One prediction as stored. The JSON fields hold JSON text.

    ``ptx`` is the PTX text, or ``None`` in a record read back from the database;
    ``ptx_sha256`` is ``None`` for a prediction that rests on no PTX.
    """

    id: UUID
    created: datetime
    ptx_sha256: str | None
    gpu: str
    kernel: str
    request: str
    result: bytes
    vectors: str
    models: str
    ptx: str | None = None

    def row(self) -> dict[str, Any]:
        """The columns of ``PREDICTIONS``."""
        digest = hashlib.sha256(f"{self.ptx_sha256 or ''}\n{self.request}".encode())
        return {
            "id": self.id,
            "created": self.created,
            "request_sha256": digest.hexdigest(),
            "ptx_sha256": self.ptx_sha256,
            "gpu": self.gpu,
            "kernel": self.kernel,
            "request": self.request,
            "result": self.result.decode(),
            "vectors": self.vectors,
            "models": self.models,
        }


class Keeper(Protocol):
    """What keeps predictions: a database, say."""

    def add(self, record: PredictionRecord) -> Future[None]:
        """Keep a prediction: what is answered ends when it is kept for good."""

    def wait(self, rows: Sequence[Future[None]]) -> None:
        """Return once all are kept. Raises what keeps them from it."""

    def get(self, prediction_id: UUID) -> PredictionRecord | None:
        """A prediction kept before."""

    def ptx(self, sha256: str) -> str | None:
        """The PTX of predictions, by the SHA-256 of its text."""


def record_of(predictor: Predictor, prediction_id: UUID) -> PredictionRecord:
    """A stored prediction. Raises ServiceError ``unknown-prediction``, and StoreError."""
    record = predictor.store.get(prediction_id) if predictor.store is not None else None
    if record is None:
        raise ServiceError("unknown-prediction", f"no prediction {prediction_id}")
    return record


def answer_of(record: PredictionRecord) -> PredictAnswer:
    """What a stored prediction answered. Raises ServiceError ``no-explanation`` for one whose form
    is that of another version."""
    from wattcast.predictor.messages.predict import PredictAnswer

    try:
        return PredictAnswer.model_validate_json(record.result)
    except ValidationError as error:
        detail = f"prediction {record.id} was stored by a version with other answers: ask again"
        raise ServiceError("no-explanation", detail) from error


def request_of(predictor: Predictor, record: PredictionRecord) -> PredictRequest:
    """The request that a prediction answered, for its one GPU, with PTX in the place of CUDA.
    Raises ServiceError ``no-explanation`` for a prediction that rests on no PTX."""
    if record.ptx_sha256 is None or predictor.store is None:
        raise ServiceError(
            "no-explanation", f"prediction {record.id} rests on no code: measured work or a shape"
        )
    ptx = record.ptx or predictor.store.ptx(record.ptx_sha256)
    asked: dict[str, Any] = json.loads(record.request)
    for name in ("cuda_sha256", "gpus"):
        asked.pop(name, None)
    from wattcast.predictor.messages.predict import PredictRequest

    return PredictRequest.model_validate({**asked, "ptx": ptx, "gpu": record.gpu})


def is_compiled(record: PredictionRecord) -> bool:
    """Whether the request brought CUDA source."""
    return "cuda_sha256" in json.loads(record.request)
