"""Patches of advice: the user's own lines, which compile, compute the same and cost as told."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.conftest import Run
from tests.fixtures.ptx_text import stored_cuda
from tests.needs import needs_nvrtc
from tests.reference.machine import run as reference
from wattcast.app.cli.exits import Exit
from wattcast.features.cuda import compile_cuda

pytestmark = needs_nvrtc

TURN = stored_cuda("turn")
BLUR = stored_cuda("blur")
PRODUCT = stored_cuda("product")
TOTAL = stored_cuda("total")
TREE = stored_cuda("tree")
FLIP = stored_cuda("flip")
MULTIPLYING = ("--gpu", "v100", "--grid", "64x64", "--block", "16x16", "--arg", "n=1024")
ADDING = ("--gpu", "v100", "--grid", "65536", "--block", "256", "--arg", "n=16777216")
TURNING = ("--gpu", "v100", "--grid", "64x64", "--block", "32x8", "--arg", "n=2048")
FLIPPING = ("--gpu", "v100", "--grid", "15625", "--block", "256", "--arg", "width=50")
BLURRING = ("--gpu", "a100", "--grid", "4096", "--block", "256", "--arg", "n=1048576")
BLURRING = (*BLURRING, "--arg", "taps=64", "--arg", "in:elements=1048576")


def numbers(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(count).random(count, dtype=np.float32)


SMALL: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "turn": (
        (2, 2), (32, 8),
        {"in": numbers(4096), "out": np.zeros(4096, np.float32), "n": np.int32(64)},
    ),
    "blur": (
        (2,), (64,),
        {"in": numbers(128), "out": numbers(256)[128:], "weights": numbers(21),
         "n": np.int32(128), "taps": np.int32(21)},
    ),
    "product": (
        (2, 2), (16, 16),
        {"a": numbers(1024), "b": numbers(1025)[1:], "out": np.zeros(1024, np.float32),
         "n": np.int32(32)},
    ),
    "tree": ((3,), (96,), {"in": numbers(288), "out": numbers(3), "n": np.int32(270)}),
    "flip": ((2,), (100,), {"in": numbers(200), "out": numbers(201), "width": np.int32(50)}),
    "total": ((3,), (128,), {"in": numbers(384), "out": numbers(3), "n": np.int32(370)}),
}  # fmt: skip


def computed(text: str, kernel: str) -> np.ndarray[Any, Any]:
    grid, block, arguments = SMALL[kernel]
    ptx = compile_cuda(text, (7, 0)).ptx
    found: np.ndarray[Any, Any] = reference(ptx, kernel, grid, block, arguments).memory["out"]
    return found


@pytest.mark.parametrize(
    ("text", "kernel", "launch", "codes"),
    [
        (TURN, "turn", TURNING, {"bank_conflicts"}),
        (BLUR, "blur", BLURRING, {"restrict", "unroll"}),
        (PRODUCT, "product", MULTIPLYING, {"uncoalesced_access"}),
        (TOTAL, "total", ADDING, {"shared_reduction"}),
        (TREE, "tree", ADDING, {"divergent_branch"}),
        (FLIP, "flip", FLIPPING, {"constant_division"}),
    ],
)
def test_a_patch_applies_compiles_computes_the_same_and_costs_what_it_says(
    run: Run, tmp_path: Path, text: str, kernel: str, launch: tuple[str, ...], codes: set[str]
) -> None:
    file = tmp_path / "own.cu"
    file.write_text(text, "utf-8")
    told = json.loads(run("advise", str(file), *launch, "--patch", "--json")[0])
    assert {each["code"] for each in told["patches"]} == codes
    before = computed(text, kernel)
    for number, each in enumerate(told["patches"]):
        copy = tmp_path / str(number)
        copy.mkdir()
        shutil.copy(file, copy)
        subprocess.run(["patch", "-p1", "-s"], input=each["diff"], text=True, cwd=copy, check=True)
        changed = (copy / "own.cu").read_text("utf-8")
        assert changed != text
        np.testing.assert_array_equal(computed(changed, kernel), before)
        again = json.loads(run("advise", str(copy / "own.cu"), *launch, "--json")[0])
        assert again["before"] == pytest.approx(each["after"], rel=1e-9)
        assert again["patches"] is None
        assert each["gain"]["energy_percent"] >= 2
        for other in told["advice"]:  # no bound that a change of the lines beats
            if other["code"] == each["code"] and other["promise"] == "at_most":
                assert other["after"]["joules"] <= 1.05 * each["after"]["joules"]
    out, _ = run("advise", str(file), *launch, "--patch")
    assert "+++ b/own.cu" in out


@pytest.mark.parametrize(
    "use",
    [
        "float* row = tile[threadIdx.x]; out[1] = row[1];",
        "out[1] = *(&tile[0][0] + 33);",
        "out[1] = sizeof(tile);",
        "out[1] = reinterpret_cast<float4*>(out)[1].x;",
    ],
)
def test_an_array_whose_rows_others_know_stays_as_it_is(run: Run, tmp_path: Path, use: str) -> None:
    file = tmp_path / "own.cu"
    file.write_text(TURN.replace("__syncthreads();", f"__syncthreads(); {use}"), "utf-8")
    told = json.loads(run("advise", str(file), *TURNING, "--patch", "--json")[0])
    assert "bank_conflicts" not in {each["code"] for each in told["patches"]}


def test_the_array_of_another_kernel_of_the_file_is_not_taken_for_its_own(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "own.cu"
    file.write_text(TURN.replace("turn", "other") + TURN.replace("#define TILE 32\n", ""), "utf-8")
    told = json.loads(
        run("advise", str(file), *TURNING, "--kernel", "turn", "--patch", "--json")[0]
    )
    (each,) = told["patches"]
    assert "@@ -13,7 +13,7 @@" in each["diff"]  # its own lines are the later ones


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ("float* out, int width", "float* out, int width, Pair<int, int> last", "last.second"),
        ("const float* in", "const float *in", "0"),
    ],
)
def test_parameters_of_any_spelling_are_read(
    run: Run, tmp_path: Path, before: str, after: str, more: str
) -> None:
    """Commas inside a type, and a pointer given as a number beside its star, ended in a failure."""
    file = tmp_path / "own.cu"
    head = "template <class A, class B> struct Pair { A first; B second; };\n"
    text = FLIP.replace(before, after).replace("in[i]", f"in[i] + {more}")
    file.write_text(head + text, "utf-8")
    told = json.loads(run("advise", str(file), *FLIPPING, "--arg", "0=0", "--patch", "--json")[0])
    assert {each["code"] for each in told["patches"]} <= {"constant_division"}


def test_lines_are_changed_of_source_alone(run: Run) -> None:
    words = ("app/demo/vector_add.ptx", "--gpu", "v100", "--grid", "64", "--block", "256")
    _, err = run("advise", *words, "--patch", status=Exit.BAD_INPUT)
    assert "give a .cu file" in err


def test_a_loop_whose_trips_are_a_guess_gets_no_patch(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "own.cu"
    text = BLUR.replace("k < taps", "k < (int)weights[k]")
    file.write_text(text, "utf-8")
    told = json.loads(run("advise", str(file), *BLURRING, "--patch", "--json")[0])
    assert told["needs"]
    assert told["patches"] == []
