"""The rows of a frequency campaign as models are fitted on and scored by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from studies.data.frequency import (
    COUNTED_TOO,
    NVPROF_COUNTS,
    NVPROF_INSTRUCTIONS,
    FrequencyTable,
    read_frequency,
    read_measured_sequences,
)
from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.use import UNITS, CounterKind, KernelUse, UseTable, nvprof_use
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]

TITAN_X = "lisboa_gtx_titan_x"
_DCGM_UNITS = {"sp": "u_sp", "dp": "u_dp", "sm_active": "u_smact"}


@dataclass(frozen=True, eq=False)
class ScalingRows:
    """Rows of one campaign, ``[n]``, each with its kernel's counters at the ``nominal`` pair.

    ``time_scale`` and ``power_scale`` are measured over those at ``reference`` (NaN where
    nobody measured; ten applications of the Titan X have times at 32 of 64 pairs), ``power_watts``
    absolute. ``kernel`` numbers kernels, ``names`` and
    ``groups`` hold their names by row. ``idle_watts`` NaN where unknown.
    """

    campaign: str
    gpu: str
    kind: CounterKind | None
    nominal: ClockPair
    reference: ClockPair
    kernel: Integers
    names: NDArray[np.str_]
    groups: NDArray[np.str_]
    real: Bools
    core_mhz: Floats
    memory_mhz: Floats
    use: UseTable
    time_scale: Floats
    power_scale: Floats
    power_watts: Floats
    idle_watts: Floats
    sound_power: Bools

    def __len__(self) -> int:
        return len(self.kernel)

    @property
    def core(self) -> Floats:
        """Core clock over the nominal one, ``[n]``."""
        return self.core_mhz / self.nominal.core_mhz

    @property
    def memory(self) -> Floats:
        """Memory clock over the nominal one, ``[n]``."""
        return self.memory_mhz / self.nominal.memory_mhz

    @property
    def is_reference(self) -> Bools:
        """Rows at the reference pair, ``[n]``."""
        core = self.core_mhz == self.reference.core_mhz
        return np.asarray(core & (self.memory_mhz == self.reference.memory_mhz))

    @property
    def reference_rows(self) -> Integers:
        """For each row the row of its kernel at the reference, ``[n]``."""
        at = np.flatnonzero(self.is_reference)
        row = np.full(int(self.kernel.max()) + 1, -1, dtype=np.int64)
        row[self.kernel[at]] = at
        return np.asarray(row[self.kernel])

    @property
    def has_time(self) -> bool:
        """Whether time was measured, of every row."""
        return bool(np.isfinite(self.time_scale).all())

    @property
    def timed(self) -> ScalingRows | None:
        """The rows whose time was measured, over that at the nominal pair; ``None`` if none was."""
        rows = np.isfinite(self.time_scale)
        if not rows.any():
            return None
        nominal = (self.core == 1.0) & (self.memory == 1.0)
        at_nominal = np.full(int(self.kernel.max()) + 1, np.nan)
        at_nominal[self.kernel[nominal]] = self.time_scale[nominal]
        return replace(self, time_scale=self.time_scale / at_nominal[self.kernel]).take(rows)

    @property
    def has_power(self) -> bool:
        """Whether power was measured."""
        return bool(np.isfinite(self.power_scale).any())

    def take(self, rows: Bools) -> ScalingRows:
        """The chosen rows; every kernel kept must keep its reference row."""
        arrays = {
            name: getattr(self, name)[rows]
            for name in (
                *("kernel", "names", "groups", "real", "core_mhz", "memory_mhz", "time_scale"),
                *("power_scale", "power_watts", "idle_watts", "sound_power"),
            )
        }
        return replace(self, use=self.use.take(rows), **arrays)

    def program_weights(self) -> Floats:
        """Weight of each row that gives every program (group of kernels) 1 in all, ``[n]``."""
        _, group = np.unique(self.groups, return_inverse=True)
        return np.asarray(1 / np.bincount(group)[group])


def scaling_rows(
    campaign: str,
    root: Path | None = None,
    *,
    reference: ClockPair | None = None,
    memory_mhz: tuple[float, ...] | None = None,
) -> ScalingRows:
    """Rows of a campaign with scales against ``reference`` (default: the file's).

    ``memory_mhz`` keeps rows at these memory clocks only. Raises DataError where no row lies at
    the reference.
    """
    return _scaling_rows(campaign, root or data_root(), reference, memory_mhz)


@lru_cache(maxsize=32)
def _scaling_rows(
    campaign: str,
    root: Path,
    reference: ClockPair | None,
    memory_mhz: tuple[float, ...] | None,
) -> ScalingRows:
    table = read_frequency(campaign, root)
    frame = table.frame
    if memory_mhz is not None:
        frame = frame[frame["memory_mhz"].isin(memory_mhz)].reset_index(drop=True)
    against = reference or table.reference
    at = (frame["core_mhz"] == against.core_mhz) & (frame["memory_mhz"] == against.memory_mhz)
    if frame.loc[at, "kernel"].nunique() != frame["kernel"].nunique():
        raise DataError(f"{campaign}: a kernel was not measured at {against}", file=campaign)
    row_of_kernel = frame["kernel"].map(frame[at].set_index("kernel").index.get_loc)
    base = frame[at].reset_index(drop=True)
    sound = dict(zip(table.frame["kernel"], table.sound_power, strict=True))

    def scale(column: str) -> Floats:
        measured = frame[column].to_numpy(float)
        return np.asarray(measured / base[column].to_numpy(float)[row_of_kernel])

    time_scale = scale("time_seconds")
    if campaign == TITAN_X:
        time_scale = _titan_x_times(frame, against, root)
    kind, use = _uses(table)
    position = np.array([use.position[kernel] for kernel in frame["kernel"]])
    return ScalingRows(
        campaign=campaign,
        gpu=table.gpu,
        kind=kind,
        nominal=table.reference,
        reference=against,
        kernel=frame["kernel"].to_numpy(np.int64),
        names=np.array(
            [
                " ".join(name).strip()
                for name in zip(frame["benchmark"], frame["variant"], strict=True)
            ]
        ),
        groups=frame["group"].to_numpy(str),
        real=(frame["kind"] == "real").to_numpy(),
        core_mhz=frame["core_mhz"].to_numpy(float),
        memory_mhz=frame["memory_mhz"].to_numpy(float),
        use=use.table.take(position),
        time_scale=time_scale,
        power_scale=scale("power_watts"),
        power_watts=frame["power_watts"].to_numpy(float),
        idle_watts=frame["idle_watts"].to_numpy(float),
        sound_power=np.array([sound[kernel] for kernel in frame["kernel"]]),
    )


def _titan_x_times(frame: pd.DataFrame, reference: ClockPair, root: Path) -> Floats:
    """Times over those at ``reference`` of the applications that another campaign timed."""
    measured = read_measured_sequences(root).set_index(["benchmark", "memory_mhz", "core_mhz"])
    times = measured["time_ms"].to_dict()

    def at(name: str, memory_mhz: float, core_mhz: float) -> float:
        key = (COUNTED_TOO.get(name, ""), memory_mhz, core_mhz)
        return float(times.get(key, np.nan))

    columns = (frame[name] for name in ("benchmark", "memory_mhz", "core_mhz"))
    return np.array(
        [
            at(name, memory, core) / at(name, reference.memory_mhz, reference.core_mhz)
            for name, memory, core in zip(*columns, strict=True)
        ]
    )


@dataclass(frozen=True, eq=False)
class _Uses:
    table: UseTable
    position: dict[int, int]
    """Row of the table of each kernel."""


def _uses(table: FrequencyTable) -> tuple[CounterKind | None, _Uses]:
    """Counters of every kernel at the file's reference pair."""
    at = table.frame[table.frame["is_reference"]]
    position = {int(kernel): row for row, kernel in enumerate(at["kernel"])}
    seconds = at["time_seconds"].to_numpy(float)
    if table.counters == "dcgm":
        core = at[list(_DCGM_UNITS.values())].to_numpy(float)
        return "dcgm", _Uses(
            UseTable(UNITS["dcgm"], core, at["u_dram"].to_numpy(float), seconds), position
        )
    if table.counters == "utilisation":
        columns = [f"u_{unit}" for unit in UNITS["utilisation"]]
        core = at.reindex(columns=columns, fill_value=0.0).to_numpy(float)
        return "utilisation", _Uses(
            UseTable(UNITS["utilisation"], core, at["u_dram"].to_numpy(float), seconds), position
        )
    if table.counters in ("nvprof", "nvprof_short"):
        return "nvprof", _Uses(UseTable.of(_nvprof_uses(table)), position)
    nothing = np.zeros(len(at))
    return None, _Uses(UseTable((), np.zeros((len(at), 0)), nothing, seconds), position)


def _nvprof_uses(table: FrequencyTable) -> Sequence[KernelUse]:
    gpu = load_gpu(table.gpu)
    names = (*NVPROF_COUNTS, *NVPROF_INSTRUCTIONS, "inst_issued")
    at = table.frame[table.frame["is_reference"]]
    return [
        nvprof_use(
            {name: float(row[name]) for name in names if name in row},
            float(row["time_seconds"]),
            gpu,
            table.reference,
        )
        for row in at.to_dict("records")
    ]
