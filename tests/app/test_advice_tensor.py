"""Advice for matrix kernels: where it is right, and where it must be silent."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

import wattcast
from studies.advice.study import PTX
from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.triton.build import HERE
from wattcast.app.services import Services
from wattcast.predictor.advise import advise
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.triton import read_cache


@cache
def kernels() -> dict[str, Any]:
    return {one.parameters["file"]: one for one in read_cache(HERE / "ptx")}


def gemm(name: str, gpu: str, m: int, n: int, k: int) -> PredictRequest:
    sizes: dict[str, Any] = {"m": m, "n": n, "k": k}
    sizes |= {"a": {"elements": m * k}, "b": {"elements": n * k}, "c": {"elements": m * n}}
    asked = kernels()[f"{name}.json"].request(
        lambda of: (-(-m // of["BLOCK_M"]) * -(-n // of["BLOCK_N"]),), sizes
    )
    return PredictRequest.model_validate({**asked, "gpu": gpu, "model": "physical"})


def told(services: Services, request: PredictRequest, code: str) -> list[dict[str, Any]]:
    found = advise(services, request)
    AdviceAnswer.model_validate(found)
    return [each for each in found["advice"] if each["code"] == code]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_pipeline_too_shallow_gains_what_a_deeper_one_takes_less(
    services: Services, stages: int
) -> None:
    """Few blocks and a long depth: nothing else on the SM hides the wait."""
    shape = ("a100", 512, 512, 8192)
    request = gemm(f"gemm_square.sm_80/{stages}", *shape)
    (found,) = told(services, request, "shallow_pipeline")
    assert found["places"][0]["opcode"].startswith("cp.async.wait" if stages > 1 else "ld.global")
    assert "num_stages=3" in found["remedy"]
    now, deep = (
        predict(services, each)["time"]["seconds"]
        for each in (request, gemm("gemm_square.sm_80/4", *shape))
    )
    assert deep < now
    # The changed kernel has one stage more than advised: near what its prediction gains.
    assert found["gain"]["seconds"] == pytest.approx(now - deep, rel=0.35)
    assert found["gain"]["joules"] > 0


def test_a_deep_pipeline_is_left_alone(services: Services) -> None:
    request = gemm("gemm_square.sm_80/4", "a100", 512, 512, 8192)
    assert not told(services, request, "shallow_pipeline")


def test_a_small_tile_gains_and_a_large_one_is_left_alone(services: Services) -> None:
    shape = ("a100", 4096, 4096, 4096)
    small = gemm("gemm_fp16.sm_80/32x64x32x2x5", *shape)
    (found,) = told(services, small, "small_tile")
    assert found["places"][0]["opcode"].startswith("mma.sync")
    assert {each["name"] for each in found["activity"]} >= {"global_load_sectors", "l2_sectors"}
    # The same kernel with a tile of 64 x 64 and twice the warps is such a one.
    now, larger = (
        predict(services, each)["energy"]["joules"]
        for each in (small, gemm("gemm_square.sm_80/4", *shape))
    )
    # Only loads are taken from the small one: no more is promised than the larger one brings.
    assert found["promise"] == "at_least"
    assert 0.05 * (now - larger) < found["gain"]["joules"] <= now - larger
    assert not told(services, gemm("gemm_fp16.sm_80/128x256x64x8x3", *shape), "small_tile")


@pytest.mark.slow
def test_fp32_sums_are_told_of_where_the_board_halves_its_rate_for_them(
    services: Services,
) -> None:
    shape = (4096, 4096, 4096)
    (found,) = told(
        services, gemm("gemm_fp16.sm_120/128x256x64x8x3", "rtx-5090", *shape), "wide_sums"
    )
    assert found["gain"]["time_percent"] > 20
    assert found["gain"]["joules"] > 0
    assert all(".f32.f16.f16.f32" in each["opcode"] for each in found["places"])
    for name, gpu in (
        ("gemm_half.sm_120", "rtx-5090"),  # does so already
        ("gemm_bf16.sm_120", "rtx-5090"),  # has no narrower sums
        ("gemm_fp16.sm_80/128x256x64x8x3", "a100"),  # adds up in FP32 at full rate
    ):
        assert not told(services, gemm(name, gpu, *shape), "wide_sums"), name


ROWS = stored_ptx("padded_rows")


def test_rows_that_meet_in_the_banks_of_ldmatrix_want_a_swizzle(services: Services) -> None:
    def asked(pitch: int) -> list[dict[str, Any]]:
        body = {"ptx": ROWS.format(pitch=pitch), "gpu": "a100", "loops": {"default": 1000}}
        launch = {"grid": [864], "block": [256]}
        request = PredictRequest.model_validate({**body, "launch": launch})
        return told(services, request, "bank_conflicts")

    (found,) = asked(128)
    assert found["places"][0]["opcode"].startswith("ldmatrix")
    assert "swizzle" in found["remedy"]
    assert "takes 32.0 passes" in found["detail"]
    assert found["gain"]["time_percent"] > 20
    assert not asked(144)


def test_triton_swizzles_its_shared_memory(services: Services) -> None:
    name = "gemm_fp16.sm_80/128x128x32x4x4"
    assert "ldmatrix" in (HERE / "ptx" / f"{name}.ptx").read_text()
    found = advise(services, gemm(name, "a100", 2048, 2048, 2048))
    conflicts = [each for each in found["advice"] if each["code"] == "bank_conflicts"]
    assert not any("ldmatrix" in json.dumps(each["places"]) for each in conflicts)


def launches(side: int, *passes: str, width: int | None = None) -> list[dict[str, Any]]:
    """A product with elementwise passes after it, as ``wattcast.fusion`` takes them."""
    product = gemm("gemm_fp16.sm_80/128x256x64x8x3", "a100", side, side, side)
    asked = product.model_dump(exclude_defaults=True)
    launch = asked.pop("launch")
    found = [{"ptx": asked["ptx"], "kernel": "gemm", **launch}]
    for name in passes:
        columns = width or side
        given = {"x": {"elements": side * columns}, "y": {"elements": side * columns}}
        one = kernels()[f"{name}.sm_80.json"].request(
            side * columns // 1024, {**given, "columns": columns}
        )
        found.append({"ptx": one["ptx"], "kernel": name, **one["launch"]})
    return found


@pytest.mark.slow
def test_passes_after_a_product_save_what_they_write_and_read_again() -> None:
    side = 4096
    (found,) = wattcast.fusion(launches(side, "bias_gelu"), gpu="a100", registry=False)
    assert found["kernels"] == ["gemm", "bias_gelu"]
    assert found["bytes"] == pytest.approx(2 * 2 * side**2)  # FP16, written and read
    alone = launches(side, "bias_gelu")[1]
    one = wattcast.predict(**alone, gpu="a100", model="physical", registry=False)
    assert one.time is not None
    assert one.energy is not None
    assert 0 < found["gain"]["joules"] < one.energy.joules
    assert 0 < found["gain"]["seconds"] < one.time.seconds
    # Two passes are fused together, and the second saves as many bytes again.
    (twice,) = wattcast.fusion(launches(side, *2 * ["bias_gelu"]), gpu="a100", registry=False)
    assert twice["bytes"] == pytest.approx(2 * found["bytes"])
    assert twice["gain"]["joules"] > found["gain"]["joules"]


def stream(words: int, kernel: str = "axpy_words") -> dict[str, Any]:
    given = {"ptx": PTX.read_text(encoding="utf-8"), "kernel": kernel, "arguments": {"2": words}}
    return {**given, "grid": [words // 256], "block": [256]}


def test_two_streaming_kernels_save_what_one_writes_and_the_other_reads() -> None:
    words = 1 << 24
    (found,) = wattcast.fusion(2 * [stream(words)], gpu="a100", registry=False)
    assert found["kernels"] == ["axpy_words", "axpy_words"]
    assert found["bytes"] == pytest.approx(2 * 4 * words, rel=0.01)
    alone = wattcast.predict(**stream(words), gpu="a100", model="physical", registry=False)
    assert alone.time is not None
    # Of four streams of equal length two are left.
    assert found["gain"]["seconds"] == pytest.approx(alone.time.seconds, rel=0.1)
    assert found["gain"]["joules"] > 0
    turned = {**stream(4096, "transpose_padded"), "grid": [128, 128], "block": [32, 8]}
    for other in (stream(words // 2), turned):  # reads half of it; has to wait for other threads
        assert not wattcast.fusion([stream(words), other], gpu="a100", registry=False)


@pytest.mark.slow
def test_what_is_no_pass_over_the_product_is_not_fused() -> None:
    def none(*given: dict[str, Any]) -> bool:
        return not wattcast.fusion(given, gpu="a100", registry=False)

    product, one = launches(4096, "bias_gelu")
    assert none(product)
    assert none(one, product)  # runs before it
    assert none(product, product)
    assert none(*launches(4096, "bias_gelu", width=1024))  # reads a quarter of it
    assert none(*launches(4096, "softmax"))  # needs whole rows: shared memory
