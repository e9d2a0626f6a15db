"""Advice: grounded in the analysis, and every gain the difference of two predictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

import wattcast
from studies.advice.study import PTX
from tests.app.conftest import Run, settings_at
from tests.app.test_problems import json_of, problem
from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.tables import table
from tests.fixtures.triton.build import HERE
from tests.needs import needs_ptxas
from tests.wide import wide
from wattcast.app.services import Services
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.cuda import PtxasReport
from wattcast.features.findings.rules import TILE
from wattcast.models.clocks import default_clocks
from wattcast.models.power.physical import WorkAtTime
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import predicted_seconds
from wattcast.predictor import parts
from wattcast.predictor.advise import advise
from wattcast.predictor.advise.adviser import LEAST_GAIN_PERCENT
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.triton import read_cache

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels" / "ptx"

HEAD = table("bodies", "advice")["head"]

TAIL = table("bodies", "advice")["tail"]

PROMOTED = f"""{HEAD}$LOOP:
 cvt.f64.f32 %fd1, %f1;
 mul.f64 %fd2, %fd1, 0d4000000000000000;
 add.f64 %fd3, %fd2, 0d3FF0000000000000;
 cvt.rn.f32.f64 %f1, %fd3;
{TAIL}"""

STORED = PROMOTED.replace(" cvt.rn.f32.f64", " st.global.f64 [%rd3], %fd3;\n cvt.rn.f32.f64")

DIVIDING = f"""{HEAD}$LOOP:
 div.rn.f32 %f1, %f1, %f9;
{TAIL}"""

DIVIDING_INTEGERS = f"""{HEAD}$LOOP:
 rem.u32 %r6, %r5, %r9;
 cvt.rn.f32.u32 %f2, %r6;
 add.f32 %f1, %f1, %f2;
{TAIL}"""

INVARIANT = f"""{HEAD}$LOOP:
 sqrt.rn.f32 %f2, %f9;
 add.f32 %f1, %f1, %f2;
{TAIL}"""

VARYING = f"""{HEAD}$LOOP:
 add.f32 %f2, %f1, 0f3F800000;
 div.rn.f32 %f1, %f9, %f2;
 sqrt.rn.f32 %f1, %f1;
{TAIL}"""

LOCAL = DIVIDING.replace(" .reg .pred", " .local .align 4 .b8 depot[64];\n .reg .pred").replace(
    " div.rn.f32 %f1, %f1, %f9;", " st.local.f32 [depot], %f1;\n ld.local.f32 %f1, [depot+4];"
)


def request_for(ptx: str, **changes: Any) -> PredictRequest:
    body = {"ptx": ptx, "gpu": "tesla-v100", "launch": {"grid": [640], "block": [256]}, **changes}
    return PredictRequest.model_validate(body)


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.sm_70.ptx").read_text(encoding="utf-8")


def analysed(services: Services, request: PredictRequest) -> KernelAnalysis:
    assert request.gpu is not None
    gpu = services.gpus.load(request.gpu)
    return parts.analysed(services, request, services.sources.read(request, gpu), gpu, ptxas=True)


STARTS = {
    "grid": [640],
    "block": [256],
    "arguments": {"1": {"values": "uniform", "low": 1, "high": 1000}},
}
"""Numbers that a data-dependent loop starts from: what it does rests on no made-up data."""


def transposed(kernel: str) -> PredictRequest:
    launch = {"grid": [64, 64], "block": [32, 8]}
    return request_for(fixture("transpose"), kernel=kernel, launch=launch)


CASES: dict[str, tuple[PredictRequest, str]] = {
    "uncoalesced_access": (transposed("transpose_direct"), "st.global.f32"),
    "bank_conflicts": (transposed("transpose_shared"), "ld.shared.f32"),
    "divergent_branch": (request_for(fixture("collatz"), launch=STARTS), "bra"),
    "fp64_between_fp32": (request_for(PROMOTED), "mul.f64"),
    "division_in_loop": (request_for(DIVIDING), "div.rn.f32"),
    "invariant_in_loop": (request_for(INVARIANT), "sqrt.rn.f32"),
    "local_memory": (request_for(LOCAL), "st.local.f32"),
}


def advice_for(services: Services, request: PredictRequest) -> dict[str, Any]:
    found = advise(services, request)
    AdviceAnswer.model_validate(found)
    return found


def named(found: dict[str, Any], code: str) -> list[dict[str, Any]]:
    return [each for each in found["advice"] if each["code"] == code]


@pytest.mark.parametrize("code", sorted(CASES))
def test_what_is_found_in_the_code_gains_what_the_models_say(services: Services, code: str) -> None:
    request, opcode = CASES[code]
    found = advice_for(services, request)
    told = named(found, code)
    assert told, [each["code"] for each in found["advice"]]
    assert told[0]["places"][0]["opcode"].startswith(opcode)
    assert told[0]["places"][0]["text"].lstrip("@!%p0123456789 ").startswith(opcode)
    analysis = analysed(services, request)
    model, clocks = services.power.physical(analysis.gpu), default_clocks(analysis.gpu)
    more = beside(analysis.extras)
    before = predict(services, request.model_copy(update={"model": "physical"}))
    assert found["before"]["joules"] == pytest.approx(before["energy"]["joules"])
    for each in told:
        changed = {part["name"]: part["after"] for part in each["activity"]}
        values = analysis.activity.values()
        assert {p["name"]: p["before"] for p in each["activity"]} == {n: values[n] for n in changed}
        mended = replace(analysis.activity, **changed)
        if code == "uncoalesced_access":
            more = replace(more, pieces=0.0, store_headers=0.0)
        if code == "register_tiling" and more.waiting is not None:
            waits = more.waiting._replace(barriers=more.waiting.barriers / TILE)
            more = replace(more, waiting=waits)
        seconds = predicted_seconds(mended, analysis.gpu, clocks, more=more)
        watts = model.predict(WorkAtTime(mended, seconds, more), clocks).estimate.value
        gain = before["energy"]["joules"] - seconds * watts
        assert each["gain"]["joules"] == pytest.approx(gain, rel=1e-9)
        assert each["gain"]["seconds"] == pytest.approx(before["time"]["seconds"] - seconds)
        assert each["after"]["joules"] == pytest.approx(seconds * watts)


OTHERS: dict[str, PredictRequest] = {
    "tail_effect": request_for(
        fixture("collatz"), launch={**STARTS, "grid": [81], "block": [1024]}
    ),
    "lower_clocks": request_for(fixture("strided"), launch={"grid": [4096], "block": [256]}),
    "occupancy_limiter": request_for(fixture("copy"), launch={"grid": [32768], "block": [32]}),
}


@pytest.mark.parametrize("code", sorted(OTHERS))
def test_another_request_gains_what_predict_answers_for_it(services: Services, code: str) -> None:
    request = OTHERS[code]
    found = advice_for(services, request)
    told = named(found, code)
    assert told, [(each["code"], each["detail"]) for each in found["advice"]]
    body = request.model_dump(exclude_defaults=True)
    before = predict(services, PredictRequest.model_validate({**body, "model": "physical"}))
    changed = {**body, **told[0]["request"], "model": "physical"}
    after = predict(services, PredictRequest.model_validate(changed))
    gain = told[0]["gain"]
    joules = before["energy"]["joules"] - after["energy"]["joules"]
    assert gain["joules"] == pytest.approx(joules, rel=1e-9)
    seconds = before["time"]["seconds"] - after["time"]["seconds"]
    assert gain["seconds"] == pytest.approx(seconds, rel=1e-9, abs=1e-15)
    assert gain["energy_percent"] == pytest.approx(100 * joules / before["energy"]["joules"])


def test_registers_that_keep_blocks_out_are_told_of(services: Services) -> None:
    request = request_for(PROMOTED, registers_per_thread=100, launch={"grid": [80], "block": [256]})
    found = advice_for(services, request)
    for each in named(found, "occupancy_limiter"):
        assert each["request"]["registers_per_thread"] < 100
        assert each["gain"]["joules"] > 0


CHASING = wide(100).replace(
    " bar.sync 0;",
    " mov.u64 %rd3, %rd2;\n"
    + 64
    * (" ld.global.u32 %r1, [%rd3];\n mul.wide.u32 %rd3, %r1, 4;\n add.s64 %rd3, %rd2, %rd3;\n")
    + " st.global.u32 [%rd3], %r1;\n bar.sync 0;",
)
"""Loads that wait for each other while a hundred values are kept: more warps would hide them."""


@needs_ptxas
def test_fewer_registers_are_not_advised_where_ptxas_would_spill(
    services: Services, tmp_path: Path
) -> None:
    request = request_for(CHASING, launch={"grid": [4096], "block": [64]})
    (unsure,) = named(advice_for(services, request), "occupancy_limiter")
    assert unsure["request"]["registers_per_thread"] == 96
    assert "check that nothing is spilled" in unsure["remedy"]
    asked = Services(settings_at(tmp_path, ptxas="auto"))
    assert not named(advice_for(asked, request), "occupancy_limiter")


def test_fewer_registers_that_spill_nothing_are_advised_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(_module: Any, _function: Any, _gpu: Any, most: int | None = None) -> PtxasReport:
        return PtxasReport(min(most or 104, 104), 0, 0, 0, 0, 70)

    def assembling(*code: Any) -> nullcontext[Callable[[], PtxasReport]]:
        return nullcontext(lambda: report(*code))

    monkeypatch.setattr("wattcast.features.analysis.assembling", assembling)
    monkeypatch.setattr("wattcast.predictor.advise.launches.assembled", report)
    request = request_for(CHASING, launch={"grid": [4096], "block": [64]})
    services = Services(settings_at(tmp_path, ptxas="auto"))
    (sure,) = named(advice_for(services, request), "occupancy_limiter")
    assert "ptxas spills nothing then" in sure["remedy"]


# --- what is not told ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ptx", "code"),
    [
        (STORED, "fp64_between_fp32"),  # its double is stored: it is wanted
        (VARYING, "division_in_loop"),  # the divisor changes in each round
        (VARYING, "invariant_in_loop"),
        (DIVIDING, "invariant_in_loop"),
        (DIVIDING, "bank_conflicts"),
        (DIVIDING, "uncoalesced_access"),
        (DIVIDING, "divergent_branch"),
        (DIVIDING, "local_memory"),
    ],
)
def test_nothing_is_told_without_grounds(services: Services, ptx: str, code: str) -> None:
    assert not named(advice_for(services, request_for(ptx)), code)


def test_integer_divisions_by_an_argument_count_as_multiplications(services: Services) -> None:
    (told,) = named(advice_for(services, request_for(DIVIDING_INTEGERS)), "division_in_loop")
    changes = {part["name"]: part for part in told["activity"]}
    assert changes["sfu_instructions"]["after"] < changes["sfu_instructions"]["before"]
    products, others = changes["fma_pipe_instructions"], changes["alu_pipe_instructions"]
    assert (
        0 < products["after"] < products["before"]
    )  # a division is nine of them, and twelve others
    assert others["after"] < others["before"]


@pytest.mark.parametrize("name", ["copy", "strided"])
def test_what_was_assumed_of_a_launch_is_kept_for_another_grid(
    services: Services, name: str
) -> None:
    """Four words a thread in a quarter of the blocks once saved 86 %: n stood for fewer threads."""
    blocks, threads = 4096, 256
    launch = {"grid": [blocks], "block": [threads]}
    alone = advice_for(services, request_for(fixture(name), launch=launch))
    given = {**launch, "arguments": {"2": blocks * threads}}
    told = advice_for(services, request_for(fixture(name), launch=given))
    for side in (alone, told):
        assert side["advice"]
    assert [(each["code"], each["gain"]) for each in alone["advice"]] == [
        (each["code"], pytest.approx(each["gain"])) for each in told["advice"]
    ]


def test_advice_is_ranked_and_worth_it(services: Services) -> None:
    for request, _ in CASES.values():
        advice = advice_for(services, request)["advice"]
        free = [
            (each["code"] != "lower_clocks")
            + (
                each["code"] != "lower_clocks"
                and each["gain"]["energy_percent"] >= 2
                and each["gain"]["time_percent"] > -2
            )
            for each in advice
        ]
        gains = [each["gain"]["joules"] for each in advice]
        ranked = list(zip(free, gains, strict=True))
        assert ranked == sorted(ranked, reverse=True)
        for each in advice:
            gain = each["gain"]
            assert max(gain["energy_percent"], gain["time_percent"]) >= LEAST_GAIN_PERCENT
            assert gain["joules"] >= 0
            assert each["request"] is not None or each["activity"]


# --- over HTTP and on the command line -----------------------------------------------------
def test_over_http(client: httpx.Client, services: Services) -> None:
    request, _ = CASES["uncoalesced_access"]
    body = request.model_dump(exclude_defaults=True)
    prediction = client.post("/predict", json=body).json()
    answer = json_of(client.get(f"/predictions/{prediction['id']}/advice"), AdviceAnswer)
    here = json.loads(advise(services, request).json_bytes())
    assert answer["advice"] == here["advice"]
    problem(client.get(f"/predictions/{uuid4()}/advice"), 404, "unknown-prediction")
    launch = {"grid": [64], "block": [64]}
    work = {"gpu": "v100", "launch": launch, "work": {"dram_bytes": 1e9, "int_ops": 1e9}}
    measured = client.post("/predict", json=work).json()
    problem(client.get(f"/predictions/{measured['id']}/advice"), 422, "no-explanation")


def test_on_the_command_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "strided.ptx"
    file.write_text(fixture("strided"))
    launch = (str(file), "--gpu", "v100", "--grid", "4096", "--block", "256")
    out, _ = run("advise", *launch)
    for word in ("uncoalesced access", "% energy", "sectors", "ld.global.f32"):
        assert word in out
    out, _ = run("advise", *launch, "--json")
    assert json.loads(out)["advice"][0]["code"] == "uncoalesced_access"
    out, _ = run("hotspots", *launch)
    for word in ("PTX line", "ld.global.f32", "energy", "starting the launch"):
        assert word in out
    out, _ = run("hotspots", *launch, "--rows", "2", "--json")
    assert len(json.loads(out)["lines"]["rows"]) == 2


def test_the_cost_of_an_application_on_the_command_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "application.json"
    kernel = {"launch": {"grid": [4096], "block": [256]}, "launches": 1000000}
    file.write_text(json.dumps({"ptx": fixture("strided"), "gpu": "v100", "kernels": [kernel]}))
    out, _ = run("cost", str(file), "--price-per-kwh", "0.3", "--currency", "EUR")
    for word in ("kWh", "EUR", "1,000,000"):
        assert word in out
    assert "CO2" not in out
    out, _ = run("cost", str(file), "--grams-co2-per-kwh", "400", "--json")
    answer = json.loads(out)
    assert answer["price"] is None
    assert answer["co2"]["grams"] == pytest.approx(400 * answer["kwh"])
    _, err = run("cost", str(file), "--price-per-kwh", "0.3", status=2)
    assert "--currency" in err
    _, err = run("cost", str(tmp_path / "none.json"), status=2)
    assert "none.json" in err


# --- Advice for matrix kernels: where it is right, and where it must be silent


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
