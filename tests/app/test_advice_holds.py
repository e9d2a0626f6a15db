"""Advice that the tool itself does not refute: data made up once, no number where it is a guess."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from studies.advice.study import PTX
from studies.end_to_end import FOLDER, programs
from tests.app.test_advice_tensor import gemm
from tests.fixtures.kernels.data import FixtureKernel, Shape, path_for
from tests.fixtures.kernels.manifest import KERNELS
from wattcast.app.services import Services
from wattcast.predictor.advise import advise
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import SweepRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.sweep import sweep

WITHIN = 0.05
"""How far the prediction of what advice changes may lie from what it promises."""

TEXT = PTX.read_text(encoding="utf-8")
BLOCKS = (128, 256, 384, 512, 1024)
BOARDS = ("tesla-v100", "a100-sxm4-40gb", "h100-sxm5", "rtx-4090")
THREADS = 4096 * 256

ROWS = {"elements": THREADS + 1, "values": "sorted", "low": 0, "high": 32 * THREADS}
COLUMNS = {"elements": THREADS, "values": "index"}
MATRIX: dict[str, Any] = {"0": ROWS, "1": COLUMNS, "5": THREADS}
"""A sparse matrix with 32 elements in each row, described."""


def asked(kernel: str, gpu: str = "tesla-v100", ptx: str = TEXT, **launch: Any) -> PredictRequest:
    body = {"ptx": ptx, "kernel": kernel, "gpu": gpu, "launch": launch, "model": "physical"}
    return PredictRequest.model_validate(body)


def told(services: Services, request: PredictRequest) -> AdviceAnswer:
    return AdviceAnswer.model_validate(advise(services, request))


@pytest.mark.parametrize("given", [{}, {"5": 1_000_000}], ids=["nothing given", "rows given"])
def test_made_up_rows_take_the_same_time_in_blocks_of_every_size(
    services: Services, given: dict[str, int]
) -> None:
    seconds = [
        predict(
            services,
            asked("spmv_scalar", grid=[-(-THREADS // block)], block=[block], arguments=given),
        )["time"]["seconds"]
        for block in BLOCKS
    ]
    assert max(seconds) < 1.1 * min(seconds)


def test_a_sweep_makes_up_the_same_rows(services: Services) -> None:
    body = {"ptx": TEXT, "kernel": "spmv_scalar", "gpu": "tesla-v100"}
    launch = {"grid": [4096], "block": [256]}
    blocks = [[each] for each in BLOCKS]
    found = sweep(
        services, SweepRequest.model_validate({**body, "launch": launch, "blocks": blocks})
    )
    seconds = [each["time"]["seconds"] for each in found["points"]]
    assert len(seconds) > 2
    assert max(seconds) < 1.1 * min(seconds)


@pytest.mark.parametrize("gpu", BOARDS)
def test_what_rests_on_a_guess_gets_no_number_and_asks_for_the_data(
    services: Services, gpu: str
) -> None:
    found = told(services, asked("spmv_scalar", gpu, grid=[4096], block=[256]))
    assert not found.advice
    assert found.unpriced
    assert [need.position for need in found.needs] == [0, 5]
    lines = [str(getattr(each, "text", "")) for each in found.report()]
    assert any(line.startswith("give spmv_scalar_param_0") for line in lines)
    assert not any("%" in line and "energy" in line for line in lines)


def test_data_that_are_described_get_numbers(services: Services) -> None:
    found = told(services, asked("spmv_scalar", grid=[4096], block=[256], arguments=MATRIX))
    assert found.advice
    assert not found.unpriced
    assert not found.needs


def test_a_gather_is_not_cured_by_another_layout(services: Services) -> None:
    found = told(services, asked("spmv_warp", grid=[131072], block=[256], arguments=MATRIX))
    assert "uncoalesced_access" not in {each.code for each in (*found.advice, *found.unpriced)}


@pytest.mark.parametrize(
    ("kernel", "grid", "block"),
    [
        ("matmul_tiled_32", [32, 32], [32, 32]),
        ("matmul_tiled", [64, 64], [16, 16]),
        ("dgemm_tiled", [64, 64], [16, 16]),
    ],
)
def test_a_broadcast_is_no_bank_conflict(
    services: Services, kernel: str, grid: list[int], block: list[int]
) -> None:
    found = told(services, asked(kernel, grid=grid, block=block, arguments={"3": 1024}))
    assert "bank_conflicts" not in {each.code for each in (*found.advice, *found.unpriced)}


def numbers(shape: Shape) -> dict[str, Any]:
    return {
        str(position): value.item()
        for position, value in enumerate(shape.arguments.values())
        if isinstance(value, np.number)
    }


def launches() -> Iterator[tuple[FixtureKernel, Shape, str, bool]]:
    """Kernels in launches of 2 sizes on 4 boards, with their numbers given and without."""
    for kernel in KERNELS:
        for shape in (kernel.shapes[-1], kernel.large):
            for gpu in BOARDS:
                for given in (True, False):
                    yield kernel, shape, gpu, given


SAMPLED = random.Random(42).sample(list(launches()), 200)
FEW = 8
PARTS = [range(start, start + 24) for start in range(FEW, len(SAMPLED), 24)]


@pytest.mark.parametrize(
    "part",
    [range(FEW), *(pytest.param(each, marks=pytest.mark.slow) for each in PARTS)],
    ids=str,
)
def test_every_number_is_met_by_the_prediction_of_the_change(
    services: Services, part: range
) -> None:
    """Of 200 launches of fixtures; no launch is advised where a loop's trips are a guess."""
    for kernel, shape, gpu, given in (SAMPLED[at] for at in part):
        text = path_for(kernel.source, "sm_80").read_text()
        launch = {
            "grid": list(shape.grid),
            "block": list(shape.block),
            "dynamic_shared_bytes": shape.dynamic_shared_bytes,
            "arguments": numbers(shape) if given else {},
        }
        hold(services, asked(kernel.entry, gpu, text, **launch), f"{kernel.name} {launch} on {gpu}")


def hold(services: Services, request: PredictRequest, where: str) -> None:
    """Nothing is told of a launch where trips are a guess; every number of advice that changes the
    launch or the PTX is met by the prediction of the change."""
    found = told(services, request)
    assumed = predict(services, request)["trip_counts"]
    if any(each["how"] == "assumed" for each in assumed):
        assert not found.advice, where
    for each in found.advice:
        if each.request is None and each.changed_ptx is None:
            assert each.promise != "estimate", where
            continue
        changed = {**request.model_dump(exclude_defaults=True), **(each.request or {})}
        changed["ptx"] = each.changed_ptx or request.ptx
        then = predict(services, PredictRequest.model_validate(changed))
        told_of = f"{each.code} of {where}"
        assert then["time"]["seconds"] == pytest.approx(each.after.seconds, rel=WITHIN), told_of
        assert then["energy"]["joules"] == pytest.approx(each.after.joules, rel=WITHIN), told_of


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get(FOLDER), reason=f"no PTX of the public programs ({FOLDER} is not set)"
)
@pytest.mark.parametrize("gpu", BOARDS)
def test_numbers_for_public_programs_are_met(services: Services, gpu: str) -> None:
    for each in programs():
        request = PredictRequest.model_validate(each.request(gpu, model="physical"))
        hold(services, request, f"{each.name} on {gpu}")


@pytest.mark.slow
@pytest.mark.parametrize("gpu", BOARDS[1:])
def test_numbers_for_products_of_triton_are_met(services: Services, gpu: str) -> None:
    for name in ("gemm_square.sm_80/1", "gemm_square.sm_80/4", "gemm_fp16.sm_80/32x64x32x2x5"):
        for side in (512, 4096):
            hold(services, gemm(name, gpu, side, side, side), f"{name}, {side} on {gpu}")
