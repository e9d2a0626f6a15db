"""How busy a kernel kept each part of a GPU, by hardware counters: what scaling starts from.

A use is a share of what the part could do in the kernel's time, 0 to 1 (a counter's definition
may let it pass 1 a little). Which core units there are depends on the profiler; device memory is
always apart, since it has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models import clocks as clock_pairs
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second

Floats = NDArray[np.float64]

CounterKind = Literal["nvprof", "utilisation", "dcgm"]
"""Profiler a use comes from: nvprof's counts, Guerreiro et al.'s utilisations, DCGM's fields."""


class _Names(Strict):
    units: Mapping[CounterKind, tuple[str, ...]]
    nvprof: Mapping[str, tuple[str, ...]]
    nsight: Mapping[str, tuple[str, ...]]
    dcgm: Mapping[str, str]
    tokens: Mapping[str, str]


_FILE = Path(__file__).with_name("counters.toml")
NAMES = checked(_Names, read_toml(_FILE), _FILE.name)
UNITS, NVPROF, NSIGHT, DCGM = NAMES.units, NAMES.nvprof, NAMES.nsight, NAMES.dcgm

LANES_OF_A_QUAD = 4


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel's counters at ``clocks``: shares of each core unit and of device memory.

    ``core`` holds every unit of ``UNITS[kind]``. ``time_seconds`` is the kernel's time there,
    ``None`` if unknown.
    """

    kind: CounterKind
    core: Mapping[str, float]
    dram: float
    clocks: ClockPair
    time_seconds: float | None = None

    def __post_init__(self) -> None:
        if tuple(self.core) != UNITS[self.kind]:
            raise DataError(
                f"{self.kind} counters are of {', '.join(UNITS[self.kind])}, in this order",
                column=next(iter(set(self.core) ^ set(UNITS[self.kind])), None),
            )
        for name, share in (*self.core.items(), ("dram", self.dram)):
            if not (np.isfinite(share) and share >= 0):
                raise DataError(f"the use of {name} is {share}", column=name)
        if self.time_seconds is not None and not self.time_seconds > 0:
            raise DataError(f"time_seconds is {self.time_seconds}", column="time_seconds")
        clock_pairs.checked(self.clocks)


@dataclass(frozen=True, eq=False)
class UseTable:
    """Uses as arrays, a row per kernel or measurement.

    ``core`` ``[n, k]`` in the order of ``units``; ``dram`` ``[n]``; ``seconds`` ``[n]`` at the
    counters' clocks, NaN where unknown.
    """

    units: tuple[str, ...]
    core: Floats
    dram: Floats
    seconds: Floats

    @classmethod
    def of(cls, uses: Sequence[KernelUse]) -> UseTable:
        """Several kernels' counters of one kind."""
        return cls(
            units=UNITS[uses[0].kind],
            core=np.array([list(use.core.values()) for use in uses], dtype=np.float64),
            dram=np.array([use.dram for use in uses], dtype=np.float64),
            seconds=np.array([use.time_seconds or np.nan for use in uses], dtype=np.float64),
        )

    def select(self, units: Sequence[str]) -> Floats:
        """Columns of some units, ``[n, len(units)]``."""
        return self.core[:, [self.units.index(unit) for unit in units]]

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> UseTable:
        """The chosen rows."""
        return UseTable(self.units, self.core[rows], self.dram[rows], self.seconds[rows])

    def __len__(self) -> int:
        return len(self.dram)


def nvprof_use(
    counts: Mapping[str, float], time_seconds: float, gpu: GpuProfile, clocks: ClockPair
) -> KernelUse:
    """Use from nvprof's counts of one launch that took ``time_seconds`` at ``clocks``.

    ``counts`` by nvprof's names; a missing instruction count is 0, ``inst_issued`` stands in
    for ``inst_executed``. Raises DataError for a missing memory count.
    """
    cycles = gpu.sm_count * clock_pairs.checked(clocks).core_hz * time_seconds

    def memory(*names: str) -> float:
        missing = [name for name in names if name not in counts]
        if missing:
            raise DataError(f"no count {missing[0]}", column=missing[0])
        return float(sum(counts[name] for name in names))

    def share(name: str, per_cycle_and_sm: float) -> float:
        return float(counts.get(name, 0.0)) / (per_cycle_and_sm * cycles)

    sm = gpu.capability
    sectors = memory("l2_read_transactions", "l2_write_transactions")
    dram_bytes = SECTOR_BYTES * memory("dram_read_transactions", "dram_write_transactions")
    issued = "inst_executed" if "inst_executed" in counts else "inst_issued"
    bandwidth = bandwidth_bytes_per_second(gpu, clocks.memory_mhz)
    return KernelUse(
        kind="nvprof",
        core={
            "issue": share(issued, sm.warp_schedulers),
            "sp": share("inst_fp_32", sm.fp32_lanes),
            "int": share("inst_integer", sm.int_lanes),
            "dp": share("inst_fp_64", sm.fp64_lanes),
            "sfu": share("flop_count_sp_special", sm.sfu_lanes),
            "shared": memory("shared_load_transactions", "shared_store_transactions") / cycles,
            # One sector a cycle and SM, whatever an L2 achieves: the capacity is fitted.
            "l2": sectors / cycles,
            # A texture unit serves a quad of lanes a cycle.
            "texture": share("tex_cache_transactions", sm.texture_lanes / LANES_OF_A_QUAD),
        },
        dram=dram_bytes / (bandwidth * time_seconds),
        clocks=clocks,
        time_seconds=time_seconds,
    )


# Counters by the names of their profilers, as the use of each part of a GPU.
#
#     use_of({"inst_executed": 1.2e9, ...}, gpu, ClockPair(1380, 877), 0.004) -> KernelUse
#
# nvprof's metrics and Nsight Compute's are counts of one launch, DCGM's fields and utilisations are
# shares of its time, 0 to 1. One kernel's counters come from one of them.

MOST_SHARE = 1.05
"""Largest share that is believed: counters of a busy unit pass 1 a little (docs/frequency.md)."""

STANDS_IN = "inst_issued"
"""Taken for ``inst_executed`` where only it was counted: it also counts replays."""

WARP_METRICS = frozenset({"smsp__inst_executed_pipe_xu.sum"})
"""Counts of warps among ``NSIGHT`` that stand for counts of threads."""


def kind_of(names: Iterable[str]) -> CounterKind:
    """The profiler that counts under these names.

    Raises DataError for names nobody counts under, for names of several profilers, and for none.
    """
    found: dict[CounterKind, str] = {}
    for name in names:
        kind = KINDS.get(name)
        if kind is None:
            raise DataError(f"no counter {name!r}; known: {', '.join(sorted(KINDS))}", column=name)
        found.setdefault(kind, name)
    if len(found) != 1:
        told = " and ".join(f"{name} ({kind})" for kind, name in found.items()) or "nothing"
        raise DataError(f"counters of one profiler are wanted: {told} was given")
    return next(iter(found))


def needed(kind: CounterKind, units: Iterable[str]) -> tuple[str, ...]:
    """Names of the counters that tell the use of ``units`` and of device memory."""
    wanted = (*units, "dram")
    if kind == "nvprof":
        return tuple(name for unit in wanted for name in NVPROF[unit])
    if kind == "dcgm":
        return tuple(name for name, unit in DCGM.items() if unit in wanted)
    return wanted


def use_of(
    values: Mapping[str, float],
    gpu: GpuProfile,
    clocks: ClockPair,
    time_seconds: float | None,
    units: Iterable[str] | None = None,
) -> KernelUse:
    """The use that counters tell, taken at ``clocks`` in a launch of ``time_seconds``.

    ``units``: those that must be told (all, if ``None``); the others may be missing and are 0.
    Raises DataError naming counters that are missing, unknown or impossible.
    """
    kind = kind_of(values)
    counts = _as_nvprof(values) if kind == "nvprof" else dict(values)
    asked = needed(kind, UNITS[kind] if units is None else units)
    missing = [name for name in asked if name not in counts]
    if STANDS_IN in counts and "inst_executed" in missing:
        missing.remove("inst_executed")
    if missing:
        # By the names of the profiler that was used.
        nsight = not _NVPROF_NAMES.intersection(values)
        told = [
            part
            for name in missing
            for part in (NSIGHT[name] if kind == "nvprof" and nsight else (name,))
            if part not in values
        ]
        raise DataError(f"{gpu.id} needs these counters too: {', '.join(told)}", column=told[0])
    if kind == "nvprof":
        if time_seconds is None:
            raise DataError("counts need time_seconds, the time of the launch they were taken in")
        use = nvprof_use(counts, time_seconds, gpu, clocks)
    else:
        names = DCGM if kind == "dcgm" else {unit: unit for unit in counts}
        shares = {names[name]: value for name, value in counts.items()}
        core = {unit: shares.get(unit, 0.0) for unit in UNITS[kind]}
        use = KernelUse(kind, core, shares["dram"], clocks, time_seconds)
    for unit, share in (*use.core.items(), ("dram", use.dram)):
        # Lanes and passes per cycle are datasheet facts; L2's capacity is fitted, not known.
        if share > MOST_SHARE and (kind != "nvprof" or unit == "dram"):
            raise DataError(
                f"{unit} would be busy for {share:.3g} of the time; a share is at most "
                f"{MOST_SHARE:g}: counters, time_seconds and clocks do not belong together",
                column=unit,
            )
    return use


def _as_nvprof(values: Mapping[str, float]) -> dict[str, float]:
    """Counts by nvprof's names, from its own or Nsight Compute's."""
    counts = {name: value for name, value in values.items() if name in _NVPROF_NAMES}
    for name, parts in NSIGHT.items():
        if name not in counts and all(part in values for part in parts):
            counts[name] = sum(
                values[part] * (WARP_SIZE if part in WARP_METRICS else 1) for part in parts
            )
    return counts


_NVPROF_NAMES = frozenset({STANDS_IN, *(name for names in NVPROF.values() for name in names)})
KINDS: Mapping[str, CounterKind] = {
    **dict.fromkeys((*UNITS["utilisation"], "dram"), "utilisation"),
    **dict.fromkeys(DCGM, "dcgm"),
    **dict.fromkeys(
        (*_NVPROF_NAMES, *(part for each in NSIGHT.values() for part in each)), "nvprof"
    ),
}
"""Every name a counter is known by, and the kind of its profiler."""
