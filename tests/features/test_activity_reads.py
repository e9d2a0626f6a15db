"""Registers that multiply-adds read, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixtures.tables import table
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import default_clocks
from wattcast.models.time.bottleneck import CONSTANTS, beside, resource_seconds

KERNEL = table("bodies", "activity_reads")["kernel"]
LOADED = "".join(f"ld.global.f32 %f{n}, [%rd2+{4 * n}];\n" for n in range(8))


def analysed(body: str, gpu: str = "a40") -> KernelAnalysis:
    text = KERNEL.format(body=LOADED + body)
    return analyse(read_module(text), None, Launch.of(1000, 256), load_gpu(gpu))


def reads(body: str) -> float:
    """Of a warp."""
    found = analysed(body)
    return found.extras.register_reads / (1000 * 8)


CHAINS = "".join(
    "fma.rn.f32 %f10, %f10, %f0, %f1;\nfma.rn.f32 %f11, %f11, %f2, %f3;\n" for _ in range(10)
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("fma.rn.f32 %f10, %f0, %f1, %f2;\n", 3),
        ("fma.rn.f32 %f10, %f0, %f0, %f2;\n", 2),
        ("fma.rn.f32 %f10, %f0, 0f40000000, %f2;\n", 2),  # a literal is no register
        ("fma.rn.f32 %f10, %f0, %f90, %f2;\n", 2),  # nor is a parameter
        ("fma.rn.f32 %f10, %f0, %f90, 0f40000000;\n", 2),  # but an instruction takes one
        ("mul.f32 %f10, %f0, %f1;\nsub.f32 %f11, %f10, %f2;\n", 3),  # ptxas joins them
        ("neg.f32 %f12, %f2;\nfma.rn.f32 %f10, %f0, %f1, %f12;\n", 3),
        ("mul.rn.f32 %f10, %f0, %f1;\nadd.rn.f32 %f11, %f10, %f2;\n", 0),  # no multiply-add
        ("fma.rn.f64 %fd1, %fd1, %fd1, %fd1;\n", 0),
        (CHAINS, 60),  # each chain multiplies by its own: nothing to hold
    ],
)
def test_reads_of_a_warp(body: str, expected: float) -> None:
    if "%fd" in body:
        body = ".reg .f64 %fd<3>;\nmov.f64 %fd1, 0d3FF0000000000000;\n" + body
    assert reads(body) == pytest.approx(expected)


def test_a_factor_that_independent_multiply_adds_share_is_read_once() -> None:
    tile = "".join(
        f"fma.rn.f32 %f{20 + at}, %f{at // 4}, %f{4 + at % 4}, %f{20 + at};\n" for at in range(16)
    )
    assert reads(tile) == pytest.approx(16 * (3 - 0.75))


@pytest.mark.parametrize(
    ("gpu", "cycles"),
    [
        ("a40", 1.5),
        ("rtx-4090", 1.5),
        ("a100-sxm4-40gb", 2.0),
        ("tesla-v100", 2.0),
        ("gtx-980", 1.0),
    ],
)
def test_three_registers_take_longer_than_a_slot_of_32_lanes(gpu: str, cycles: float) -> None:
    board = load_gpu(gpu)
    found = analysed(CHAINS, gpu)
    clocks = default_clocks(board)
    whole = replace(CONSTANTS, last_wave=0.0)  # what the last wave leaves idle is another matter
    seconds = resource_seconds(found.activity, board, clocks, whole, beside(found.extras))["fma"]
    each = seconds * clocks.core_hz * board.sm_count / found.activity.sm_imbalance
    warps = 1000 * 8 * 20 / board.warp_schedulers
    assert each / warps == pytest.approx(cycles, rel=1e-6)
