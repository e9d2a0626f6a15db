"""``@wattcast.estimate``: launches of Triton kernels that predict. A stand-in takes the place of
Triton; where it is installed, the last test asks it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wattcast
from tests.app.test_rank_triton import LARGE, SIDE, _Parameter, compiled_by, kernel_object
from tests.app.test_rank_triton import gemm as jit_function
from wattcast.features.cuda import CompileError
from wattcast.features.errors import DataError, LaunchError

MATRIX = np.broadcast_to(np.float16(0), (SIDE, SIDE))
"""Four million numbers in two bytes: only type and shape count."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return compiled_by(monkeypatch)


def gemm() -> SimpleNamespace:
    return jit_function(*(_Parameter(name=f"BLOCK_{of}", is_constexpr=True) for of in "MN"))


def programs(of: Any) -> tuple[int]:
    return (-(-of["m"] // of["BLOCK_M"]) * -(-of["n"] // of["BLOCK_N"]),)


ARGUMENTS = (MATRIX, MATRIX, MATRIX, SIDE, SIDE, SIDE)


def test_a_launch_predicts_with_its_own_grid_types_and_numbers(made: list[Any]) -> None:
    kernel = wattcast.estimate(gpu="a100", registry=False)(gemm())
    answer = kernel[programs](*ARGUMENTS, BLOCK_M=128, BLOCK_N=128, num_warps=4)
    ((types, constants, attributes, target, options),) = made
    assert target == ("cuda", 80, 32)
    assert options == {"num_warps": 4}
    assert {types[name] for name in "abc"} == {"*fp16"}
    assert {types[name] for name in "mnk"} == {"i32"}
    assert constants == {"BLOCK_M": 128, "BLOCK_N": 128, "RELU": False}
    assert sorted(attributes) == [(at,) for at in range(6)]  # all of them multiples of 16
    hints = {**dict.fromkeys("mnk", SIDE), **{name: {"elements": SIDE**2} for name in "abc"}}
    same = wattcast.predict(
        kernel_object(LARGE), gpu="a100", grid=256, arguments=hints, registry=False
    )
    assert answer.energy == same.energy
    assert kernel.estimates == [answer]
    assert answer.configuration is not None
    assert answer.configuration["BLOCK_M"] == 128
    assert answer.to_frame()["BLOCK_M"].tolist() == [128]
    assert "BLOCK_M=128" in answer._repr_html_()
    assert answer.hotspots(1).joules == same.energy.joules  # type: ignore[union-attr]
    named = dict(zip("abcmnk", ARGUMENTS, strict=True))
    again = kernel[(256,)](**named, BLOCK_M=128, BLOCK_N=128, num_warps=4)
    assert again.energy == answer.energy
    assert len(kernel.estimates) == 2


def test_arrays_are_known_by_type_and_shape_alone(made: list[Any]) -> None:
    tensor = SimpleNamespace(dtype="torch.bfloat16", shape=(SIDE, SIDE))  # device="meta"
    kernel = wattcast.estimate(gpu="a100", registry=False)(gemm())
    kernel[(256,)](
        tensor, tensor, tensor, SIDE, 1, True, BLOCK_M=128, BLOCK_N=128, num_warps=4, stream=0
    )
    types, constants = made[0][:2]
    assert [types[name] for name in "abcmk"] == ["*bf16", "*bf16", "*bf16", "i32", "u1"]
    assert constants["n"] == 1  # a 1 is a constant, as in a launch of Triton


def test_an_autotuned_kernel_answers_with_the_fastest_configuration(made: list[Any]) -> None:
    def config(side: int, warps: int) -> SimpleNamespace:
        return SimpleNamespace(kwargs={"BLOCK_M": side}, num_warps=warps, num_stages=4, num_ctas=1)

    heuristics = SimpleNamespace(fn=gemm(), values={"BLOCK_N": lambda of: of["BLOCK_M"]})
    tuned = SimpleNamespace(fn=heuristics, configs=[config(32, 2), config(128, 4), config(64, 16)])
    kernel = wattcast.estimate(gpu="a100", registry=False, clocks={"core_mhz": 1110})(tuned)
    answer = kernel[programs](*ARGUMENTS)
    assert [given[1]["BLOCK_N"] for given in made] == [32, 128, 64]
    (ranking,) = kernel.rankings
    assert len(ranking["configurations"]) == 2
    assert "out of registers" in ranking["refused"][0]["reason"]
    assert answer.clocks.core_mhz == 1110
    assert answer.time is not None
    assert answer.time.seconds == ranking["configurations"][0]["seconds"]
    assert answer.time.seconds < ranking["configurations"][1]["seconds"]
    assert ranking.to_frame()["rank"].tolist() == [1, 2]
    assert "BLOCK_M=128" in ranking._repr_html_()


def test_an_option_is_a_constant_too_where_the_kernel_has_one_of_its_name(made: list[Any]) -> None:
    """As Triton's tutorial on softmax has ``num_stages: tl.constexpr``: by keyword it is the option
    of the compiler too, by place it is the kernel's alone, and a configuration tells both."""
    own = gemm()
    own.params.insert(6, _Parameter(name="num_stages", is_constexpr=True))
    kernel = wattcast.estimate(gpu="a100", registry=False)(own)
    tiles = {"BLOCK_M": 128, "BLOCK_N": 128}
    kernel[programs](*ARGUMENTS, **tiles, num_warps=4, num_stages=2)
    kernel[programs](*ARGUMENTS, 2, **tiles, num_warps=4)
    tuned = SimpleNamespace(
        fn=own, configs=[SimpleNamespace(kwargs=tiles, num_warps=4, num_stages=2)]
    )
    wattcast.estimate(gpu="a100", registry=False)(tuned)[programs](*ARGUMENTS)
    wattcast.rank_triton(
        own, gpu="a100", grid=256, configs=[{**tiles, "num_stages": 2}], registry=False,
        signature=dict.fromkeys("abc", "*fp16"), arguments=dict.fromkeys("mnk", SIDE),
    )  # fmt: skip
    assert [constants["num_stages"] for _, constants, *_ in made] == [2, 2, 2, 2]
    assert [options.get("num_stages") for *_, options in made] == [2, None, 2, 2]
    with pytest.raises(DataError, match="num_stages is a constant of the kernel that nobody gives"):
        kernel[programs](*ARGUMENTS, **tiles)


@pytest.mark.parametrize(
    ("arguments", "keywords", "kind", "message"),
    [
        (ARGUMENTS[:5], {}, LaunchError, "argument k is not given"),
        (ARGUMENTS, {"a": MATRIX}, LaunchError, "argument a is given twice"),
        (ARGUMENTS, {"beta": 1}, LaunchError, "the kernel has no argument beta"),
        ((*ARGUMENTS, 1, 2, 3, 4), {}, LaunchError, "takes 9 arguments, not 10"),
        (("x", *ARGUMENTS[1:]), {}, DataError, "argument a is a str: an estimate takes arrays"),
        (
            (np.zeros(2, complex), *ARGUMENTS[1:]), {}, DataError,
            "argument a is an array of complex128, which Triton does not know",
        ),
        (ARGUMENTS, {"BLOCK_M": 64}, DataError, "BLOCK_N is a constant of the kernel"),
        (ARGUMENTS, {"BLOCK_M": 1, "BLOCK_N": 1, "num_warps": 16}, CompileError, "out of reg"),
    ],
)  # fmt: skip
def test_a_launch_that_python_or_triton_would_refuse_is_refused(
    made: list[Any], arguments: Any, keywords: Any, kind: type[Exception], message: str
) -> None:
    kernel = wattcast.estimate(gpu="a100", registry=False)(gemm())
    with pytest.raises(kind, match=message):
        kernel[(256,)](*arguments, **keywords)
    assert kernel.estimates == []


def test_what_is_no_triton_function_is_told() -> None:
    with pytest.raises(DataError, match=r"function is no @triton.jit function"):
        wattcast.estimate(gpu="a100")(lambda: None)[(1,)]()
    with pytest.raises(RuntimeError, match=r"kernel\[grid\]"):
        wattcast.estimate(gpu="a100")(gemm())()


@pytest.mark.filterwarnings("ignore:TRITON_")
def test_triton_itself_compiles_a_launch() -> None:
    pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    from tests.fixtures.triton import kernels

    rows, columns = 4096, 1024
    data = np.broadcast_to(np.float32(0), (rows, columns))
    softmax = wattcast.estimate(gpu="a100", registry=False)(kernels.softmax)
    answer = softmax[(rows,)](data, data, columns, BLOCK=1024)
    assert answer.time is not None
    least = 2 * 4 * rows * columns / 2.039e12  # read and written once (A100 data sheet)
    assert least < answer.time.seconds < 3 * least
    own = wattcast.estimate(gpu="a100", registry=False)(kernels.softmax_rows)
    staged = own[(864,)](data, data, rows, columns, BLOCK=1024, num_stages=4, num_warps=8)
    assert staged.time is not None
    assert staged.configuration is not None
    assert staged.configuration["num_stages"] == 4
    assert least / 2 < staged.time.seconds < 2 * least  # the data fit in L2
