"""Predictions answered before, and the requests behind them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import to_json

from wattcast.features.errors import ServiceError

if TYPE_CHECKING:
    from wattcast.predictor import Predictor
    from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
    from wattcast.predictor.parts.memory import KnownModule


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

    @classmethod
    def of(
        cls,
        answer: PredictAnswer,
        kernel: str,
        request: str,
        vectors: Mapping[str, Sequence[float | None]],
        known: KnownModule | None = None,
    ) -> PredictionRecord:
        """An answer made now; ``known`` is the PTX that it rests on."""
        return cls(
            id=answer.id,
            created=datetime.now(UTC),
            ptx_sha256=known.sha256 if known else None,
            gpu=answer.gpu,
            kernel=kernel,
            request=request,
            result=answer.json_bytes(),
            vectors=to_json(vectors, inf_nan_mode="null").decode(),
            models=to_json(answer.model, by_alias=True).decode(),
            ptx=known.module.text if known else None,  # the one copy that is kept anyway
        )

    def row(self) -> dict[str, Any]:
        """The columns of ``PREDICTIONS``."""
        digest = hashlib.sha256(f"{self.ptx_sha256 or ''}\n{self.request}".encode())
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "ptx"}
        return {**own, "request_sha256": digest.hexdigest(), "result": self.result.decode()}


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
