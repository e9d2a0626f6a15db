"""Triton's autotuner asks for the configurations that are predicted best. A stand-in takes the
place of Triton; where it is installed, the last test asks it."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.app.test_triton_launch import ARGUMENTS, MATRIX, SIDE, gemm, made, programs
from tests.docs.examples import fences
from wattcast.app.tuners import triton_model, triton_prune
from wattcast.features.errors import DataError, GpuError

__all__ = ["made"]  # a fixture


class Config(SimpleNamespace):
    """``triton.Config``, as far as it matters."""

    def __init__(self, rows: int, warps: int) -> None:
        tile = {"BLOCK_M": rows, "BLOCK_N": rows}
        super().__init__(kwargs=tile, num_warps=warps, num_stages=4, num_ctas=1)


class Autotuner:
    """Triton 3.9's, from a launch to the pruned configurations (runtime/autotuner.py)."""

    def __init__(self, fn: Any, configs: list[Config], prune: Any) -> None:
        self.fn, self.configs, self.early_config_prune = fn, configs, prune
        self.arg_names = fn.arg_names

    def run(self, *args: Any, **kwargs: Any) -> list[Config]:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        return self.prune_configs(kwargs)

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        pruned: list[Config] = self.early_config_prune(self.configs, self.nargs, **kwargs)
        assert pruned
        return pruned


LARGE, SMALL, BROKEN = Config(128, 4), Config(32, 2), Config(64, 16)
"""By their warps ``made`` knows which kernel to give; 16 are more than it compiles."""


def launched(configs: list[Config], keep: float = 5, **more: Any) -> list[Config]:
    tuner = Autotuner(gemm(), configs, triton_prune("a100", keep, registry=False, **more))
    return tuner.run(*ARGUMENTS, grid=programs, warmup=False)


def test_the_best_are_let_through_in_their_order(made: list[Any]) -> None:
    assert launched([SMALL, LARGE], 1) == [LARGE]
    assert launched([SMALL, LARGE]) == [LARGE, SMALL]
    assert launched([SMALL, LARGE], 0.5, by="energy") == [LARGE]
    types, constants, _, target, options = made[0]
    assert target == ("cuda", 80, 32)
    assert constants == {"BLOCK_M": 32, "BLOCK_N": 32, "RELU": False}
    assert types["a"] == "*fp16"
    assert options["num_warps"] == 2


@pytest.mark.usefixtures("made")
def test_what_cannot_be_predicted_is_kept_and_told() -> None:
    with pytest.warns(UserWarning, match=r"1 of 3 .*kept.*out of registers"):
        assert launched([BROKEN, SMALL, LARGE], 1) == [LARGE, BROKEN]
    strange = Autotuner(gemm(), [SMALL], triton_prune("a100", registry=False))
    with pytest.warns(UserWarning, match="argument a is a set"):
        assert strange.run({1}, MATRIX, MATRIX, SIDE, SIDE, SIDE, grid=programs) == [SMALL]


@pytest.mark.usefixtures("made")
def test_a_kernel_may_be_named_where_no_autotuner_calls() -> None:
    named = dict(zip("abcmnk", ARGUMENTS, strict=True))
    tuner = Autotuner(gemm(), [SMALL, LARGE], None)
    prune = triton_prune("a100", 1, kernel=tuner, registry=False)
    assert prune([SMALL, LARGE], named, grid=programs) == [LARGE]

    def elsewhere() -> None:
        triton_prune("a100", registry=False)([SMALL], named, grid=programs)

    with pytest.raises(DataError, match="kernel=the_kernel"):
        elsewhere()


@pytest.mark.parametrize("keep", [0, -1, 0.0, 1.5, True])
def test_a_number_to_keep_that_is_none(keep: float) -> None:
    with pytest.raises(DataError, match="expected how many"):
        triton_prune("a100", keep)


@pytest.mark.usefixtures("made")
def test_an_unknown_gpu_is_no_fault_of_a_configuration() -> None:
    tuner = Autotuner(gemm(), [SMALL], triton_prune("no-such-gpu", registry=False))
    with pytest.raises(GpuError):
        tuner.run(*ARGUMENTS, grid=programs)


@pytest.mark.usefixtures("made")
def test_a_model_tells_seconds_or_joules_of_one_configuration() -> None:
    named = dict(zip("abcmnk", ARGUMENTS, strict=True))
    tuner = Autotuner(gemm(), [SMALL, LARGE], None)

    def told(config: Config, **more: Any) -> float:
        given = {**config.kwargs, "num_warps": config.num_warps, "num_stages": 4}
        asked = triton_model("a100", kernel=tuner, registry=False, **more)
        return asked(**named, grid=programs, **given)

    assert 0 < told(LARGE) < told(SMALL) < 1
    assert told(LARGE, by="energy") / told(LARGE) > 10  # watts
    assert told(BROKEN) == math.inf

    def elsewhere() -> None:
        triton_model("a100", registry=False)(**named, grid=programs)

    with pytest.raises(DataError, match="triton_model"):
        elsewhere()


@pytest.mark.filterwarnings("ignore:TRITON_")
def test_the_script_of_the_page_measures_two_of_six(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    page = Path(__file__).parents[2] / "docs" / "howto" / "triton.md"
    (text,) = (text for _, title, text in fences(page) if title == "pruned.py")
    (tmp_path / "pruned.py").write_text(text, encoding="utf-8")
    tuned = runpy.run_path(str(tmp_path / "pruned.py"))["add"]
    assert len(tuned.configs) == 6
    array, n = np.zeros(1 << 22, np.float32), 1 << 22
    tuned.nargs = {"x": array, "y": array, "out": array, "n": n}
    kept = tuned.prune_configs({"grid": lambda of: (-(-n // of["BLOCK"]),), "warmup": False})
    assert len(kept) == 2
    assert all(config.kwargs["BLOCK"] == 1024 for config in kept)


@pytest.mark.filterwarnings("ignore:TRITON_")
def test_triton_itself_asks() -> None:
    triton = pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    from tests.fixtures.triton import kernels

    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": m, "BLOCK_K": 32, "GROUP": 8}, num_warps=warps)
        for m, warps in ((16, 1), (128, 4), (64, 4))
    ]
    prune = triton_prune("a100", 1, registry=False)
    tuned = triton.autotune(configs, key=["m"], prune_configs_by={"early_config_prune": prune})(
        kernels.gemm
    )
    tuned.nargs = dict(zip("abcmnk", ARGUMENTS, strict=True))

    def programs(of: dict[str, int]) -> tuple[int]:
        return (-(-of["m"] // of["BLOCK_M"]) * -(-of["n"] // of["BLOCK_N"]),)

    kept = tuned.prune_configs({"grid": programs, "warmup": False})
    assert kept in ([configs[1]], [configs[2]])  # a tile of 16 reads four times as much
