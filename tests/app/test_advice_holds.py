"""Advice that the tool itself does not refute: data made up once, no number where it is a guess."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from studies.advice.study import PAIRS, PTX, judge
from studies.end_to_end import FOLDER, programs
from tests.app.test_advice import gemm
from tests.fixtures.kernels.data import FixtureKernel, Shape, path_for
from tests.fixtures.kernels.manifest import KERNELS
from tests.fixtures.ptx_text import stored_cuda, stored_ptx
from tests.needs import needs_nvrtc
from tests.reference.fixtures import reference_arguments
from tests.reference.machine import run
from wattcast.app import demo
from wattcast.app.services import Services
from wattcast.features.errors import LaunchError
from wattcast.features.launch import Launch
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


def fixture(source: str) -> str:
    return path_for(source, "sm_80").read_text("utf-8")


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


HALF = stored_ptx("half_of_the_lanes")
EVENS = HALF.replace("setp.gt.u32 %p1, %r1, 15", "and.b32 %r3, %r1, 1;\n setp.ne.u32 %p1, %r3, 0")


@pytest.mark.parametrize(
    ("ptx", "threads", "split"), [(HALF, 32, False), (EVENS, 32, False), (EVENS, 256, True)]
)
def test_lanes_fill_fewer_warps_only_where_their_block_has_more_than_one(
    services: Services, ptx: str, threads: int, split: bool
) -> None:
    found = told(services, asked("half", ptx=ptx, grid=[4096], block=[threads]))
    assert ("divergent_branch" in {each.code for each in found.advice}) is split


LONG = HALF.replace("p0)", "p0, .param .u32 p1)").replace("%r2, 9000", "%r2, %r3")
LONG = LONG.replace("mov.u32 %r2, 0;", "ld.param.u32 %r3, [p1];\n mov.u32 %r2, 0;")
GUARD = "setp.gt.u32 %p1, %r1, 15;\n @%p1 bra $OUT;\n"


def test_what_saves_nothing_noticeable_is_not_told_without_a_number_either(
    services: Services,
) -> None:
    """Half of the lanes take a loop whose trips nobody gives, or one instruction after it."""
    assert GUARD in LONG
    short = LONG.replace(GUARD, "").replace("$OUT:", f"{GUARD} add.f32 %f1, %f1, %f1;\n$OUT:")
    for ptx, codes in ((LONG, {"divergent_branch"}), (short, set())):
        found = told(services, asked("half", ptx=ptx, grid=[4096], block=[64]))
        assert found.needs
        assert {each.code for each in found.unpriced} == codes


def test_a_launch_that_is_over_at_once_is_not_drawn_together_on_fewer_sms(
    services: Services,
) -> None:
    few = told(services, asked("axpy_words", "h100-sxm5", grid=[64], block=[256],
                               arguments={"2": 64 * 256}))  # fmt: skip
    assert not few.advice
    many = told(services, asked("axpy_words", "h100-sxm5", grid=[16384], block=[256],
                                arguments={"2": 16384 * 256}))  # fmt: skip
    assert {"narrow_accesses", "lower_clocks"} <= {each.code for each in many.advice}


def test_an_array_with_conflicts_where_it_is_stored_and_loaded_is_padded_once(
    services: Services,
) -> None:
    kept = "mad.lo.u32 %r3, %r1, 128, %r3;\n st.shared.f32 [%r3], %f1;\n ld.shared.f32 %f2, [%r3];"
    ptx = HALF.replace(".reg .pred", ".shared .b8 tile[4096];\n .reg .pred")
    ptx = ptx.replace("fma.rn.f32 %f1, %f1, %f1, %f1;", f"mov.u32 %r3, tile;\n {kept}").replace(
        "%r1, 15", "%r1, 99"
    )
    found = told(services, asked("half", ptx=ptx, grid=[4096], block=[32]))
    (conflicts,) = [each for each in found.advice if each.code == "bank_conflicts"]
    assert {place.opcode for place in conflicts.places} == {"st.shared.f32", "ld.shared.f32"}


def numbers(shape: Shape) -> dict[str, Any]:
    return {
        str(position): value.item()
        for position, value in enumerate(shape.arguments.values())
        if isinstance(value, np.number)
    }


class Drawn(NamedTuple):
    """A request, and the fixture with the shape whose data it may be launched with."""

    request: PredictRequest
    kernel: FixtureKernel | None
    shape: Shape | None


MANY = 200
DRAWN_FROM = (
    *BOARDS,
    "t4",
    "rtx-3060",
    "rtx-3090",
    "gtx-1080-ti",
    "tesla-p100",
    "l40s",
    "rtx-5090",
)
BLOCKS_DRAWN = (32, 64, 96, 100, 128, 256, 384, 512, 1024)
TILES = ("gemm_square.sm_80/1", "gemm_square.sm_80/4", "gemm_fp16.sm_80/32x64x32x2x5")
DEMOS = (("vector_add", {"3": 1 << 20}), ("softmax", {"2": 1024}))


def drawn(seed: int) -> Drawn:
    """A random kernel in a random launch on a random board: of fixtures, textbook pairs, the demo
    and Triton."""
    random = Random(seed)
    gpu, source = random.choice(DRAWN_FROM), random.random()
    if source < 0.1:
        side = random.choice((512, 1024, 4096))
        request = gemm(random.choice(TILES), random.choice(BOARDS[1:]), side, side, side)
        return Drawn(request, None, None)
    if source < 0.15:
        name, given = random.choice(DEMOS)
        text = (Path(demo.__file__).parent / f"{name}.ptx").read_text("utf-8")
        launch = {"grid": [random.randint(1, 8192)], "block": [128], "arguments": given}
        body = {"ptx": text, "gpu": random.choice(BOARDS[1:]), "launch": launch}
        return Drawn(PredictRequest.model_validate({**body, "model": "physical"}), None, None)
    kernel, shape = None, None
    if source < 0.3:
        pair = random.choice(PAIRS)
        entry, launch = random.choice(
            ((pair.before, pair.launch), (pair.after, {**pair.launch, **pair.changed}))
        )
        text, launch = TEXT, dict(launch)
    else:
        kernel = random.choice(KERNELS)
        shape = random.choice((*kernel.shapes, kernel.large, kernel.large, kernel.large))
        entry, text = kernel.entry, fixture(kernel.source)
        launch = {
            "grid": list(shape.grid),
            "block": list(shape.block),
            "dynamic_shared_bytes": shape.dynamic_shared_bytes,
            "arguments": numbers(shape) if random.random() < 0.5 else {},
        }
    if random.random() < 0.5:
        if len(launch["block"]) - launch["block"].count(1) < 2:
            launch["block"] = [random.choice(BLOCKS_DRAWN)]
        times = random.choice((0.25, 0.5, 1, 2, 3.3))
        launch["grid"] = [max(1, int(times * each)) for each in launch["grid"]]
    return Drawn(asked(entry, gpu, text, **launch), kernel, shape)


FEW = 8
PARTS = [range(start, start + 48) for start in range(FEW, MANY, 48)]


@pytest.mark.parametrize(
    "part",
    [range(FEW), *(pytest.param(each, marks=pytest.mark.slow) for each in PARTS)],
    ids=str,
)
def test_every_number_is_met_by_the_prediction_of_the_change(
    services: Services, part: range
) -> None:
    """Of 200 random kernels and launches; none is advised where a loop's trips are a guess, and
    none computes otherwise."""
    for seed in part:
        each = drawn(seed)
        request = each.request
        where = f"{seed}: {request.kernel} {request.launch} on {request.gpu}"
        try:
            found = hold(services, request, where)
        except LaunchError:  # this board does not launch it
            continue
        if each.kernel is not None and each.shape is not None:
            computes_the_same(each.kernel, each.shape, request, found)


MOST_RUN = 4096
"""Threads up to which the reference interpreter runs a launch."""


def computes_the_same(
    kernel: FixtureKernel, shape: Shape, request: PredictRequest, found: AdviceAnswer
) -> None:
    """Another launch is advised only where the reference interpreter stores the same under it."""
    base = request.launch.launch()
    own = Launch.of(shape.grid, shape.block)
    if base.threads > MOST_RUN or (base.grid, base.block) != (own.grid, own.block):
        return
    given = numbers(shape).items() <= base.arguments.items()
    for each in found.advice:
        other = (each.request or {}).get("launch")
        if other and each.changed_ptx is None and given and request.ptx is not None:
            outputs = [
                run(request.ptx, kernel.entry, grid, block, reference_arguments(kernel.name, shape),
                    shape.dynamic_shared_bytes).memory
                for grid, block in ((base.grid, base.block), (other["grid"], other["block"]))
            ]  # fmt: skip
            for name in kernel.outputs:
                np.testing.assert_array_equal(outputs[1][name], outputs[0][name])


@pytest.mark.parametrize(
    ("kernel", "text", "launch"),
    [
        # Each block has a factor of its own.
        ("scale_reloading", TEXT, {"grid": [256], "block": [256], "arguments": {"3": 64}}),
        # Nothing keeps more threads than were launched from storing.
        ("warp_reduce", fixture("warp_reduce"), {"grid": [1001], "block": [32]}),
    ],
)
def test_no_launch_is_advised_that_computes_something_else(
    services: Services, kernel: str, text: str, launch: dict[str, Any]
) -> None:
    for gpu in DRAWN_FROM:
        found = told(services, asked(kernel, gpu, text, **launch))
        blocks = launch["block"][0] * launch["grid"][0]
        for each in found.advice:
            other = (each.request or {}).get("launch", launch)
            assert prod(other["grid"]) * prod(other["block"]) == blocks
            assert kernel != "scale_reloading" or other["block"] == launch["block"]


def hold(services: Services, request: PredictRequest, where: str) -> AdviceAnswer:
    """Nothing is told of a launch where trips are a guess; every number of advice that changes the
    launch or the PTX is met by the prediction of the change."""
    found = told(services, request)
    before = predict(services, request)
    if any(each["how"] == "assumed" for each in before["trip_counts"]):
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
    return found


@pytest.mark.parametrize("gpu", BOARDS[1::2])
@pytest.mark.parametrize(
    ("name", "unpriced"),
    [
        ("a thread per row", True),
        ("FP32 product without register tiles", True),
        # One value a thread is assumed, which is not worth counters of a block.
        ("histogram in global memory", False),
    ],
)
def test_the_three_kernels_of_a_new_user_are_advised_right_and_nothing_is_refuted(
    services: Services, name: str, unpriced: bool, gpu: str
) -> None:
    """Right first; numbers that a request or PTX makes are met; the kernel changed by hand saves
    no more than the bound, and what rests on a guess has no number."""
    (of,) = [each for each in PAIRS if each.name == name]
    found = hold(services, asked(of.before, gpu, **of.launch), name)
    by_hand = judge(services, of, gpu)
    assert found.advice[0].code == by_hand.first == of.code
    assert by_hand.holds, by_hand.off
    bare = told(services, asked(of.before, gpu, **{**of.launch, "arguments": {}}))
    assert not bare.advice
    assert bare.needs
    assert [each.code for each in bare.unpriced] == ([of.code] if unpriced else [])


EXACT = stored_cuda("exact_functions")


@needs_nvrtc
@pytest.mark.parametrize("options", [[], ["--use_fast_math"]])
def test_an_option_of_the_compiler_is_tried_where_it_was_not_given(
    services: Services, options: list[str]
) -> None:
    launch = {"grid": [4096], "block": [256], "arguments": {"n": 32}}
    body = {"cuda": EXACT, "gpu": "a100", "launch": launch, "compiler_options": options}
    found = hold(services, PredictRequest.model_validate({**body, "model": "physical"}), "exact")
    told_of = [each for each in found.advice if each.code == "compiler_options"]
    assert len(told_of) == (not options)
    for each in told_of:
        assert each.request == {"compiler_options": ["--use_fast_math"]}
        assert each.promise == "estimate"
        assert each.gain.time_percent > 10


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get(FOLDER), reason=f"no PTX of the public programs ({FOLDER} is not set)"
)
@pytest.mark.parametrize("gpu", BOARDS)
def test_numbers_for_public_programs_are_met(services: Services, gpu: str) -> None:
    for each in programs():
        request = PredictRequest.model_validate(each.request(gpu, model="physical"))
        hold(services, request, f"{each.name} on {gpu}")
