"""Energies of code on Hopper and Blackwell, from library operators that were measured with watts.

    python -m studies products [--out FOLDER]

What a matrix product does is known: multiply-adds, bytes, tiles and SMs at work. So are the bytes
of a quantisation, and of attention while it decodes. Their watts tell, of each board:

    idle     the lowest readings: a board that waited
    clock    what running at all draws, at the highest clock
    tensor   a multiply-add of the matrix units; other formats by their time
    dram     a byte of device memory. B200's rows do not tell it from the clock's share and from
             what else attention does, so B200 has H200's

Everything else (issue, FMA, ALU, FP64, shared memory, L2) stays what the pooled model has of other
boards, and so do the voltage over the clock and the memory clock's part of a byte: no clock was
varied. Readings after a pause are low (NVML averages over a second), so weights are those of the
upper quarter; readings at the limit are censored. H100 and GB200 have the chips of H200 and B200
and are answered with their energies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from studies import parser_of
from studies.fitting.operators import (
    CENSORED,
    FILES,
    FOLDS,
    LONG_SECONDS,
    SETTLED_SECONDS,
    UPPER,
    Table,
    folds_of,
    percent,
    read_rows,
    table_of,
)  # fmt: skip
from studies.fitting.physical.artifacts import POOLED_SETTINGS, _card, _Evaluation, _written
from studies.fitting.physical.rows import UNITS, Bools, Floats, GpuRows, Names
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.memory import SECTOR_BYTES
from wattcast.models.cards import ModelCard, group_mark, stored
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import (
    EXTRAPOLATED_WIDENING,
    IntervalCalibration,
    IntervalWidth,
    conformal_factors,
)
from wattcast.models.power.physical import (
    POOLED,
    PhysicalParameters,
    conversion,
    events_per_second,
    published_weights,
)  # fmt: skip
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.models.time.beside import TENSOR_COST
from wattcast.training.data.datasets import data_root
from wattcast.training.evaluation.scores import Rows
from wattcast.training.families import SEED

CHIPS = {"h200-sxm5": ("h200-sxm5", "h100-sxm5"), "b200": ("b200", "gb200")}
"""Measured boards, and boards that have their chip."""

TELLS_MEMORY = "h200-sxm5"
"""The board whose rows tell what a byte of device memory takes."""

FITTED = ("gemm", "quantize", "decode")
"""Operators whose work is known, unit by unit."""
ASKED = (*FITTED, "prefill", "moe")
"""Prefill does the arithmetic of softmax beside, and experts are many kernels: those two are kinds
of kernel left out. Of linear attention it is not known how many SMs have a block."""

PARTS = 4
"""Parts of a fold of shape groups that the interval counts as one group each, so that each operator
weighs the same in it."""

MEASURED_UNITS = ("tensor", "dram", "l2", "sms")

MOST_ROWS = 2_000
"""Rows of an operator and framework, drawn by chance where there are more."""

LOWEST = 0.5
"""Percentile of a board's readings that is idle power with the clocks up: calls of microseconds
after a pause. On H100 that was measured, 120 W at 1980 MHz (``modern/idle_power_voltage.csv``)."""

NEAREST = 0.02
"""Relative residuals below this weigh alike: the resolution of a reading."""

TILE_ROWS, TILE_COLUMNS = 128, 256
"""Of C, that a block of cuBLAS and CUTLASS computes on these chips; both factors pass through L2
once a tile."""

_COST = {16.0: TENSOR_COST["f16"], 8.0: TENSOR_COST["f8"], 4.0: TENSOR_COST["f4"]}


class Energies(NamedTuple):
    """Watts of running at all, joules of an FP16 multiply-add and of a byte of memory."""

    clock_watts: float
    tensor_joules: float
    dram_joules: float


def measured(gpu_id: str) -> GpuRows:
    """Rows with watts that were repeated for long enough, ``programs`` by operator and ``labels``
    by parts of its shape groups, ``measurements`` by the fold of those.

    Products whose factors stay in L2 from one repetition to the next are left out, and those in FP8
    with scales for blocks: other kernels run beside them.
    """
    folder, gpu = data_root() / "operators", load_gpu(gpu_id)
    reference = ClockPair(gpu.max_core_mhz, gpu.memory_mhz)
    parts, every, paths, chance = [], [], [], np.random.default_rng(SEED)
    for operator in ASKED:
        rows = read_rows(folder, operator, gpu_id)
        assert rows is not None
        table, call, known = table_of(rows), rows.call, np.isfinite(rows.watts)
        every.append(rows.watts[known])
        known &= rows.seconds >= (SETTLED_SECONDS if operator == "quantize" else LONG_SECONDS)
        if operator in ("gemm", "quantize"):
            known &= table.bytes >= 2 * table.board.l2_bytes
        if operator == "gemm":
            known &= (call["block_scaled"] == 0) | (call["math_bits"] != 8)
        for framework in np.unique(call["framework"]):
            able = np.flatnonzero(known & (call["framework"] == framework))
            kept = chance.choice(able, min(MOST_ROWS, len(able)), replace=False)
            names = np.full(len(kept), operator)
            folds = folds_of(rows, "shape_group", FOLDS * PARTS)[kept]
            groups = np.char.add(f"{operator}/", folds.astype(str))
            fold = (folds % FOLDS).astype(str)
            activity = _activities(table, gpu, reference)[kept]
            parts.append((activity, rows.watts[kept], names, groups, fold))
        paths.append(folder / f"{FILES[operator]}_{gpu_id}.parquet")
    activities, watts, programs, labels, number = map(np.concatenate, zip(*parts, strict=True))
    count = len(watts)
    return GpuRows(
        gpu=gpu,
        activities=activities,
        clocks_mhz=np.tile(np.array(reference), (count, 1)),
        watts=watts,
        programs=programs,
        labels=labels,
        measurements=number,
        real=np.ones(count, dtype=np.bool_),
        counted=np.ones(count, dtype=np.bool_),
        idle_watts=round(float(np.percentile(np.concatenate(every), LOWEST)), 1),
        limit_watts=gpu.tdp_watts,
        reference=reference,
        paths=tuple(paths),
    )


def _activities(table: Table, gpu: GpuProfile, reference: ClockPair) -> Floats:
    """What a count of their code would say of rows, in their measured time, ``[n, len(UNITS)]``."""
    rows, call = table.rows, table.rows.call
    through, sms = table.bytes, np.ones(len(rows))
    if rows.operator == "gemm":
        m, n, k = call["rows"], call["columns"], call["depth"]
        bits = np.minimum(m, TILE_ROWS) * call["math_bits"] + TILE_COLUMNS * call["weight_bits"]
        through = np.ceil(m / TILE_ROWS) * np.ceil(n / TILE_COLUMNS) * k * bits / 8 + 2 * m * n
        blocks = np.ceil(m / TILE_ROWS) * np.ceil(n / TILE_ROWS)
        sms = np.minimum(1.0, blocks / gpu.sm_count)
    most = events_per_second(gpu, reference)
    cost = np.vectorize(_COST.__getitem__)(call["math_bits"])
    busy = {
        "sms": sms,
        "tensor": table.flops / 2 * cost / rows.seconds / most["tensor"],
        "dram": table.bytes / rows.seconds / most["dram"],
        "l2": through / SECTOR_BYTES / rows.seconds / most["l2"],
    }
    columns = [busy.get(name, np.zeros(len(rows))) for name in UNITS]
    return np.asarray(np.clip(np.column_stack(columns), 0.0, 1.0))


def _events(rows: GpuRows) -> Floats:
    """Share of SMs, multiply-adds, bytes of memory and sectors of L2 a second, ``[n, 4]``."""
    most = {**events_per_second(rows.gpu, rows.reference), "sms": 1.0}
    units = ("sms", "tensor", "dram", "l2")
    shares = [rows.activities[:, UNITS.index(one)] for one in units]
    return np.asarray(np.column_stack(shares) * [most[one] for one in units])


def fitted(rows: GpuRows, sector_joules: float, dram_joules: float | None) -> Energies:
    """Energies by the ``UPPER`` quantile of relative residuals, iteratively reweighted; that of a
    byte of memory too where none is given."""
    rows = rows.take(np.isin(rows.programs, FITTED))
    events, at_limit = _events(rows), rows.watts >= CENSORED * rows.limit_watts
    target = rows.watts - rows.idle_watts - sector_joules * events[:, 3]
    design = events[:, :3]
    if dram_joules is not None:
        target, design = target - dram_joules * events[:, 2], events[:, :2]
    scale, weight = design.max(axis=0), np.ones(len(target))
    found = np.zeros(len(scale))
    for _ in range(60):
        root = np.sqrt(weight) / rows.watts
        found = nnls(design / scale * root[:, None], target * root)[0] / scale
        rest = (target - design @ found) / rows.watts
        weight = np.where(rest > 0, UPPER, 1 - UPPER) / np.maximum(np.abs(rest), NEAREST)
        weight[at_limit & (rest < 0)] = 0.0
    dram = float(found[2]) if dram_joules is None else dram_joules
    return Energies(float(found[0]), float(found[1]), dram)


def carried(energies: Energies, of: GpuProfile, to: GpuProfile) -> Energies:
    """The same energies on another board: running at all goes with SMs and clock."""
    more = to.sm_count * to.max_core_mhz / (of.sm_count * of.max_core_mhz)
    return energies._replace(clock_watts=energies.clock_watts * more)


def parameters(
    gpu: GpuProfile, energies: Energies, idle_watts: float, pooled: PhysicalParameters
) -> PhysicalParameters:
    """What serves: these energies, and of everything else those of other boards."""
    reference = ClockPair(gpu.max_core_mhz, gpu.memory_mhz)
    scale, events = gpu.tdp_watts - idle_watts, events_per_second(gpu, reference)
    factors = conversion(gpu, reference, idle_watts)
    weights = {name: pooled.weights[name] * factor for name, factor in factors.items()}
    of_byte = 1e-12 * (pooled.weights["dram"] + pooled.weights["dram_core"])
    weights |= {"base": 0.0, "memory_clock": 0.0, "clock": energies.clock_watts / scale}
    for name in ("dram", "dram_core"):
        weights[name] *= energies.dram_joules / of_byte
    own = published_weights(gpu, reference, scale, weights["fma"])
    own["tensor"] = energies.tensor_joules * events["tensor"] / scale
    return pooled.model_copy(
        update={
            "gpu": gpu.id,
            "idle_watts": idle_watts,
            "limit_watts": gpu.tdp_watts,
            "highest_watts": gpu.tdp_watts,
            "reference_core_mhz": reference.core_mhz,
            "reference_memory_mhz": reference.memory_mhz,
            "voltage": pooled.voltage.model_copy(update={"highest": 1.0}),
            "weights": {name: round(value, 6) for name, value in weights.items()},
            "own_weights": {name: round(value, 6) for name, value in own.items()},
            "families": {},
        }
    )


def _skewed(found: IntervalCalibration, residuals: Floats, groups: Names) -> IntervalCalibration:
    """Widths with ends of their own: readings after a pause are low, none is high."""
    low, high = conformal_factors(residuals, groups, found.level)
    unseen = IntervalWidth(low_factor=low, high_factor=high)
    return found.model_copy(
        update={
            "seen_kernel": unseen,
            "unseen_kernel": unseen.model_copy(update={"coverage": found.unseen_kernel.coverage}),
            "extrapolated": unseen.widened(EXTRAPOLATED_WIDENING),
        }
    )


class Left(NamedTuple):
    """Watts told of every row of a board by energies that did not see its shape group, the row
    itself (drawn by chance), its operator, or its board."""

    group: Floats
    chance: Floats
    operator: Floats
    board: Floats


class Boards:
    """Fits on the rows of both boards but some."""

    def __init__(self, pooled: PhysicalParameters) -> None:
        self.pooled = pooled
        self.rows = {gpu_id: measured(gpu_id) for gpu_id in CHIPS}
        self._sector = 1e-12 * pooled.weights["l2"]

    def energies(self, gpu_id: str, keep: Bools | None = None, fold: str = "") -> Energies:
        """Of a board, from the rows to ``keep``; memory's without the ``fold``."""
        dram, rows = None, self.rows[gpu_id]
        if gpu_id != TELLS_MEMORY:
            other = self.rows[TELLS_MEMORY]
            dram = self.energies(TELLS_MEMORY, other.measurements != fold).dram_joules
        return fitted(rows if keep is None else rows.take(keep), self._sector, dram)

    def told(self, rows: GpuRows, energies: Energies) -> Floats:
        """Watts of rows, held at the limit."""
        above = _events(rows) @ np.array([*energies, self._sector])
        return np.asarray(np.minimum(rows.idle_watts + above, rows.limit_watts))

    def left_out(self, gpu_id: str) -> Left:
        """Answers for every row of a board without what ``Left`` says."""
        rows = self.rows[gpu_id]
        chance = np.random.default_rng(SEED).integers(FOLDS, size=len(rows.watts))

        def without(parts: NDArray[np.generic]) -> Floats:
            watts = np.empty(len(rows.watts))
            for part in np.unique(parts):
                out = parts == part
                watts[out] = self.told(rows.take(out), self.energies(gpu_id, ~out, str(part)))
            return watts

        (other,) = {*CHIPS} - {gpu_id}
        dram = None
        if other != TELLS_MEMORY:  # this board's memory is not seen: that of other boards
            dram = 1e-12 * (self.pooled.weights["dram"] + self.pooled.weights["dram_core"])
        alone = fitted(self.rows[other], self._sector, dram)
        board = self.told(rows, carried(alone, self.rows[other].gpu, rows.gpu))
        return Left(without(rows.measurements), without(chance), without(rows.programs), board)

    def cards(self, gpu_id: str, pooled: ModelCard, out: Path | None) -> list[ModelCard]:
        """Cards of the boards that have a measured board's chip, written below ``out``. The
        measured one is scored on shape groups left out, the other ones by the measured board's rows
        and the energies of the other chip."""
        rows, left = self.rows[gpu_id], self.left_out(gpu_id)
        median = np.full_like(rows.watts, np.median(rows.watts))
        shared = {fact.name: fact for fact in pooled.features}
        note = {"reproduced_note": "weight of other boards, range of their rows"}
        cards = []
        for name in CHIPS[gpu_id]:
            gpu = load_gpu(name)
            energies = carried(self.energies(gpu_id), rows.gpu, gpu)
            unseen, seen = (left.group, left.chance) if name == gpu_id else (left.board, left.board)
            evaluation = _Evaluation(
                Rows.of(rows.activities, rows.watts, rows.labels),
                (unseen[np.newaxis], median[np.newaxis]),
                (seen[np.newaxis], median[np.newaxis]),
                FOLDS,
                np.zeros(len(rows.watts), dtype=np.bool_),
            )
            intervals = _skewed(evaluation.intervals(), np.log(rows.watts / unseen), rows.labels)
            learned = stored({group_mark(str(one)) for one in np.unique(rows.programs)})
            card = _card(name, [rows], evaluation, POOLED_SETTINGS, learned)
            facts = (
                fact if fact.name in MEASURED_UNITS else shared[fact.name].model_copy(update=note)
                for fact in card.features
            )
            told = {
                "source": "aiconfigurator",
                "intervals": intervals,
                "features": tuple(facts),
                "sources": tuple(dict.fromkeys((*card.sources, *pooled.sources))),
                "hyperparameters": {
                    "measured_on": gpu_id,
                    "clock_watts": round(energies.clock_watts, 1),
                    "tensor_picojoules": round(1e12 * energies.tensor_joules, 3),
                    "dram_picojoules_a_byte": round(1e12 * energies.dram_joules, 1),
                    "shared_with_other_boards": "issue, fma, fp16, alu, fp64, sfu, load_store, l2, "
                    "texture, voltage over clock, memory clock's part of dram",
                    "quantile": UPPER,
                    "pooled_voltage": True,
                },
            }
            card = card.model_copy(update=told)
            if out is not None:
                served = parameters(gpu, energies, rows.idle_watts, self.pooled)
                card = _written(card, served, out)
            cards.append(card)
        return cards


def main(arguments: Sequence[str]) -> int:
    """Print energies and errors; write the artifacts if asked."""
    parser = parser_of("products", __doc__)
    parser.add_argument("--out", type=Path, help="write into this root, by its pooled model")
    asked = parser.parse_args(arguments)
    found = ArtifactStore((asked.out or PACKAGED_ARTIFACTS,)).find(
        POOLED, "power", "physical", "activity1"
    )
    boards = Boards(found.parameters(PhysicalParameters))
    print("| board | operator | rows | shape group | inside | operator | board | constant |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for gpu_id, rows in boards.rows.items():
        left = boards.left_out(gpu_id)
        card, *_ = boards.cards(gpu_id, found.card, asked.out)
        low, high = card.intervals.unseen_kernel.around(left.group)
        inside = (rows.watts >= low) & (rows.watts <= high)
        for operator in dict.fromkeys(rows.programs):
            mine = rows.programs == operator
            usual = np.full_like(rows.watts, np.median(rows.watts))
            group, _, kind, board, same = (
                f"{percent(one[mine], rows.watts[mine]).mean():.1f}" for one in (*left, usual)
            )
            held = f"{inside[mine].mean():.2f}"
            print(f"| {gpu_id} | {operator} | {mine.sum()} | {group} | {held} | {kind} | {board} | "
                  f"{same} |")  # fmt: skip
        told = ", ".join(f"{k} {v}" for k, v in card.hyperparameters.items() if k[0] in "ctd")
        print(f"| {gpu_id} | idle {rows.idle_watts} W, {told} | | | | | | |", flush=True)
    return 0
