"""Triton kernels with lists of configurations, beside what others published: ``python -m studies
triton [--case NAME] [--all]``.

The kernels are ours (``tests/fixtures/triton``), of the kind that Triton's tutorials have, compiled
with lists of the tutorials' kind; their PTX is committed, so this needs neither Triton nor a GPU.
Figures are what users of Triton reported of the tutorials' kernels. No constant of the time model
was fitted to them. Boards and clocks of the reports are not known exactly: all of this is an
estimate for boards nobody measured for us, not accuracy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from wattcast.app.settings import Settings
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.sections import PeakName
from wattcast.models.clocks import default_clocks
from wattcast.predictor import Predictor, rank, triton

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "triton" / "ptx"

Shape = tuple[int, ...]
_Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A list of configurations on a board, and the TFLOP/s that ``source`` reports."""

    name: str
    files: str
    gpu: str
    shape: Shape
    tera: float
    source: str

    @property
    def flop(self) -> float:
        """Of the product, m x n x k; of attention all scores, causal half of them (heads,
        tokens, depth)."""
        if self.files.startswith("gemm"):
            m, n, k = self.shape
            return 2.0 * m * n * k
        heads, tokens, depth = self.shape
        return (1.0 if "full" in self.files else 0.5) * 4.0 * heads * tokens * tokens * depth

    def grid(self) -> _Grid:
        """Programs of a configuration."""
        if self.files.startswith("gemm"):
            m, n, _ = self.shape
            return lambda of: (-(-m // of["BLOCK_M"]) * -(-n // of["BLOCK_N"]),)
        heads, tokens, _ = self.shape
        return lambda of: (tokens // of["BLOCK_M"], heads)

    def arguments(self) -> dict[str, Any]:
        """Numbers, and how much the pointers point to."""
        if self.files.startswith("gemm"):
            m, n, k = self.shape
            sizes = {"a": m * k, "b": k * n, "c": m * n}
            numbers: dict[str, Any] = {"m": m, "n": n, "k": k}
        else:
            heads, tokens, depth = self.shape
            sizes = dict.fromkeys("qkvo", heads * tokens * depth)
            numbers = {"tokens": tokens, "scale": 0.18}
        return {**numbers, **{name: {"elements": many} for name, many in sizes.items()}}

    def peak_tera(self) -> float:
        """The tensor pipe's, at the board's boost clock."""
        gpu = load_gpu(self.gpu)
        pipe: PeakName = "tensor_fp8" if "fp8" in self.files else "tensor_fp16"
        return gpu.peak(pipe, default_clocks(gpu).core_mhz) * 1e-12


_ISSUE = "https://github.com/triton-lang/triton/issues/"
_PULL = "https://github.com/triton-lang/triton/pull/"
CASES = (
    Case("gemm-a100", "gemm_fp16.sm_80", "a100", (2944, 2944, 2944), 170.1, _ISSUE + "6523"),
    Case("gemm-h100", "gemm_fp16.sm_90", "h100", (2944, 2944, 2944), 471.4, _ISSUE + "3672"),
    Case("gemm-h100-early", "gemm_fp16.sm_90", "h100", (2048, 8192, 8192), 369.8,
         _ISSUE + "2339"),
    Case("gemm-fp8-h100", "gemm_fp8.sm_90", "h100", (3584, 3584, 3584), 1279.9, _PULL + "3546"),
    Case("attention-a100", "attention.sm_80", "a100", (192, 4096, 64), 149.9, _PULL + "1849"),
    Case("attention-a100-flash", "attention.sm_80", "a100", (192, 4096, 64), 165.7,
         _PULL + "1849"),
    Case("attention-a100-long", "attention.sm_80", "a100", (192, 16384, 64), 186.0,
         _PULL + "1849"),
    Case("attention-full-h100", "attention_full.sm_90", "h100", (64, 4096, 128), 458.4,
         "https://github.com/pytorch/benchmark/pull/2391"),
    Case("attention-h100", "attention.sm_90", "h100", (192, 2048, 64), 303.0, _PULL + "2459"),
)  # fmt: skip
"""GEMM: Triton 3.5; 2.1 with its tutorial's list; 2.1 of the time when only ``wgmma`` of Hopper was
used; 3.0. Causal attention is of 4 x 48 heads. Pull request 1849 does not name its board, but
FlashAttention-2 has the figures of its paper's A100 in it: ``flash`` and ``long`` are these, the
first is Triton 2.1. Pull request 2391 of pytorch/benchmark is of 4 x 16 heads without a mask, 2459
of 2.1."""

WITHIN = 1.25


def ranked(predictor: Predictor, case: Case) -> list[dict[str, Any]]:
    """Rows of the case by predicted time, with ``tera``: TFLOP/s."""
    kernels = triton.read_cache(FIXTURES / case.files)
    asked = triton.candidates(kernels, case.grid(), case.arguments(), {"gpu": case.gpu})
    rows = [row.data() for row in rank.ranked(predictor, asked, "time").configurations]
    return [{**row, "tera": case.flop / row["seconds"] * 1e-12} for row in rows]


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 if a best configuration is not within ``WITHIN`` or is above the peak."""
    parser = argparse.ArgumentParser(prog="python -m studies triton")
    parser.add_argument("--case", choices=[case.name for case in CASES])
    parser.add_argument("--all", action="store_true", help="every configuration")
    asked = parser.parse_args(arguments)
    predictor = Predictor(Settings())
    print("| list | best | TFLOP/s | published | ratio | median | peak | J | source |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    failed = False
    for case in CASES:
        if asked.case not in (None, case.name):
            continue
        rows = ranked(predictor, case)
        best, peak = rows[0], case.peak_tera()
        middle = median(row["tera"] for row in rows)
        ratio = best["tera"] / case.tera
        held = 1 / WITHIN <= ratio <= WITHIN and middle < best["tera"] < peak
        failed |= not held
        print(
            f"| {case.name} | {_told(best)} | {best['tera']:.0f} | {case.tera:.0f} "
            f"| {ratio:.2f}{'' if held else ' (fails)'} | {middle:.0f} | {peak:.0f} "
            f"| {best['joules']:.3g} | {case.source} |"
        )
        for row in rows if asked.all else ():
            print(f"|   | {_told(row)} | {row['tera']:.0f} | | | | | {row['joules']:.3g} | |")
    return int(failed)


def _told(row: Mapping[str, Any]) -> str:
    shown = row["configuration"]
    tile = "x".join(str(shown[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K") if name in shown)
    return f"{tile}, {shown['num_warps']} warps, {shown['num_stages']} stages"
