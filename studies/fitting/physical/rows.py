"""Rows the physical power model is fitted on: activities of programs, and watts, at many clocks.

Four kinds of activities:

    served     ``activity1`` at the PREDICTED time, as the service answers (tables made anew)
    prototype  the same of an early prototype: microbenchmarks, and programs whose launch nobody
               published. Nothing is scored on them
    counted    nvprof's counts of a launch over what the units could do in the measured time
    used       shares of each unit's peak at one pair (Guerreiro et al.), carried to the other
               pairs by relative time

``counter_rows`` and ``utilisation_rows`` say what of a counter stands for which unit.
docs/physical.md tells how near the counted activities of a program come to the served ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from studies.data.activity_tables import (
    TABLE_CONSTANTS,
    ServedProgram,
    activity_path,
    read_activity_table,
    read_served_table,
    reference_clocks,
    served_folder,
)
from studies.data.frequency import kernel_group, read_frequency
from studies.fitting.scaling.fits import fit_power_and_time
from studies.fitting.scaling.rows import scaling_rows
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.clocks import ClockPair, bandwidth_bytes_per_second
from wattcast.models.papers.scaling.physical import relative_time
from wattcast.models.papers.scaling.use import LANES_OF_A_QUAD
from wattcast.models.power.activities import UnitActivities, unit_activities
from wattcast.models.power.physical import (
    IDLE_SHARE,
    WEIGHTS,
    VoltageCurve,
    conversion,
    events_per_second,
    regressors,
)
from wattcast.models.time.bottleneck import SHARED_BYTES_PER_LANE, predicted_seconds
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Names = NDArray[np.str_]

UNITS = UnitActivities._fields

VOLTAGES = tuple(
    VoltageCurve(floor=floor, slope=slope)
    for floor, slope in product((0.5, 0.6, 0.7, 0.8, 0.9), (0.0, 0.3, 0.5, 0.7, 0.9, 1.1))
)
"""Curves tried for each GPU; they span those measured on three boards (dvfs data, Titan X 1.16
over a clock ratio of 1.48, Titan Xp 1.45 over 2.1, Tesla K40c 1.17 over 1.31)."""


@dataclass(frozen=True, eq=False)
class GpuRows:
    """All rows of one GPU as the fit takes them.

    Arrays are ``[n]``, ``activities`` ``[n, len(UNITS)]``, ``clocks_mhz`` ``[n, 2]`` (core,
    memory). ``programs`` are canonical names, which variants of a program share
    (``frequency_names.kernel_group``); ``labels`` tell apart what was measured at several
    clocks: program, input and kind of activities. ``measurements`` name the reading, so that
    rows that share one are never split. ``real`` are applications, ``counted`` rows whose
    activities are not the served ones.
    """

    gpu: GpuProfile
    activities: Floats
    clocks_mhz: Floats
    watts: Floats
    programs: Names
    labels: Names
    measurements: Names
    real: Bools
    counted: Bools
    idle_watts: float
    limit_watts: float
    reference: ClockPair
    paths: tuple[Path, ...]

    @property
    def scale_watts(self) -> float:
        """What weights are multiplied by."""
        return self.limit_watts - self.idle_watts

    @property
    def several_clocks(self) -> bool:
        """Whether the core clock was varied, so that rows tell a voltage curve."""
        return len(np.unique(self.clocks_mhz[:, 0])) > 1

    @cached_property
    def conversion(self) -> Floats:
        """What pooled weights are multiplied by on this GPU, ``[len(WEIGHTS)]``."""
        factors = conversion(self.gpu, self.reference, self.idle_watts)
        return np.array([factors[name] for name in WEIGHTS])

    @cached_property
    def scored(self) -> Bools:
        """Rows of applications that scores stand on: the served ones where there are any."""
        served = self.real & ~self.counted
        return served if served.any() else self.real

    @cached_property
    def clock_numbers(self) -> NDArray[np.int64]:
        """Number of each row's clock pair."""
        _, numbers = np.unique(self.clocks_mhz, axis=0, return_inverse=True)
        return np.asarray(numbers).ravel()

    @cached_property
    def at_reference(self) -> NDArray[np.int64]:
        """For each row the row of the same label at its highest measured clocks."""
        best: dict[str, int] = {}
        for row in np.lexsort((self.clocks_mhz[:, 1], self.clocks_mhz[:, 0])):
            best[str(self.labels[row])] = int(row)
        return np.array([best[str(label)] for label in self.labels])

    @cached_property
    def designs(self) -> Mapping[VoltageCurve, Floats]:
        """Regressors of every row under each curve of ``VOLTAGES``, ``[n, len(WEIGHTS)]``."""
        return {voltage: self.design(voltage) for voltage in VOLTAGES}

    def design(self, voltage: VoltageCurve) -> Floats:
        """``wattcast.models.power.physical.regressors`` of every row, ``[n, len(WEIGHTS)]``."""
        activities, clocks = UnitActivities(*self.activities.T), ClockPair(*self.clocks_mhz.T)
        columns = regressors(activities, clocks, self.reference, voltage)
        return np.column_stack([columns[name] for name in WEIGHTS])

    def take(self, rows: Bools) -> GpuRows:
        """The chosen rows, ``[n]``."""
        arrays = ("activities", "clocks_mhz", "watts", "programs", "labels", "measurements")
        names = (*arrays, "real", "counted")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


_EVERY = 5
"""Every so many core clocks, the lowest first, for the relative time of utilisations: it is a
smooth curve in them, and its fit takes a minute of all."""


def prototype_rows(gpu_id: str) -> GpuRows:
    """The prototype's activity table of a GPU, activities at predicted times. Raises DataError."""
    gpu, rows = load_gpu(gpu_id), read_activity_table(gpu_id)
    found = []
    for row in rows:
        seconds = predicted_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS)
        found.append(
            unit_activities(row.activity, gpu, row.clocks, seconds, constants=TABLE_CONSTANTS)
        )
    names = [(row.program, row.variant) for row in rows]
    return GpuRows(
        gpu=gpu,
        activities=np.array(found),
        clocks_mhz=np.array([(row.clocks.core_mhz, row.clocks.memory_mhz) for row in rows]),
        watts=np.array([row.power_watts for row in rows]),
        programs=np.array([kernel_group(row.program) for row in rows]),
        labels=np.array([f"served {program} {variant}" for program, variant in names]),
        measurements=np.array(
            [f"{row.program} {row.clocks.core_mhz:g} {row.clocks.memory_mhz:g}" for row in rows]
        ),
        real=np.array([row.kind == "real" for row in rows]),
        counted=np.zeros(len(rows), dtype=np.bool_),
        idle_watts=gpu.idle_watts or IDLE_SHARE * gpu.tdp_watts,
        limit_watts=gpu.tdp_watts,
        reference=reference_clocks(rows),
        paths=(activity_path(gpu_id),),
    )


OTHER_BUILDS = (("cfd", "wang_tesla_v100"), ("cfd", "wang_tesla_p100"))
"""Programs and campaigns whose measured build is not that of the PTX: it spills, and takes 5 and 10
times as long (``studies/end_to_end.toml``). No model is fitted to them."""


def served_programs(gpu_id: str, *, other_builds: bool = False) -> tuple[ServedProgram, ...]:
    """What ``served_rows`` are made of, row by row. Raises DataError."""
    return tuple(
        row
        for row in read_served_table(gpu_id)
        if other_builds or (row.program, row.campaign) not in OTHER_BUILDS
    )


def served_rows(gpu_id: str, *, other_builds: bool = False) -> GpuRows:
    """The public programs of a GPU as the service answers. Raises DataError.

    ``measurements`` are those of ``prototype_rows`` and ``counter_rows`` where the readings are.
    """
    gpu, rows = load_gpu(gpu_id), served_programs(gpu_id, other_builds=other_builds)
    return GpuRows(
        gpu=gpu,
        activities=np.array([row.units for row in rows]),
        clocks_mhz=np.array([tuple(row.clocks) for row in rows]),
        watts=np.array([row.power_watts for row in rows]),
        programs=np.array([kernel_group(row.program) for row in rows]),
        labels=np.array([f"served {row.program} {row.campaign}" for row in rows]),
        measurements=np.array(
            [f"{row.program} {row.clocks.core_mhz:g} {row.clocks.memory_mhz:g}" for row in rows]
        ),
        real=np.ones(len(rows), dtype=np.bool_),
        counted=np.zeros(len(rows), dtype=np.bool_),
        idle_watts=gpu.idle_watts or IDLE_SHARE * gpu.tdp_watts,
        limit_watts=gpu.tdp_watts,
        reference=ClockPair(
            max(row.clocks.core_mhz for row in rows), max(row.clocks.memory_mhz for row in rows)
        ),
        paths=(),  # the tables of the campaigns, which the other rows of the GPU name
    )


def _with_prototype(gpu_id: str) -> GpuRows:
    """Served rows, and the prototype's of what is not served; without WATTCAST_ACTIVITY, only the
    prototype's."""
    old = prototype_rows(gpu_id)
    if served_folder() is None:
        return old
    served = served_rows(gpu_id)
    other = old.take(~old.real | ~np.isin(old.programs, served.programs))
    return joined(served, replace(other, counted=np.ones(len(other.watts), dtype=np.bool_)))


def counter_rows(campaign: str) -> GpuRows:
    """The rows of an nvprof campaign. Raises DataError.

    Counts are those of the reference pair. Per warp: ``issue`` inst_executed; ``load_store``
    shared transactions (conflicts included) and global requests. Per thread: ``fma`` inst_fp_32,
    ``alu`` inst_integer (multiplications too: nvprof does not tell them apart), ``fp64``
    inst_fp_64, ``sfu`` flop_count_sp_special. ``l2`` and ``dram`` sectors. From Maxwell on, the
    texture cache serves global loads as well: its transactions are ``texture`` where the
    program has no global load.
    """
    table = read_frequency(campaign)
    frame, gpu = table.frame, load_gpu(table.gpu)
    sm = gpu.capability
    counts = frame[frame["is_reference"]].set_index("kernel")

    def count(*names: str) -> Floats:
        total = counts[list(names)].astype(float).sum(axis=1)
        return frame["kernel"].map(total).to_numpy(float)

    def requests(kind: str) -> Floats:
        each = count(f"{kind}_transactions_per_request")
        return np.divide(count(f"{kind}_transactions"), each, out=0 * each, where=each > 0)

    core, memory = frame["core_mhz"].to_numpy(float), frame["memory_mhz"].to_numpy(float)
    seconds = frame["time_seconds"].to_numpy(float)
    cycles = gpu.sm_count * core * 1e6 * seconds
    bandwidth = np.array([bandwidth_bytes_per_second(gpu, mhz) for mhz in memory])
    shared = count("shared_load_transactions", "shared_store_transactions")
    passes = shared + requests("gld") + requests("gst")
    texture = np.where(count("gld_transactions") == 0, count("tex_cache_transactions"), 0.0)
    sectors = count("l2_read_transactions", "l2_write_transactions")
    moved = SECTOR_BYTES * count("dram_read_transactions", "dram_write_transactions")
    busy = {
        "issue": count("inst_executed") / (sm.warp_schedulers * cycles),
        "fma": count("inst_fp_32") / (sm.fp32_lanes * cycles),
        "alu": count("inst_integer") / (sm.int_lanes * cycles),
        "fp64": count("inst_fp_64") / (sm.fp64_lanes * cycles),
        "sfu": count("flop_count_sp_special") / (sm.sfu_lanes * cycles),
        "load_store": passes
        * WARP_SIZE
        / (sm.shared_bytes_per_clock / SHARED_BYTES_PER_LANE * cycles),
        "l2": sectors / cycles,
        "texture": texture / (sm.texture_lanes / LANES_OF_A_QUAD * cycles),
        "dram": moved / (bandwidth * seconds),
    }
    names = frame["benchmark"].astype(str)
    return GpuRows(
        gpu=gpu,
        activities=_stacked(busy, len(frame)),
        clocks_mhz=np.column_stack([core, memory]),
        watts=frame["power_watts"].to_numpy(float),
        programs=frame["group"].to_numpy(str),
        labels=np.array([f"{campaign} {name}" for name in names]),
        measurements=np.array(
            [f"{name} {c:g} {m:g}" for name, c, m in zip(names, core, memory, strict=True)]
        ),
        real=(frame["kind"] == "real").to_numpy(),
        counted=np.ones(len(frame), dtype=np.bool_),
        idle_watts=gpu.idle_watts or IDLE_SHARE * gpu.tdp_watts,
        limit_watts=gpu.tdp_watts,
        reference=ClockPair(float(core.max()), float(memory.max())),
        paths=(_campaign_path(campaign),),
    )


def utilisation_rows(campaign: str) -> GpuRows:
    """The rows of a campaign with measured utilisations and idle watts. Raises DataError.

    ``fma`` sp, ``alu`` int, ``fp64`` dp, ``sfu`` sfu, ``load_store`` shared, ``dram`` dram;
    ``l2`` l2, from the share of the L2's own bandwidth to sectors a cycle and SM; ``issue`` the
    pipes' warp instructions, the least there can be. Utilisations are those at the nominal pair;
    at other clocks they are divided by clock and relative time, whose model is fitted on the
    microbenchmarks alone (``scaling_fits.fit_power_and_time``). ``idle_watts`` is the
    least idle power measured: what clocks add to it is fitted.
    """
    table = scaling_rows(campaign)
    gpu = load_gpu(table.gpu)
    sm = gpu.capability
    few = np.isin(table.core_mhz, np.unique(table.core_mhz)[::_EVERY]) | table.is_reference
    _, time = fit_power_and_time(table.take(~table.real & few))
    slower = relative_time(time, table.use, table.core, table.memory)
    use = dict(zip(table.use.units, table.use.core.T, strict=True))
    lanes = (
        use["sp"] * sm.fp32_lanes
        + use["int"] * sm.int_lanes
        + use["dp"] * sm.fp64_lanes
        + use["sfu"] * sm.sfu_lanes
    )
    sectors_per_clock = (gpu.l2_bytes_per_clock or 0.0) / SECTOR_BYTES
    at_nominal = {
        "issue": lanes / WARP_SIZE / sm.warp_schedulers,
        "fma": use["sp"],
        "alu": use["int"],
        "fp64": use["dp"],
        "sfu": use["sfu"],
        "load_store": use["shared"],
        "l2": use["l2"] * sectors_per_clock / gpu.sm_count,
    }
    busy = {name: share / (table.core * slower) for name, share in at_nominal.items()}
    busy["dram"] = table.use.dram / (table.memory * slower)
    clocks = np.column_stack([table.core_mhz, table.memory_mhz])
    return GpuRows(
        gpu=gpu,
        activities=_stacked(busy, len(table)),
        clocks_mhz=clocks,
        watts=table.power_watts,
        programs=table.groups,
        labels=table.names,
        measurements=np.array(
            [f"{name} {c:g} {m:g}" for name, (c, m) in zip(table.names, clocks, strict=True)]
        ),
        real=table.real,
        counted=np.ones(len(table), dtype=np.bool_),
        idle_watts=float(np.nanmin(table.idle_watts)),
        limit_watts=gpu.tdp_watts,
        reference=ClockPair(float(clocks[:, 0].max()), float(clocks[:, 1].max())),
        paths=(_campaign_path(campaign),),
    )


SWEPT = ("a100-sxm4-40gb", "a40")
"""Boards of the sweeps of multiply-adds, eight of each."""

PER_ELEMENT = {"fma": 2.0, "load_store": 2.0, "alu": 5.0, "issue": 9.5}
"""Warp instructions of an element beside its multiply-adds, as the analysis counts them in
``studies/fma_sweep.cu``: two loads, the sums, addresses and the loop; ``issue`` is all of them."""


def sweep_frame(gpu_id: str) -> pd.DataFrame:
    """The rows of ``modern/fma_sweep_power.csv`` of a kind of board, below its power limit: those
    whose clock fell are left out. Raises DataError."""
    frame: pd.DataFrame = pd.read_csv(data_root() / "modern" / "fma_sweep_power.csv")
    frame = frame.loc[frame["gpu"] == gpu_id]
    highest: pd.DataFrame = frame.loc[frame["core_mhz"] == frame["core_mhz"].max()]
    return highest


def sweep_rows(gpu_id: str) -> GpuRows:
    """A sweep of multiply-adds (``modern/fma_sweep_power.csv``). Raises DataError.

    Activities are those of the elements a second that were measured; eight bytes each are read.
    Rows whose clock fell, because the board was at its power limit, are left out: nothing tells the
    voltage at it. Each kind of board has it as a program of its own. ``measurements`` end in the
    number of the board.
    """
    gpu, path = load_gpu(gpu_id), data_root() / "modern" / "fma_sweep_power.csv"
    frame = sweep_frame(gpu_id)
    clocks = ClockPair(gpu.max_core_mhz, gpu.memory_mhz)
    most = events_per_second(gpu, clocks)
    elements = frame["gbytes_per_second"].to_numpy(float) * 1e9 / 8
    fmas = frame["fma_per_element"].to_numpy(float)
    lanes = {**dict.fromkeys(PER_ELEMENT, 1.0), "issue": 1 / WARP_SIZE}
    more = {"fma": fmas, "issue": fmas}
    busy = {
        name: elements * (count + more.get(name, 0.0)) * lanes[name] / most[name]
        for name, count in PER_ELEMENT.items()
    }
    busy["dram"] = elements * 8 / most["dram"]
    busy["l2"] = elements * 8 / SECTOR_BYTES / most["l2"]
    boards = [
        f"{n} {board}" for n, board in zip(frame["fma_per_element"], frame["board"], strict=True)
    ]
    return GpuRows(
        gpu=gpu,
        activities=_stacked(busy, len(frame)),
        clocks_mhz=np.tile(np.array(clocks), (len(frame), 1)),
        watts=frame["power_watts"].to_numpy(float),
        programs=np.full(len(frame), f"fma_sweep {gpu_id}"),
        labels=np.array([f"fma_sweep {n:g}" for n in fmas]),
        measurements=np.array(boards),
        real=np.ones(len(frame), dtype=np.bool_),
        counted=np.ones(len(frame), dtype=np.bool_),
        idle_watts=gpu.idle_watts or IDLE_SHARE * gpu.tdp_watts,
        limit_watts=gpu.tdp_watts,
        reference=clocks,
        paths=(path,),
    )


def joined(first: GpuRows, second: GpuRows) -> GpuRows:
    """Rows of one GPU from two sources; everything but the rows is the first's."""

    def both(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(first, name), getattr(second, name)])

    arrays = ("activities", "clocks_mhz", "watts", "programs", "labels", "measurements")
    return GpuRows(
        gpu=first.gpu,
        **{name: both(name) for name in (*arrays, "real", "counted")},  # type: ignore[arg-type]
        idle_watts=first.idle_watts,
        limit_watts=first.limit_watts,
        reference=first.reference,
        paths=(*first.paths, *second.paths),
    )


COUNTED_CAMPAIGNS: Mapping[str, str] = {
    "tesla-v100": "wang_tesla_v100",
    "gtx-1080-ti": "wang_gtx_1080_ti",
    "tesla-p100": "wang_tesla_p100",
}
"""Campaigns with nvprof's counts on GPUs that have an activity table: programs more."""


def all_rows() -> dict[str, GpuRows]:
    """Every GPU that the physical model is fitted on, by id. Raises DataError.

    What ships is fitted with WATTCAST_ACTIVITY set; without it the prototype's activities stand in.
    """
    return dict(_all_rows(data_root(), served_folder()))


@lru_cache(maxsize=2)
def _all_rows(*_: Path | None) -> Mapping[str, GpuRows]:
    tables = {
        gpu: joined(_with_prototype(gpu), counter_rows(campaign))
        for gpu, campaign in COUNTED_CAMPAIGNS.items()
    }
    tables["quadro-rtx-8000"] = _with_prototype("quadro-rtx-8000")
    tables["gtx-980"] = counter_rows("wang_gtx_980_high")
    tables["gtx-titan-x"] = utilisation_rows("lisboa_gtx_titan_x")
    tables["titan-v"] = utilisation_rows("lisboa_titan_v")  # microbenchmarks alone
    tables.update({gpu: sweep_rows(gpu) for gpu in SWEPT})
    return MappingProxyType(dict(sorted(tables.items())))


def scaling(table: GpuRows, values: Floats) -> Floats:
    """Each row's value over that of the same label at its highest clocks, ``[n]``."""
    return np.asarray(values / values[table.at_reference])


def _stacked(busy: Mapping[str, Floats], rows: int) -> Floats:
    busy = {"sms": np.ones(rows), **busy}  # all these programs fill their GPUs
    columns: Sequence[Floats] = [busy.get(name, np.zeros(rows)) for name in UNITS]
    return np.clip(np.column_stack(columns), 0.0, 1.0)


def _campaign_path(campaign: str) -> Path:
    return data_root() / "dvfs" / f"{campaign}.csv"
