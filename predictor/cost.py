"""What a whole application costs: joules, and in money and CO2 at what the caller says they cost.

Launches follow one another, so seconds and joules add up. No tariff and no carbon intensity is
assumed: what is not given is not told.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from wattcast.features.errors import AnalysisError
from wattcast.models.intervals import BASIS_ORDER
from wattcast.predictor import Predictor, parts, predict
from wattcast.predictor.messages import Energy, Interval, KernelName, Power, Time
from wattcast.predictor.messages import cost as messages
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest

JOULES_PER_KWH = 3.6e6
"""A kilowatt for an hour (SI brochure, 9th edition, table 8)."""


class _Predicted(NamedTuple):
    """One kernel's prediction, with all that adding up needs."""

    answer: PredictAnswer
    kernel: KernelName
    time: Time
    power: Power
    energy: Energy
    launches: int


def cost(predictor: Predictor, request: messages.CostRequest) -> messages.CostAnswer:
    """The energy of all launches together; each kernel's prediction is stored if there is a store.

    Raises what ``predict`` raises, and AnalysisError for a kernel without power or time; the
    error tells which kernel.
    """
    kernels: list[_Predicted] = []
    rows: list[Future[None]] = []
    for number, kernel in enumerate(request.kernels):
        with parts.about(f"kernels[{number}]"):
            kernels.append(_predicted(predictor, request, kernel, rows))
    if predictor.store is not None:
        predictor.store.wait(rows)
    energies = [(each.energy, each.launches) for each in kernels]
    joules = sum(count * each.joules for each, count in energies)
    total = Energy(joules=joules, **_ends(energies))
    times = [(each.time, each.launches) for each in kernels]
    seconds = sum(count * each.seconds for each, count in times)
    return messages.CostAnswer(
        gpu=kernels[0].answer.gpu,
        covers="gpu_board_while_kernels_run",
        kernels=[
            messages.KernelCost.from_attributes(
                each,
                prediction_id=each.answer.id,
                seconds=each.launches * each.time.seconds,
                joules=each.launches * each.energy.joules,
                energy_share=each.launches * each.energy.joules / joules,
            )
            for each in kernels
        ],
        time=Time(seconds=seconds, **_ends(times)),
        energy=total,
        **priced(total, request.tariff, request.grams_co2_per_kwh),
        warnings=parts.distinct(note for each in kernels for note in each.answer.warnings),
    )


def priced(
    energy: Energy, tariff: messages.Tariff | None, grams_co2_per_kwh: float | None
) -> dict[str, Any]:
    """``kwh``, ``price`` and ``co2`` of an energy with its ends."""
    kwh, low, high = (each / JOULES_PER_KWH for each in (energy.joules, energy.low, energy.high))
    price = co2 = None
    if tariff is not None:
        rate = tariff.price_per_kwh
        amount, currency = kwh * rate, tariff.currency
        price = messages.Price(amount=amount, low=low * rate, high=high * rate, currency=currency)
    if (grams := grams_co2_per_kwh) is not None:
        co2 = messages.Carbon(grams=kwh * grams, low=low * grams, high=high * grams)
    return {"kwh": kwh, "price": price, "co2": co2}


def _predicted(
    predictor: Predictor,
    request: messages.CostRequest,
    kernel: messages.ApplicationKernel,
    rows: list[Future[None]],
) -> _Predicted:
    own = kernel.model_dump(exclude={"launches"}, exclude_defaults=True)
    shared = parts.members(request, "gpu", "clocks", "model", "board")
    asked = PredictRequest.model_validate({**own, **shared})
    answer = predict.predict_one(predictor, asked, rows)
    if answer.energy is None or answer.time is None or answer.power is None:
        why = answer.warnings[-1].detail if answer.warnings else "no model answers"
        raise AnalysisError(f"its energy cannot be predicted: {why}")
    assert answer.kernel is not None
    parts_of = answer.kernel, answer.time, answer.power, answer.energy
    return _Predicted(answer, *parts_of, kernel.launches)


def _ends(summed: Sequence[tuple[Interval, int]]) -> dict[str, Any]:
    """Sums of the ends: exact where all predictions err alike, else rather wide."""
    return {
        "low": sum(count * each.low for each, count in summed),
        "high": sum(count * each.high for each, count in summed),
        "level": min(each.level for each, _ in summed),
        "basis": max((each.basis for each, _ in summed), key=BASIS_ORDER.index),
    }
