"""The thesis' two time models: their published pairs, and this repository's code on two kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.pages.page import Block, Section, Table
from studies.papers.thesis.published import Pair, published_delay_pairs, published_pairs
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import ModelError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.time.base import TIME_MODELS, get_time_model

Floats = NDArray[np.float64]

KERNELS = Path(__file__).with_name("kernels")

PRINTED: Mapping[tuple[str, str], str] = {
    ("delay", "tesla-k20"): "26.86",
    ("scheduling", "tesla-k20"): "28.3",
    ("scheduling", "quadro-k4200"): "29.4",
    ("scheduling", "tesla-m60"): "47.8",
    ("scheduling", "gtx-1050"): "28.5",
}
"""Mean absolute error in percent as the thesis prints it (section 4.3.5, foot of Table 4.8)."""


class TimedKernel(NamedTuple):
    """A kernel with a time that the thesis prints; ``source`` is the table."""

    file: str
    launch: Launch
    registers_per_thread: int
    arguments: Mapping[str, int]
    gpu: str
    measured_us: float
    source: str


# Registers as in the tests of the time models: what the compiler gave these sources.
_MATMUL = ("tiled_matmul.ptx", Launch.of((32, 32), (32, 32)), 32, {"3": 1024})
TIMED = (
    TimedKernel(
        "vector_add.ptx", Launch.of(196, 256), 12, {"3": 50_176}, "tesla-k20", 2.64, "Table 4.2"
    ),
    TimedKernel(*_MATMUL, "tesla-k20", 6997.75, "Table 6.1"),
    TimedKernel(*_MATMUL, "tesla-m60", 4917.4, "Table 6.1"),
    TimedKernel(*_MATMUL, "quadro-k4200", 8600.28, "Table 4.8"),
    TimedKernel(*_MATMUL, "gtx-1050", 8514.9, "Table 4.8"),
)


class Errors(NamedTuple):
    """Errors of published pairs in percent, ``[n]``: signed as the thesis has it, and absolute."""

    signed: Floats

    @property
    def absolute(self) -> Floats:
        """Absolute errors."""
        return np.abs(self.signed)


def times_section(_: object) -> Section:
    """Tables 4.2 and 4.8. Raises DataError for a defect in the shipped pairs."""
    models = {
        ("delay", "tesla-k20"): published_delay_pairs(),
        **{
            ("scheduling", gpu): tuple(pair for pair in published_pairs() if pair.gpu == gpu)
            for gpu in dict.fromkeys(pair.gpu for pair in published_pairs())
        },
    }
    blocks = (*_pairs_blocks(models), *_kernels_blocks())
    return Section("The two time models (Tables 4.2 and 4.8)", blocks)


def errors_of(pairs: Sequence[Pair]) -> Errors:
    """Errors over the actual time: positive where the prediction is too short."""
    return Errors(np.array([100 * (1 - pair.predicted_us / pair.actual_us) for pair in pairs]))


Models = Mapping[tuple[str, str], Sequence[Pair]]


def _pairs_blocks(models: Models) -> Sequence[Block]:
    rows = []
    for (model, gpu), pairs in models.items():
        errors = errors_of(pairs)
        actual = np.array([pair.actual_us for pair in pairs])
        names = np.array([pair.benchmark for pair in pairs])
        others = np.exp([np.median(np.log(actual[names != name])) for name in names])
        baseline = np.abs(others / actual - 1) * 100
        ratios = 1 - errors.signed / 100
        rows.append(
            [
                model,
                gpu,
                str(len(pairs)),
                f"{errors.absolute.mean():.2f} ({np.median(errors.absolute):.1f})",
                PRINTED[model, gpu],
                f"{errors.signed.mean():+.2f}",
                f"{np.mean((ratios >= 0.5) & (ratios <= 2)) * 100:.0f}",
                f"{baseline.mean():.0f} ({np.median(baseline):.0f})",
            ]
        )
    return (
        "G. Alavani, BITS Pilani, 2023: `delay` is its first model (Table 4.2), `scheduling` "
        "its second (Table 4.8). Times and predictions are the authors', on kernels and "
        "launches of their choice; errors are recomputed here beside the printed means. The "
        "baseline is the median time of the other benchmarks of the same table.",
        Table(
            (
                *("model", "GPU", "kernels", "mean (median) error, %", "printed, %"),
                *("mean signed, %", "within a factor 2, %", "baseline: median, %"),
            ),
            rows,
        ),
        "Signed errors are actual less predicted over actual, as Table 4.8 has them (it prints "
        "-8.88, -5.66, -10.64 and -3.94 %): on average these predictions are too long.",
    )


# --- this repository's models on the kernels with a printed time ----------------------------------


def _kernels_blocks() -> Sequence[Block]:
    families = list(TIME_MODELS)
    rows = []
    for kernel in TIMED:
        analysis = _analysed(kernel)
        rows.append(
            [
                f"{analysis.function.name}, {kernel.launch.blocks} blocks of "
                f"{kernel.launch.threads_per_block}",
                kernel.gpu,
                f"{kernel.measured_us:,.2f} ({kernel.source})",
                *(_predicted(family, analysis, kernel) for family in families),
            ]
        )
    return (
        "The two kernels of which the thesis prints launch and time, from their PTX: "
        "microseconds, and over the measured time. A dash: the GPU's profile lacks what the "
        "model needs. Two kernels rank no model; docs/time.md says which step of the thesis' "
        "models makes each miss. Table 6.1's time for Tesla V100 repeats the GTX 1050's and "
        "is left out.",
        Table(("kernel", "GPU", "measured", *families), rows),
    )


def _analysed(kernel: TimedKernel) -> KernelAnalysis:
    module = read_module((KERNELS / kernel.file).read_text("utf-8"))
    return analyse(
        module,
        None,
        Launch(kernel.launch.grid, kernel.launch.block, arguments=kernel.arguments),
        load_gpu(kernel.gpu),
        registers_per_thread=kernel.registers_per_thread,
        analysis="symbolic",  # the same on every machine, however long it takes
    )


def _predicted(family: str, analysis: KernelAnalysis, kernel: TimedKernel) -> str:
    try:
        seconds = get_time_model(family).predict(analysis, analysis.gpu).estimate.value
    except ModelError:
        return "-"
    return f"{seconds * 1e6:,.2f} ({seconds * 1e6 / kernel.measured_us:.2f})"
