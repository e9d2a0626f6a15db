"""Predictions answered before, and the requests behind them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

from wattcast.app.problems import ServiceError
from wattcast.app.store.predictions import PredictionRecord
from wattcast.predictor.messages.predict import PredictRequest

if TYPE_CHECKING:
    from wattcast.app.services import Services


def record_of(services: Services, prediction_id: UUID) -> PredictionRecord:
    """A stored prediction. Raises ServiceError ``unknown-prediction``, and StoreError."""
    record = services.store.get(prediction_id) if services.store is not None else None
    if record is None:
        raise ServiceError("unknown-prediction", f"no prediction {prediction_id}")
    return record


def request_of(services: Services, record: PredictionRecord) -> PredictRequest:
    """The request that a prediction answered, for its one GPU, with PTX in the place of CUDA.

    Raises ServiceError ``no-explanation`` for a prediction that rests on no PTX.
    """
    if record.ptx_sha256 is None or services.store is None:
        raise ServiceError(
            "no-explanation", f"prediction {record.id} rests on measured work: there is no code"
        )
    ptx = record.ptx or services.store.ptx(record.ptx_sha256)
    asked: dict[str, Any] = json.loads(record.request)
    for name in ("cuda_sha256", "gpus"):
        asked.pop(name, None)
    return PredictRequest.model_validate({**asked, "ptx": ptx, "gpu": record.gpu})


def is_compiled(record: PredictionRecord) -> bool:
    """Whether the request brought CUDA source."""
    return "cuda_sha256" in json.loads(record.request)
