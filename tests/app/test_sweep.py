"""POST /sweep and ``wattcast sweep``: shapes that do the same work."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.app.conftest import Run
from tests.app.test_problems import json_of, problem
from tests.fixtures.kernels.data import Buffer, FixtureKernel, Shape, targets
from tests.fixtures.kernels.manifest import KERNELS
from tests.fixtures.ptx_text import stored_cuda
from tests.needs import needs_nvrtc
from tests.reference.fixtures import ptx_text, reference_arguments, run_fixture
from tests.reference.machine import run
from wattcast.app.services import Services
from wattcast.features.errors import ConstraintError, LaunchError, ServiceError
from wattcast.features.launch import Launch, axes_of, covering_grid, usual_blocks
from wattcast.models.choice import Point, pareto
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.sweep import SweepAnswer, SweepRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.sweep import sweep
from wattcast.predictor.variants import dimensions

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kernels"

MATMUL = (FIXTURES / "time" / "tiled_matmul.ptx").read_text(encoding="utf-8")

LAUNCH = {"grid": [4096], "block": [256]}

UNITS = (("time", "seconds"), ("power", "watts"), ("energy", "joules"))

size = st.integers(1, 3000)


def asked(services: Services, ptx: str, /, **changes: Any) -> dict[str, Any]:
    body = {"ptx": ptx, "gpu": "tesla-v100", "launch": LAUNCH, **changes}
    if "gpus" in body:
        del body["gpu"]
    answer = sweep(services, SweepRequest.model_validate(body))
    SweepAnswer.model_validate(answer)
    return answer


# --- shapes ----------------------------------------------------------------------------------
@given(
    grid=st.tuples(size, size, size),
    block=st.tuples(size, size, size),
    new=st.tuples(size, size, size),
)
def test_a_covering_grid_is_the_smallest_that_covers(
    grid: tuple[int, int, int], block: tuple[int, int, int], new: tuple[int, int, int]
) -> None:
    found = covering_grid(Launch(grid, block), new)
    for axis in range(3):
        extent = grid[axis] * block[axis]
        assert found[axis] * new[axis] >= extent > (found[axis] - 1) * new[axis]


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_usual_blocks_are_whole_warps_that_fit(axes: int) -> None:
    blocks = usual_blocks(axes)
    assert len(set(blocks)) == len(blocks)
    for block in blocks:
        assert prod(block) % 32 == 0
        assert 32 <= prod(block) <= 1024
        assert all(part == 1 for part in block[axes:])
    assert axes_of(Launch.of([5] * axes, [8] * axes)) == axes


# --- points ----------------------------------------------------------------------------------
def test_every_point_is_what_predict_answers_for_its_shape(
    services: Services, vector_add: str
) -> None:
    answer = asked(services, vector_add, blocks=[64, 128, 256, 1024])
    assert [point["block"] for point in answer["points"]] == [
        [64, 1, 1], [128, 1, 1], [256, 1, 1], [1024, 1, 1],
    ]  # fmt: skip
    mode = answer["models"][0]["analysis"]
    for point in answer["points"]:
        assert point["threads"] == 4096 * 256
        request = PredictRequest(
            ptx=vector_add,
            gpu="tesla-v100",
            launch={"grid": point["grid"], "block": point["block"]},  # type: ignore[arg-type]
            model="physical",
            analysis=mode,
        )
        alone = predict(services, request)
        for name, unit in UNITS:
            assert point[name] == alone[name]
            assert alone[name][unit] > 0


def test_shapes_are_worked_out_where_symbols_know_as_much_as_execution(
    services: Services, vector_add: str
) -> None:
    streaming = asked(services, vector_add, blocks=[64, 512])
    assert streaming["models"][0]["analysis"] == "symbolic"
    # Tiles that blocks share: reuse in caches is followed by symbols too.
    launch = {"grid": [32, 32], "block": [32, 32], "arguments": {"3": 1024}}
    tiled = asked(services, MATMUL, launch=launch, blocks=[[32, 32]])
    assert tiled["models"][0]["analysis"] == "symbolic"
    assert asked(services, MATMUL, launch=launch, blocks=[[32, 32]], analysis="executed")["models"][
        0
    ]["analysis"] == ("executed")


def test_pareto_and_best_points_are_those_of_the_points(
    services: Services, vector_add: str
) -> None:
    answer = asked(services, vector_add, gpus=["tesla-v100", "tesla-p100", "gtx-1080-ti"])
    points = answer["points"]
    # The size is not given, so only blocks that divide the threads are shown to do the same.
    divide = [block for block in usual_blocks(1) if 4096 * 256 % block[0] == 0]
    assert len(points) == 3 * len(divide) == 18
    assert len(answer["left_out"]) == 3 * (len(usual_blocks(1)) - len(divide))

    costs = [Point(n, p["time"]["seconds"], p["power"]["watts"]) for n, p in enumerate(points)]
    front = {each.key for each in pareto(costs)}
    assert {n for n, point in enumerate(points) if point["pareto"]} <= front
    least = min(points, key=lambda point: point["energy"]["joules"])
    best = answer["best"]["min_energy"]
    assert {best[name] == least[name] for name in ("gpu", "grid", "block")} == {True}
    assert best["energy_saved_percent"] == least["energy_saved_percent"]
    edp = min(point["edp_joule_seconds"] for point in points)
    named = answer["best"]["min_edp"]
    assert edp == next(
        point["edp_joule_seconds"]
        for point in points
        if all(point[name] == named[name] for name in ("gpu", "grid", "block"))
    )
    assert [shape["gpu"] for shape in answer["pareto"]]


def test_savings_are_against_the_request_s_own_launch(services: Services, vector_add: str) -> None:
    answer = asked(services, vector_add, blocks=[32, 256])
    small, own = answer["points"]
    assert own["energy_saved_percent"] == 0
    assert answer["reference"]["energy"] == own["energy"]
    expected = 100 * (1 - small["energy"]["joules"] / own["energy"]["joules"])
    assert small["energy_saved_percent"] == pytest.approx(expected)
    assert small["energy_saved_percent"] < 0


def test_shapes_that_cannot_be_launched_are_listed_with_the_reason(
    services: Services, vector_add: str
) -> None:
    answer = asked(services, vector_add, blocks=[256, 2048, [1, 1, 128]])
    assert [point["block"] for point in answer["points"]] == [[256, 1, 1]]
    reasons = {tuple(shape["block"]): shape for shape in answer["infeasible"]}
    assert "allows at most 1024" in reasons[2048, 1, 1]["reason"]
    assert reasons[2048, 1, 1]["field"] == "block"
    assert "block.z: 128" in reasons[1, 1, 128]["reason"]
    with pytest.raises(LaunchError, match="none of 1 shapes"):
        asked(services, vector_add, blocks=[2048])


def test_a_grid_that_leaves_work_undone_is_refused_unless_the_kernel_strides(
    services: Services, vector_add: str
) -> None:
    launch = {**LAUNCH, "arguments": {"3": 4096 * 256}}
    answer = asked(services, vector_add, launch=launch, blocks=[256], grids=[1024, 4096, 8192])
    assert [point["grid"][0] for point in answer["points"]] == [4096, 8192]
    assert "262144 of 1048576 threads" in answer["infeasible"][0]["reason"]
    striding = asked(services, vector_add, blocks=[256], grids=[1024, 4096], grid_stride=True)
    assert [point["grid"][0] for point in striding["points"]] == [1024, 4096]


def test_fewer_registers_let_more_blocks_in_and_too_few_spill(
    services: Services, vector_add: str
) -> None:
    answer = asked(services, vector_add, blocks=[256], registers=[5, 32, 128])
    few, usual, many = answer["points"]
    assert few["occupancy"] >= usual["occupancy"] > many["occupancy"]
    assert many["limiter"] == "registers"
    assert [few["spills"], usual["spills"], many["spills"]] == [True, False, False]
    assert many["energy"]["joules"] >= usual["energy"]["joules"]


def test_constraints_choose_among_the_shapes(services: Services, vector_add: str) -> None:
    answer = asked(services, vector_add, blocks=[32, 64, 256, 512], constraints={"max_slowdown": 1})
    assert [point["feasible"] for point in answer["points"]] == [
        point["time"]["seconds"] <= answer["reference"]["time"]["seconds"] * (1 + 1e-12)
        for point in answer["points"]
    ]
    with pytest.raises(ConstraintError):
        asked(services, vector_add, blocks=[64], constraints={"deadline_seconds": 1e-9})


def test_a_block_size_in_the_code_leaves_other_blocks_out(
    services: Services, vector_add: str
) -> None:
    """The finding: a transpose with tiles of 32 got blocks of 8x64 proposed."""
    ptx = (FIXTURES / "ptx" / "transpose.sm_70.ptx").read_text(encoding="utf-8")
    launch = {"grid": [32, 32], "block": [32, 8], "arguments": {"2": 1024, "3": 1024}}
    body = {"launch": launch, "kernel": "transpose_direct"}
    answer = asked(services, ptx, **body)
    assert [point["block"] for point in answer["points"]] == [[32, 8, 1]]
    reasons = {tuple(shape["block"]): shape for shape in answer["left_out"]}
    assert len(reasons) == len(usual_blocks(2)) - 1
    assert "block size along x is in the code: 32" in reasons[8, 64, 1]["reason"]
    assert ptx.splitlines()[reasons[8, 64, 1]["line"] - 1].strip().startswith("@")
    bests = [best for _, best in answer["best"] if best is not None]
    assert {best["no_difference"] for best in bests} == {True}
    assert "block_size_in_code" not in {warning["code"] for warning in answer["warnings"]}


def test_shapes_left_out_are_predicted_where_that_is_asked_for(services: Services) -> None:
    launch = {"grid": [8, 8], "block": [32, 32], "arguments": {"3": 256}}
    blocks = [[32, 32], [16, 16]]
    body = {"launch": launch, "blocks": blocks, "analysis": "symbolic"}
    kept = asked(services, MATMUL, **body)
    assert [point["unproven"] for point in kept["points"]] == [None]
    assert "share memory" in kept["left_out"][0]["reason"]
    every = asked(services, MATMUL, **body, include_unproven=True)
    assert [point["unproven"] is None for point in every["points"]] == [True, False]
    assert not every["left_out"]
    assert every["warnings"][0]["code"] == "block_size_in_code"


def test_threads_beyond_the_launch_are_shown_to_do_nothing_by_the_size(
    services: Services, vector_add: str
) -> None:
    told = {"launch": {**LAUNCH, "arguments": {"3": 1_000_000}}, "blocks": [96, 128]}
    assert not asked(services, vector_add, **told)["left_out"]
    untold = asked(services, vector_add, blocks=[96, 128])["left_out"]
    assert [shape["block"][0] for shape in untold] == [96]
    assert "argument 3 was not given" in untold[0]["reason"]


def test_what_the_model_does_not_tell_apart_is_not_better(
    services: Services, vector_add: str
) -> None:
    answer = asked(services, vector_add, blocks=[32, 64, 128, 256, 512, 1024])
    bound = answer["resolution_percent"]
    for objective, percent in (("min_energy", "energy_saved_percent"),
                               ("max_performance", "time_saved_percent")):  # fmt: skip
        best = answer["best"][objective]
        assert best["no_difference"] == (abs(best[percent]) <= bound)
    front = [
        next(point for point in answer["points"] if point["block"] == shape["block"])
        for shape in answer["pareto"]
    ]
    for fast, slow in pairwise(front):
        assert slow["energy"]["joules"] < fast["energy"]["joules"] * (1 - bound / 100)
    poor = asked(services, vector_add, launch={"grid": [32768], "block": [32]}, blocks=[32, 256])
    assert not poor["best"]["max_performance"]["no_difference"]


def test_too_many_shapes_are_refused(services: Services, vector_add: str) -> None:
    with pytest.raises(ServiceError, match="at most 1024"):
        asked(services, vector_add, blocks=[64] * 50, grids=[4096] * 50)


# --- over HTTP and on the command line -----------------------------------------------------
def test_over_http(client: httpx.Client, services: Services, vector_add: str) -> None:
    body = {"ptx": vector_add, "gpu": "tesla-v100", "launch": LAUNCH, "blocks": [64, 2048]}
    answer = json_of(client.post("/sweep", json=body), SweepAnswer)
    here = asked(services, vector_add, blocks=[64, 2048])
    assert answer["points"] == json.loads(here.json_bytes())["points"]
    for changes, told in (
        ({"gpus": ["v100"]}, "either gpu or gpus"),
        ({"grid_stride": True}, "grid_stride needs grids"),
        ({"registers": [32], "registers_per_thread": 16}, "either registers or"),
    ):
        refused = problem(client.post("/sweep", json={**body, **changes}), 422, "validation")
        assert told in refused["detail"]


def test_on_the_command_line(run: Run, tmp_path: Path, vector_add: str) -> None:
    file = tmp_path / "vector_add.ptx"
    file.write_text(vector_add)
    launch = ("--gpu", "v100", "--grid", "4096", "--block", "256", "--blocks", "64,256,16x16,2048")
    out, _ = run("sweep", str(file), *launch, "--json")
    answer = json.loads(out)
    assert [point["block"] for point in answer["points"]] == [[64, 1, 1], [256, 1, 1]]
    assert [shape["block"] for shape in answer["left_out"]] == [[16, 16, 1]]
    out, _ = run("sweep", str(file), *launch)
    for word in ("reference", "min energy", "min edp", "pareto", "not tesla-v100", "at most 1024",
                 "left out", "--all-shapes", "no difference"):  # fmt: skip
        assert word in out
    out, _ = run("sweep", str(file), *launch, "--all-shapes")
    assert out.index("not shown to compute") < out.index("reference")
    _, err = run("sweep", str(file), *launch[:-1], "64,wide", status=2)
    assert "--blocks" in err


# --- What a sweep proposes computes what the launch computes: memory compared, launch for launch

MOST_RUN = 6
"""Shapes of one launch that are interpreted: the first, the last and some between."""

NAMED = {kernel.name: kernel for kernel in KERNELS}


def argument(given: Any) -> Any:
    """An argument as a user would say it; ``None`` for what is not said."""
    if isinstance(given, Buffer):
        return {"elements": int(np.prod(given.shape))}
    return given.item() if isinstance(given, np.generic) else None


def swept(services: Services, kernel: FixtureKernel, shape: Shape, /, **changes: Any) -> Any:
    told = {str(n): argument(each) for n, each in enumerate(shape.arguments.values())}
    launch = {
        "grid": list(shape.grid),
        "block": list(shape.block),
        "dynamic_shared_bytes": shape.dynamic_shared_bytes,
        "arguments": {name: value for name, value in told.items() if value is not None},
    }
    body = {
        "ptx": ptx_text(kernel.source, targets(kernel.source)[-1]),
        "kernel": kernel.entry,
        "gpu": "h100",
        "launch": launch,
        **changes,
    }
    return sweep(services, SweepRequest.model_validate(body))


@cache
def asked_memory(name: str, number: int) -> dict[str, Any]:
    kernel = NAMED[name]
    return run_fixture(kernel, kernel.shapes[number], targets(kernel.source)[-1]).memory


def same_memory(kernel: FixtureKernel, number: int, point: Any) -> bool:
    """Whether a shape leaves the memory that the asked launch leaves. Sums that threads add up
    atomically may be rounded in another order."""
    shape = kernel.shapes[number]
    got = run(
        ptx_text(kernel.source, targets(kernel.source)[-1]),
        kernel.entry,
        tuple(point["grid"]),
        tuple(point["block"]),
        reference_arguments(kernel.name, shape),
        shape.dynamic_shared_bytes,
    ).memory
    wanted = asked_memory(kernel.name, number)
    adds = any(f"{op}.global.add.f" in ptx_text(kernel.source, targets(kernel.source)[-1])
               for op in ("red", "atom"))  # fmt: skip
    return all(
        np.allclose(got[name], array, 1e-5, 1e-6, equal_nan=True)
        if adds and array.dtype.kind == "f"
        else got[name].tobytes() == array.tobytes()
        for name, array in wanted.items()
    )


def some(points: list[Any]) -> list[Any]:
    if len(points) <= MOST_RUN:
        return points
    return [points[round(at)] for at in np.linspace(0, len(points) - 1, MOST_RUN)]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_proposed_launch_leaves_the_same_memory(
    services: Services, kernel: FixtureKernel
) -> None:
    for number, shape in enumerate(kernel.shapes):
        answer = swept(services, kernel, shape)
        others = [
            point
            for point in answer["points"]
            if (point["grid"], point["block"])
            != (answer["reference"]["grid"], answer["reference"]["block"])
        ]
        for point in some(others):
            assert same_memory(kernel, number, point), (number, point["grid"], point["block"])


def test_the_interpreter_finds_what_a_sweep_leaves_out(services: Services) -> None:
    """The check above can fail: launches that are left out do change the memory."""
    for name, block in (("transpose_direct", [8, 64]), ("grid3d", [32, 1, 1])):
        kernel = NAMED[name]
        for number, shape in enumerate(kernel.shapes[:2]):
            asked = {"blocks": [block]}
            answer = swept(services, kernel, shape, **asked)
            assert [left["block"][: len(block)] for left in answer["left_out"]] == [block]
            every = swept(services, kernel, shape, **asked, include_unproven=True)["points"]
            assert not same_memory(kernel, number, every[0])


@pytest.mark.parametrize("name", ["saxpy", "warp_reduce", "grid_stride", "stencil3d"])
def test_kernels_that_know_their_place_alone_are_proposed_other_blocks(
    services: Services, name: str
) -> None:
    kernel = NAMED[name]
    answer = swept(services, kernel, kernel.shapes[0])
    others = [p for p in answer["points"] if p["block"] != answer["reference"]["block"]]
    assert others
    assert all(same_memory(kernel, 0, point) for point in some(others))


# --- ``POST /sweep`` and ``wattcast sweep`` over macros of a CUDA source: its variants


def asked_of_variants(services: Services, /, **changes: Any) -> dict[str, Any]:
    body = {**VARIANTS, "gpu": "tesla-v100", **changes}
    answer = sweep(services, SweepRequest.model_validate(body))
    SweepAnswer.model_validate(answer)
    return answer


TILED = stored_cuda("tiled_by_macro")

VARIANTS: dict[str, Any] = {
    "cuda": TILED,
    "launch": {"grid": [1], "block": [1], "arguments": {"n": 4096}},
    "block_formula": ["TILE", "TILE"],
    "grid_formula": ["n / TILE", "n / TILE"],
}


@needs_nvrtc
def test_each_variant_is_what_predict_answers_for_its_source(services: Services) -> None:
    answer = asked_of_variants(services, defines={"TILE": [8, 16, 32], "PAD": [0, 1]})
    found = [point["defines"] for point in answer["points"]]
    assert found == [{"TILE": t, "PAD": p} for t in (8, 16, 32) for p in (0, 1)]
    assert answer["reference"]["defines"] == found[0]
    for point in answer["points"]:
        size, pad = point["defines"].values()
        assert point["block"] == [size, size, 1]
        assert point["grid"] == [4096 // size, 4096 // size, 1]
        source = TILED.replace("TILE 4", f"TILE {size}").replace("PAD", str(pad))
        request = PredictRequest.model_validate(
            {"cuda": source, "gpu": "tesla-v100", "model": "physical",
             "launch": {**VARIANTS["launch"], "grid": point["grid"], "block": point["block"]}}
        )  # fmt: skip
        assert predict(services, request)["energy"] == point["energy"]
    # The textbook: a padded tile of 32 has no bank conflicts.
    plain, padded = (p["time"]["seconds"] for p in answer["points"][-2:])
    assert padded < 0.9 * plain
    assert answer["warnings"][0]["code"] == "variants_not_compared"


@needs_nvrtc
def test_a_variant_that_fails_is_listed_and_the_others_are_predicted(services: Services) -> None:
    answer = asked_of_variants(services, defines={"TILE": [16, 24, 64, "wide"], "PAD": [1, "oops"]})
    assert [point["defines"] for point in answer["points"]] == [{"TILE": 16, "PAD": 1}]
    reasons = {tuple(one["defines"].values()): one["reason"] for one in answer["infeasible"]}
    assert len(reasons) == 7
    assert '"oops" is undefined' in reasons[16, "oops"]
    assert "ceil(n / TILE) rounds up" in reasons[24, 1]
    assert "4096" in reasons[64, 1]
    assert "TILE is no macro" in reasons["wide", 1]
    with pytest.raises(LaunchError, match="none of 1 variants"):
        asked_of_variants(services, defines={"TILE": [24], "PAD": [1]})


def test_what_is_no_variant_is_refused(services: Services) -> None:
    for changes, told in (
        ({"defines": {"TILE": [8], "OTHER": [1]}}, "does not use OTHER"),
        ({"defines": {"TILE": list(range(1, 41)), "PAD": [1, 2]}}, "at most 64"),
    ):
        with pytest.raises(ServiceError, match=told):
            asked_of_variants(services, **changes)
    for changes in (
        {"ptx": "x", "cuda": None, "defines": {"TILE": [8]}},
        {"defines": {"TILE": [8]}, "blocks": [64]},
        {"defines": {"TI LE": [8]}},
        {"defines": {"TILE": ["8\n#include </etc/passwd>"]}},
        {"defines": None},
    ):
        with pytest.raises(ValidationError):
            asked_of_variants(services, **changes)


@pytest.mark.parametrize(
    ("formula", "value"),
    [("N/TILE", 8), ("ceil(N/48)", 6), ("N // 48 + 1", 6), ("min(N, 2*TILE)", 64), ("N % 48", 16),
     ("-(-N // 48)", 6), ("max(1, N - 300)", 1)],
)  # fmt: skip
def test_formulas_come_to_whole_numbers(formula: str, value: int) -> None:
    assert dimensions("grid", [formula], {"N": 256, "TILE": 32}) == [value]


@pytest.mark.parametrize(
    ("formula", "told"),
    [("N/48", "not whole"), ("M", "M is no macro"), ("N - N", "not 1 or more"), ("N/0", "by zero"),
     ("N**N", "not understood"), ("__import__('os')", "not understood"), ("N.real", "understood"),
     ("(" * 150, "no expression"), ("N*" * 60 + "N", "too large"), ("1" * 201, "200 characters"),
     ("", "no expression"), ("1.5", "no whole number"), ("N > 3", "no number")],
)  # fmt: skip
def test_what_is_no_formula_says_why(formula: str, told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        dimensions("grid", [formula], {"N": 256, "TILE": 32})


@needs_nvrtc
def test_variants_on_the_command_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tiled.cu"
    file.write_text(TILED)
    launch = ("--gpu", "v100", "--block", "TILE,TILE", "--grid", "ceil(n/TILE),ceil(n/TILE)",
              "--arg", "n=1024", "--define", "PAD=0,1")  # fmt: skip
    out, _ = run("sweep", str(file), *launch, "--define", "TILE=16,32,99", "--json")
    answer = json.loads(out)
    assert [point["block"][0] for point in answer["points"]] == [16, 32, 16, 32]
    out, _ = run("sweep", str(file), *launch, "--define", "TILE=16,32,99")
    for word in (
        "PAD=0, TILE=16:",
        "not tesla-v100 PAD=0, TILE=99",
        "whether all compute the same",
    ):
        assert word in out
    _, err = run("sweep", str(file), *launch, "--define", "TILE", status=2)
    assert "--define" in err
