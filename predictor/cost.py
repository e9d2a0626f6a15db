"""What a whole application costs: joules, and in money and CO2 at what the caller says they cost.

Launches follow one another, so seconds and joules add up. No tariff and no carbon intensity is
assumed: what is not given is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from wattcast.features.errors import AnalysisError
from wattcast.models.estimate import BASIS_ORDER
from wattcast.predictor import parts
from wattcast.predictor.messages.cost import ApplicationKernel, CostRequest, Tariff
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict

if TYPE_CHECKING:
    from wattcast.predictor import Predictor

JOULES_PER_KWH = 3.6e6
"""A kilowatt for an hour (SI brochure, 9th edition, table 8)."""


def cost(predictor: Predictor, request: CostRequest) -> dict[str, Any]:
    """``CostAnswer``; each kernel's prediction is stored if there is a store.

    Raises what ``predict`` raises, and AnalysisError for a kernel without power or time; the
    error tells which kernel.
    """
    found = []
    rows: list[Future[None]] = []
    for number, kernel in enumerate(request.kernels):
        with parts.about(f"kernels[{number}]"):
            found.append(_predicted(predictor, request, kernel, rows))
    if predictor.store is not None:
        predictor.store.wait(rows)
    launches = [kernel.launches for kernel in request.kernels]
    joules = _total(found, launches, "energy", "joules")
    return {
        "gpu": found[0]["gpu"],
        "covers": "gpu_board_while_kernels_run",
        "kernels": [
            {
                "prediction_id": answer["id"],
                "kernel": answer["kernel"],
                "launches": count,
                **{name: answer[name] for name in ("power", "time", "energy")},
                "seconds": count * answer["time"]["seconds"],
                "joules": count * answer["energy"]["joules"],
                "energy_share": count * answer["energy"]["joules"] / joules["joules"],
            }
            for answer, count in zip(found, launches, strict=True)
        ],
        "time": _total(found, launches, "time", "seconds"),
        "energy": joules,
        **priced(joules, request.tariff, request.grams_co2_per_kwh),
        "warnings": parts.distinct(note for answer in found for note in answer["warnings"]),
    }


def priced(
    joules: Mapping[str, Any], tariff: Tariff | None, grams_co2_per_kwh: float | None
) -> dict[str, Any]:
    """``kwh``, ``price`` and ``co2`` of an energy with its ends."""
    kwh = {name: joules[name] / JOULES_PER_KWH for name in ("joules", "low", "high")}
    price = None
    if tariff is not None:
        price = {**_times(kwh, tariff.price_per_kwh, "amount"), "currency": tariff.currency}
    co2 = None if grams_co2_per_kwh is None else _times(kwh, grams_co2_per_kwh, "grams")
    return {"kwh": kwh["joules"], "price": price, "co2": co2}


def _predicted(
    predictor: Predictor,
    request: CostRequest,
    kernel: ApplicationKernel,
    rows: list[Future[None]],
) -> dict[str, Any]:
    asked = PredictRequest.model_validate(
        {
            **kernel.model_dump(exclude={"launches"}, exclude_defaults=True),
            "gpu": request.gpu,
            "clocks": request.clocks,
            "model": request.model,
            "board": request.board,
        }
    )
    answer = predict(predictor, asked, rows)
    if answer["energy"] is None:
        why = answer["warnings"][-1]["detail"] if answer["warnings"] else "no model answers"
        raise AnalysisError(f"its energy cannot be predicted: {why}")
    return answer


def _total(
    found: list[dict[str, Any]], launches: list[int], part: str, unit: str
) -> dict[str, Any]:
    """Sums of values and of ends: exact where all predictions err alike, else rather wide."""
    return {
        **{
            name: sum(
                count * answer[part][name] for answer, count in zip(found, launches, strict=True)
            )
            for name in (unit, "low", "high")
        },
        "level": min(answer[part]["level"] for answer in found),
        "basis": max((answer[part]["basis"] for answer in found), key=BASIS_ORDER.index),
    }


def _times(kwh: dict[str, float], rate: float, name: str) -> dict[str, float]:
    return {name: kwh["joules"] * rate, "low": kwh["low"] * rate, "high": kwh["high"] * rate}
