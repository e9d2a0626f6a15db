"""Reads the frequency-scaling measurements: power and time of kernels at many clock pairs.

One CSV file per campaign, with uniform leading columns, then utilisations (``u_*``) or the
profiler's raw counters. What the files are, where they come from and what is wrong with them:
docs/frequency.md. The rows carry no licence for redistribution or a notice; they stay out of
the repository.

Rules, each counted in ``FrequencyTable.dropped`` or ``.noted``:

-   dropped ``core_below_705_mhz``: the DCGM rows of Tesla V100 below 705 MHz; a third of the
    microbenchmarks' rows there is slower than the clocks allow, up to twice;
-   dropped ``impossible_counters``: kernels with a utilisation below -0.01 or above 1.05 (two of
    the Tesla K40c's have -3.2e9: counters that overflowed);
-   dropped ``no_reference_row`` and ``no_counters``: kernels without a row at the reference
    pair, or without counters in it: there is nothing to scale from;
-   noted ``slower_than_clock_ratio``: more than 5 % slower, relative to the reference, than the
    larger of the two clock ratios (on the GTX 980 partly real: DRAM loses efficiency with its
    clock);
-   noted ``reference_power_too_low``: kernels that draw 5 % more at a lower core clock than at
    the reference: the reading at the reference is at fault. They stay in, for scores; fits of
    power leave them out (``FrequencyTable.sound_power``).

Names: GPU ids, and kernels that are variants of one program.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wattcast.features.errors import DataError
from wattcast.models.cards import sha256_of
from wattcast.models.clocks import ClockPair
from wattcast.training.data.datasets import FIRST_ROW, data_root, number, read_table, text

GPU_IDS: Mapping[str, str] = MappingProxyType(
    {
        "gtx_titan_x": "gtx-titan-x",
        "titan_xp": "titan-xp",
        "tesla_k40c": "tesla-k40c",
        "titan_v": "titan-v",
        "amd_rx580x": "radeon-rx-580x",
        "gtx_980": "gtx-980",
        "gtx_1080_ti": "gtx-1080-ti",
        "rtx_2070_super": "rtx-2070-super",
        "titan_x_pascal": "titan-x-pascal",
        "tesla_p100": "tesla-p100",
        "tesla_v100": "tesla-v100",
        "quadro_rtx_8000": "quadro-rtx-8000",
    }
)
"""Name of a GPU in the files -> GPU id."""

_PROGRAMS: list[list[str]] = tomllib.loads(
    (Path(__file__).parent / "programs.toml").read_text("utf-8")
)["programs"]
"""Pattern of a whole name, lower case -> canonical name of the program."""


def kernel_group(benchmark: str) -> str:
    """Canonical name that all variants of a program share; grouped folds never split it.

    A name nobody listed is a group of its own: its lower-case form without a version at its end
    (``_v2``, ``_2``, ``_double``).
    """
    name = benchmark.strip().lower()
    for pattern, program in _PROGRAMS:
        if re.fullmatch(pattern, name):
            return program
    return re.sub(r"(_v\d+|_\d+|_double|_float|_naive)+$", "", name) or name


Counters = Literal["utilisation", "nvprof", "nvprof_short", "dcgm", "amd", "none"]
"""What a file tells about a kernel besides time and power (docs/frequency.md)."""

LOWEST_SOUND_MHZ: Mapping[str, float] = MappingProxyType({"wang_dcgm_tesla_v100": 705.0})
"""Core clock below which a campaign's rows are dropped, and why: see the module."""

RATIO_TOLERANCE = 0.05
"""Share by which a measurement may leave what clocks allow before it is noted."""

UTILISATIONS = ("sp", "int", "dp", "sfu", "cf", "l2", "shared", "dram")
"""Lisbon's utilisations of units, 0 to 1, measured once at the default clocks."""

DCGM_FIELDS = ("sp", "dp", "dram", "fp16", "smact", "smocc", "tensor")
"""DCGM's profiling fields, 0 to 1, measured at every clock."""

NVPROF_COUNTS = (
    "dram_read_transactions",
    "dram_write_transactions",
    "l2_read_transactions",
    "l2_write_transactions",
    "shared_load_transactions",
    "shared_store_transactions",
)
"""Counts a launch that every nvprof file has; sectors of 32 bytes at DRAM and L2."""

NVPROF_INSTRUCTIONS = (
    "gld_transactions",
    "gst_transactions",
    "tex_cache_transactions",
    "flop_count_dp",
    "flop_count_sp",
    "flop_count_sp_special",
    "inst_integer",
    "inst_fp_32",
    "inst_fp_64",
    "inst_executed",
    "cf_executed",
)
"""Further counts of the complete nvprof files; the 49-pair file has ``inst_issued`` only."""

_LEADING = {
    "gpu": text(choices=tuple(GPU_IDS)),
    "source": text(choices=("lisboa", "wang")),
    "benchmark": text(),
    "args": text(nullable=True),
    "kind": text(choices=("micro", "real")),
    **{
        name: number(positive=True)
        for name in ("core_mhz", "mem_mhz", "ref_core_mhz", "ref_mem_mhz")
    },
    **{name: number(positive=True, nullable=True) for name in ("power_w", "idle_w", "time_ms")},
}
_POSSIBLE_SHARES = (-0.01, 1.05)
"""Utilisations leave 0 to 1 a little: rounding, and clocks that drift between two passes."""


@dataclass(frozen=True, eq=False)
class FrequencyTable:
    """The rows of one file, in SI units, sorted by kernel and clocks.

    ``frame``: ``benchmark``, ``variant`` (its input), ``kind``, ``group`` (canonical name shared
    by variants of a program), ``kernel`` (number of the benchmark with its input), ``core_mhz``,
    ``memory_mhz``, ``time_seconds``, ``power_watts``, ``idle_watts`` (NaN where not measured),
    ``is_reference``, and the counters as the file names them.
    ``reference`` is the pair of the file's reference rows.
    """

    name: str
    gpu: str
    source: Literal["lisboa", "wang"]
    counters: Counters
    reference: ClockPair
    frame: pd.DataFrame
    sha256: str
    dropped: Mapping[str, int]
    noted: Mapping[str, int]

    @property
    def has_time(self) -> bool:
        """Whether the campaign measured time."""
        return bool(self.frame["time_seconds"].notna().any())

    @property
    def has_power(self) -> bool:
        """Whether the campaign measured power."""
        return bool(self.frame["power_watts"].notna().any())

    @property
    def sound_power(self) -> NDArray[np.bool_]:
        """Rows of kernels whose power at the reference can be believed, ``[n]``."""
        return ~self.frame["kernel"].isin(_reference_power_too_low(self.frame)).to_numpy()


@lru_cache(maxsize=32)
def read_frequency(
    name: str, root: Path | None = None, *, keep_impossible: bool = False
) -> FrequencyTable:
    """One campaign, checked and cleaned; ``keep_impossible`` leaves impossible counters in.

    Raises DataError naming file, row (line of the file) and column for a cell that does not
    fit, a clock pair measured twice, or rows that do not belong together.
    """
    path = (root or data_root()) / "dvfs" / f"{name}.csv"
    raw = read_table(path, _LEADING)
    counters = _counters_of(raw)
    raw = read_table(path, {**_LEADING, **_counter_columns(counters)})
    _check_uniform(path, raw)
    frame = _uniform(raw)
    _check_pairs(path, frame)
    frame, dropped = _clean(frame, name, counters, keep_impossible)
    if frame.empty:
        raise DataError(f"{path.name}: no row survives cleaning", file=path.name)
    return FrequencyTable(
        name=name,
        gpu=GPU_IDS[str(raw["gpu"].iloc[0])],
        source="lisboa" if raw["source"].iloc[0] == "lisboa" else "wang",
        counters=counters,
        reference=ClockPair(float(raw["ref_core_mhz"].iloc[0]), float(raw["ref_mem_mhz"].iloc[0])),
        frame=frame,
        sha256=sha256_of(path),
        dropped=dropped,
        noted=_noted(frame),
    )


SEQUENCES = ("sequences", "gtx_titan_x_measured.csv")
"""Time, power and energy of 140 microbenchmarks and 15 applications on the Titan X at 32 clock
pairs (github.com/hpc-ulisboa/gpuPTXModel, BSD-3), below the data root."""
COUNTED_TOO: Mapping[str, str] = MappingProxyType(
    {
        "ATAX": "atax",
        "BICG": "bicg",
        "Blackscholes": "blackscholes",
        "CORR": "correlation",
        "COVAR": "covariance",
        "GESUMMV": "gesummv",
        "SYRK": "syrk",
        "backprop": "backprop",
        "fft": "fft",
        "hotspot": "hotspot",
    }
)
"""Applications of ``lisboa_gtx_titan_x``, which has no times, by their names among those."""


def read_measured_sequences(root: Path | None = None) -> pd.DataFrame:
    """Columns ``kind`` (micro, real), ``benchmark``, ``core_mhz``, ``memory_mhz``, ``time_ms``,
    ``power_watts``, a row for each clock pair. Raises DataError naming file, row and column."""
    columns = {"kind": text(choices=("micro", "real")), "benchmark": text()}
    numbers = ("core_mhz", "memory_mhz", "time_ms", "power_watts")
    path = (root or data_root()).joinpath(*SEQUENCES)
    return read_table(path, {**columns, **{name: number() for name in numbers}})


def _counters_of(raw: pd.DataFrame) -> Counters:
    kinds: tuple[tuple[str, Counters], ...] = (
        ("u_smact", "dcgm"),
        ("u_amd_l2busy", "amd"),
        ("u_shared", "utilisation"),
        ("inst_executed", "nvprof"),
        ("inst_issued", "nvprof_short"),
    )
    return next((kind for column, kind in kinds if column in raw), "none")


def _counter_columns(counters: Counters) -> dict[str, Any]:
    # Impossible shares are a kernel's defect, not the file's: ``_clean`` drops and counts them.
    if counters == "utilisation":
        always = [f"u_{unit}" for unit in UTILISATIONS if unit != "cf"]
        shares = dict.fromkeys(always, number(nullable=True, low=None))
        return {**shares, "u_cf": number(nullable=True, low=None, required=False)}
    if counters == "dcgm":
        return {f"u_{field}": number(nullable=True, low=None) for field in DCGM_FIELDS}
    names: tuple[str, ...] = ()
    if counters == "nvprof":
        names = (*NVPROF_COUNTS, *NVPROF_INSTRUCTIONS, "achieved_occupancy")
    elif counters == "nvprof_short":
        names = (*NVPROF_COUNTS, "inst_issued", "achieved_occupancy")
    return {name: number(nullable=True) for name in names}


def _check_uniform(path: Path, raw: pd.DataFrame) -> None:
    for column in ("gpu", "source", "ref_core_mhz", "ref_mem_mhz"):
        other = raw[column] != raw[column].iloc[0]
        if other.any():
            line = int(np.flatnonzero(other)[0]) + FIRST_ROW
            raise DataError(
                f"{path.name}, row {line}, column {column!r}: {raw[column][other].iloc[0]!r}, but "
                f"{raw[column].iloc[0]!r} above: a file is one campaign on one GPU",
                file=path.name,
                row=line,
                column=column,
            )


def _uniform(raw: pd.DataFrame) -> pd.DataFrame:
    frame = raw.drop(columns=["gpu", "source", "kernel"], errors="ignore").rename(
        columns={"args": "variant", "mem_mhz": "memory_mhz"}
    )
    frame = frame.rename(columns={"power_w": "power_watts", "idle_w": "idle_watts"})
    frame["variant"] = frame["variant"].fillna("")
    frame["time_seconds"] = frame.pop("time_ms") * 1e-3
    frame["line"] = np.arange(len(frame)) + FIRST_ROW
    frame["group"] = frame["benchmark"].map(kernel_group)
    frame["is_reference"] = (frame["core_mhz"] == frame.pop("ref_core_mhz")) & (
        frame["memory_mhz"] == frame.pop("ref_mem_mhz")
    )
    return _numbered(frame)


def _numbered(frame: pd.DataFrame) -> pd.DataFrame:
    key = ["kind", "benchmark", "variant"]
    frame = frame.sort_values([*key, "core_mhz", "memory_mhz"], kind="stable")
    frame = frame.reset_index(drop=True)
    frame["kernel"] = frame.groupby(key, sort=False).ngroup()
    return frame


def _check_pairs(path: Path, frame: pd.DataFrame) -> None:
    twice = frame.duplicated(["kernel", "core_mhz", "memory_mhz"])
    if twice.any():
        row = frame[twice].iloc[0]
        raise DataError(
            f"{path.name}, row {row['line']}, column 'core_mhz': {row['benchmark']} "
            f"{row['variant']} at {row['core_mhz']:g}/{row['memory_mhz']:g} MHz stands there twice",
            file=path.name,
            row=int(row["line"]),
            column="core_mhz",
        )


def _clean(
    frame: pd.DataFrame, name: str, counters: Counters, keep_impossible: bool
) -> tuple[pd.DataFrame, dict[str, int]]:
    dropped = {}
    slow = frame["core_mhz"] < LOWEST_SOUND_MHZ.get(name, 0.0)
    if slow.any():
        dropped[f"core_below_{LOWEST_SOUND_MHZ[name]:g}_mhz"] = int(slow.sum())
    frame = frame[~slow].copy()
    reference = frame[frame["is_reference"]]
    rules = {"no_reference_row": ~frame["kernel"].isin(reference["kernel"])}
    needed = [column for column in _counter_columns(counters) if column in frame]
    blank = reference.loc[reference[needed].isna().any(axis=1), "kernel"]
    rules["no_counters"] = frame["kernel"].isin(blank)
    shares = [column for column in needed if column.startswith("u_")]
    low, high = _POSSIBLE_SHARES
    if not keep_impossible:
        impossible = (reference[shares] < low) | (reference[shares] > high)
        rules["impossible_counters"] = frame["kernel"].isin(
            reference.loc[impossible.any(axis=1), "kernel"]
        )
        frame[shares] = frame[shares].clip(lower=0.0)
    keep = pd.Series(True, index=frame.index)
    for rule, out in rules.items():
        if (count := int((out & keep).sum())) > 0:
            dropped[rule] = count
        keep &= ~out
    return _numbered(frame[keep]), dropped


def _noted(frame: pd.DataFrame) -> dict[str, int]:
    reference = frame[frame["is_reference"]].set_index("kernel")
    at = frame["kernel"]
    slowdown = frame["time_seconds"] / at.map(reference["time_seconds"])
    most = np.maximum(
        at.map(reference["core_mhz"]) / frame["core_mhz"],
        at.map(reference["memory_mhz"]) / frame["memory_mhz"],
    )
    return {
        "slower_than_clock_ratio": int((slowdown > most * (1 + RATIO_TOLERANCE)).sum()),
        "reference_power_too_low": len(_reference_power_too_low(frame)),
    }


def _reference_power_too_low(frame: pd.DataFrame) -> set[int]:
    """Kernels that draw more below the reference's clocks than at them."""
    reference = frame[frame["is_reference"]].set_index("kernel")
    at = frame["kernel"]
    below = (frame["core_mhz"] < at.map(reference["core_mhz"])) & (
        frame["memory_mhz"] <= at.map(reference["memory_mhz"])
    )
    more = frame["power_watts"] > at.map(reference["power_watts"]) * (1 + RATIO_TOLERANCE)
    return set(at[below & more])
