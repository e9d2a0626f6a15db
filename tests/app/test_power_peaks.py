"""Peak loops of the units, launches that do next to nothing: watts as they are served."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any

import pytest

from tests.measure.measuring import board_of
from wattcast.features.gpus import GpuProfile, gpu_ids, load_gpu
from wattcast.measure.catalogue import micro
from wattcast.measure.workload import Buffer, Workload
from wattcast.models.clocks import default_clocks
from wattcast.models.power import BOOSTED_FAMILIES
from wattcast.models.power.activities import AT_REST, sms_at_work
from wattcast.models.power.physical import predicted_power
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.time_and_power import board_limit
from wattcast.predictor.predict import predict

BOARDS = ("a40", "h100-sxm5", "ampere-84sm", "ada-24sm")
"""Two that nobody measured and two with trees that were fitted on short runs."""
OTHERS = sorted({*gpu_ids()} - {*BOARDS})
PEAKS = ("energy.fma.f32", "energy.mma.f16", "energy.dram.fma64")
UNITS = (
    "energy.fma.f64",
    "energy.fma.f16x2",
    "energy.mad.s32",
    "energy.ex2.f32",
    "energy.shared.write",
    "energy.l2.fma4",
    "energy.mma.tf32",
    "energy.mma.s8",
)
"""Loops of the other units: they draw more than the board at rest, and never more than the limit
(a unit that a board has few of draws little)."""
TREES = ("tesla-k20", "tesla-m60")
"""Their trees err less on kernels left out than the physical model does (study
``thesis-boards`` of revision 5da0e32: 12 and 10 of 100, 31 and 59): they answer even where they
extrapolate."""
SMALL = ("launch.b1.t32", "latency.fma.f32")


@cache
def catalogue(gpu_id: str) -> Mapping[str, Workload]:
    return {one.id: one for one in micro(board_of(gpu_id))}


def answered(
    predictor: Predictor, gpu: GpuProfile, name: str, values: str = "uniform"
) -> dict[str, Any]:
    one = catalogue(gpu.id)[name]
    given = {
        str(at): {"elements": each.elements, "values": values}
        if isinstance(each, Buffer)
        else each.value
        for at, each in enumerate(one.arguments)
    }
    launch = {"grid": one.grid, "block": one.block, "arguments": given}
    body = {"ptx": one.ptx, "kernel": one.kernel, "gpu": gpu.id, "launch": launch}
    return predict(predictor, PredictRequest.model_validate(body))


def holds(gpu: GpuProfile, predictor: Predictor) -> None:
    """Small launches draw what SMs with a block do, peak loops much more but not too much; who
    answers does not extrapolate by trees, unless these err less on what they never saw."""
    model = predictor.power.physical(gpu)
    rest = predicted_power(model.parameters, AT_REST, default_clocks(gpu)).watts
    assert rest >= model.parameters.idle_watts
    most = board_limit(model.card, gpu)
    for name in (*SMALL, *UNITS, *PEAKS):
        if name not in catalogue(gpu.id):
            continue  # no matrix units
        answer = answered(predictor, gpu, name)
        watts, card = answer["power"]["watts"], answer["model"]
        if card["family"] in BOOSTED_FAMILIES:
            assert gpu.id in TREES or answer["power"]["basis"] != "extrapolated"
            assert watts <= most
            continue
        if name in SMALL:
            blocks = prod(catalogue(gpu.id)[name].grid)
            few = AT_REST._replace(sms=sms_at_work(blocks, gpu))
            small = predicted_power(model.parameters, few, default_clocks(gpu)).watts
            assert watts == pytest.approx(small, rel=0.03)
            assert small < rest
        elif name in UNITS:
            assert rest < watts <= most, name
        else:
            assert max(1.12 * rest, 0.35 * gpu.tdp_watts) < watts <= most


@pytest.mark.parametrize(
    "gpu_id", [*BOARDS, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_peak_loops_draw_much_and_small_launches_what_an_active_clock_costs(
    gpu_id: str, predictor: Predictor
) -> None:
    holds(load_gpu(gpu_id), predictor)


def test_trees_that_extrapolate_say_who_answers_instead(predictor: Predictor) -> None:
    answer = answered(predictor, load_gpu("ampere-84sm"), "energy.fma.f32")
    told = {one["code"]: one["detail"] for one in answer["warnings"]}
    assert answer["model"]["family"] == "physical"
    assert "catboost" in told["other_model_answers"]
    assert "gpu_uncalibrated" not in told  # its power was measured, for short runs


def test_trees_answer_where_they_are_asked_for(predictor: Predictor) -> None:
    one = catalogue("ampere-84sm")["launch.b1.t32"]
    body = {
        "ptx": one.ptx, "kernel": one.kernel, "gpu": "ampere-84sm", "model": "catboost",
        "launch": {"grid": one.grid, "block": one.block},
    }  # fmt: skip
    answer = predict(predictor, PredictRequest.model_validate(body))
    assert answer["model"]["family"] == "catboost"
    assert answer["power"]["basis"] == "extrapolated"


def test_zeros_make_matrix_products_draw_less(predictor: Predictor) -> None:
    gpu = load_gpu("a10g")  # its limit is far away
    random, zeros = (answered(predictor, gpu, "energy.mma.f16", of) for of in ("uniform", "zeros"))
    assert zeros["power"]["watts"] < 0.95 * random["power"]["watts"]
    assert zeros["power"]["high"] >= random["power"]["watts"]  # the hint may be wrong
    assert zeros["time"] == random["time"]
    same = [answered(predictor, gpu, "energy.fma.f32", of)["power"] for of in ("uniform", "zeros")]
    assert same[0] == same[1]
