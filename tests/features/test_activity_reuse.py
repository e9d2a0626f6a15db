"""Cache traffic from reuse distances against a simulated memory hierarchy that plays every access.

The simulator and what it plays share no code with the analysis: the accesses come from the scalar
reference interpreter. The analysis executes its usual sample of blocks.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from tests.fixtures.kernels.data import Buffer, materialise, ptx_path
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.cache_cases import CASES, SCALES, Scale
from tests.reference.caches import Gpu, distinct_sectors, record, simulate
from wattcast.features.activity import memory
from wattcast.features.activity.memory import L2_SHARE, MemoryLevels, memory_levels
from wattcast.features.counts import Stream, Traffic
from wattcast.features.execution import execute
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.launch import Argument, Launch, PointerHint
from wattcast.features.occupancy import Occupancy
from wattcast.features.ptx import read_module
from wattcast.features.runs import Runs

TARGET = "sm_70"


class Errors(NamedTuple):
    """Of one launch on one GPU, relative: sectors past L1 and sectors of memory, executed and
    without running anything (``symbols``, where all addresses are known)."""

    case: str
    scale: str
    l2_sectors: int
    dram_sectors: int
    executed: tuple[float, float]
    symbols: tuple[float, float] | None


def hint(buffer: Buffer) -> PointerHint:
    """What a fixture's buffer holds, as a user would say it."""
    elements = int(np.prod(buffer.shape))
    if buffer.fill == "offsets":
        return PointerHint(elements, "sorted", 0.0, (buffer.low + buffer.high) / 2 * elements)
    return PointerHint(elements, "uniform", buffer.low, buffer.high)


def scaled(scale: Scale) -> GpuProfile:
    """A profile with the caches of ``scale``; of L2 the rule counts on ``L2_SHARE`` only, which
    the simulated one, perfect in its way, has."""
    gpu = load_gpu("tesla-v100")
    l2_bytes = round(scale.l2_bytes / L2_SHARE)
    chip = gpu.chip.model_copy(
        update={
            "sm_count": gpu.chip.sm_count.model_copy(update={"value": scale.sm_count}),
            "l2_bytes": gpu.chip.l2_bytes.model_copy(update={"value": l2_bytes}),
        }
    )
    capability = gpu.capability._replace(l1_bytes_per_sm=scale.l1_bytes)
    return gpu.model_copy(update={"chip": chip, "capability": capability})


def levels(traffic: Traffic, gpu: GpuProfile, launch: Launch, resident: Occupancy) -> MemoryLevels:
    """The rule for a cache that, as the simulated one, keeps all of what fits and nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "ONE_PARTITION", (L2_SHARE, L2_SHARE + 1e-9))
        return memory_levels(traffic, gpu, launch, resident, 0)


class Compared(NamedTuple):
    """Errors on every scale, and those of the footprint, executed and symbolic."""

    errors: list[Errors]
    footprint: float
    symbols: float | None


@cache
def compare(name: str) -> Compared:
    """Play one launch, and tell what passes the caches."""
    entry, shape = CASES[name]
    kernel = next(k for k in KERNELS if k.name == entry)
    ptx = ptx_path(kernel.source, TARGET).read_text()
    played = record(
        ptx, kernel.entry, shape.grid, shape.block, materialise(entry, shape),
        shape.dynamic_shared_bytes,
    )  # fmt: skip
    arguments: dict[str, Argument] = {
        str(index): hint(value) if isinstance(value, Buffer) else value.item()  # type: ignore[union-attr]
        for index, value in enumerate(shape.arguments.values())
    }
    module = read_module(ptx)
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    function = module.kernel(kernel.entry)
    traffic = execute(function, module, launch, effort=None).memory
    worked_out = Runs(
        module, function, launch, load_gpu("tesla-v100"), {}, float("inf"), prefer_symbols=True
    )
    symbols = worked_out.traffic if worked_out.all_known else None
    found = []
    for scale in SCALES:
        blocks = max(1, scale.threads_per_sm // launch.threads_per_block)
        resident = Occupancy(blocks, blocks * launch.warps_per_block, 1.0, "warps", {})
        true = simulate(Gpu(scale.sm_count, blocks, scale.l1_bytes, scale.l2_bytes), played)
        dram = true.dram_read_sectors + true.dram_write_sectors
        gpu = scaled(scale)
        known = [traffic] if symbols is None else [traffic, symbols]
        # Little traffic to memory is judged against a twentieth of that at L2.
        judged = max(dram, true.l2_sectors / 20)
        errors = [
            (
                rule.l2_sectors / true.l2_sectors - 1,
                (rule.dram_read_sectors + rule.dram_write_sectors - dram) / judged,
            )
            for rule in (levels(each, gpu, launch, resident) for each in known)
        ]
        by_symbols = errors[1] if symbols is not None else None
        found.append(Errors(name, scale.name, true.l2_sectors, dram, errors[0], by_symbols))
    distinct = distinct_sectors(played)
    touched = None if symbols is None else symbols.footprint_sectors / distinct - 1
    return Compared(found, traffic.footprint_sectors / distinct - 1, touched)


@pytest.fixture(scope="module")
def compared() -> dict[str, Compared]:
    """Every launch: half a minute of one core, so that what asks for it is slow."""
    return {name: compare(name) for name in CASES}


@pytest.mark.slow
def test_reuse_distances_tell_what_passes_the_caches(
    compared: dict[str, Compared],
) -> None:
    rows = [row for one in compared.values() for row in one.errors]
    errors = np.abs([row.executed for row in rows])
    for level, (mean, median) in enumerate(((0.08, 0.01), (0.20, 0.03))):
        assert errors[:, level].mean() < mean
        assert np.median(errors[:, level]) < median
        assert (errors[:, level] < 0.25).mean() > 0.8


@pytest.mark.parametrize(
    "name", ["copy", "saxpy", "strided", "transpose_padded", "reduce_shuffle", "unrolled"]
)
def test_streams_are_exact(name: str) -> None:
    for row in compare(name).errors:
        assert row.executed == pytest.approx((0, 0), abs=0.02)
        assert row.symbols is None or row.symbols == pytest.approx((0, 0), abs=0.02)


@pytest.mark.slow
def test_footprints_are_what_all_blocks_touch(
    compared: dict[str, Compared],
) -> None:
    errors = np.abs([one.footprint for one in compared.values()])
    assert np.median(errors) < 0.01
    assert errors.max() < 0.1


@pytest.mark.slow
def test_where_nothing_is_run_the_caches_hold_what_an_execution_tells(
    compared: dict[str, Compared],
) -> None:
    """And all blocks touch what they truly do."""
    known = [one for one in compared.values() if one.symbols is not None]
    assert len(known) >= 4
    assert [one.symbols for one in known] == pytest.approx([0.0] * len(known), abs=1e-9)
    for row in (row for one in known for row in one.errors):
        assert row.symbols == pytest.approx(row.executed, abs=0.01), row


@pytest.mark.parametrize("depth", [256, 2048])
def test_tiles_whose_row_and_column_are_quotient_and_rest(depth: int) -> None:
    """16 blocks after another share a row of tiles and the next 16 none of it; every 16th block
    has the same columns. Of the deeper matrices most iterations are skipped."""
    size = 2048
    kernel = next(k for k in KERNELS if k.name == "wmma_matmul")
    module = read_module(ptx_path(kernel.source, TARGET).read_text())
    sizes: dict[str, Argument] = {"3": size, "4": size, "5": depth}
    launch = Launch.of((size // 16) ** 2 // 8, 256, arguments=sizes)
    found = execute(module.kernel(kernel.entry), module, launch, effort=None).memory
    operands = {each.name: each for each in found.streams if each.unique_load_sectors}
    assert len(operands) == 2
    for each in operands.values():
        assert each.distinct_sectors == pytest.approx(size * depth * 2 / 32, rel=0.03)
    row = operands[f"{kernel.entry}_param_1"].sharing
    assert row.beside == pytest.approx(15 / 16, abs=0.01)


INDEX = """
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %tid.y;
	mov.u32 %r4, %ctaid.y;
"""


def streams(body: str, grid: tuple[int, ...], block: tuple[int, ...], **sizes: int) -> list[Stream]:
    """What a kernel of pointers ``a`` and ``b`` does to those that it touches."""
    module = read_module(
        ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry k(.param .u64 a, .param .u64 b)\n{\n"
        ".reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>; .reg .f32 %f<9>;\n"
        "ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];\n" + INDEX + body + "\nret;\n}\n"
    )
    given = {name: PointerHint(count) for name, count in sizes.items()}
    found = execute(module.kernel("k"), module, Launch.of(grid, block, arguments=given))
    return [stream for stream in found.memory.streams if stream.unique_load_sectors]


def test_tiles_that_overlap_share_what_whole_ones_do() -> None:
    """Tiles of 16 columns, 12 apart: sampled at the grid's edge, where the last are a column wide,
    they were taken to share less: of 2.5 sectors in a line each has 1.5 of its own."""
    (stream,) = streams(
        """
        mad.lo.u32 %r5, %r2, 12, %r1; mad.lo.u32 %r6, %r4, 12, %r3;
        setp.lt.u32 %p1, %r5, 1021; @!%p1 ret;
        mad.lo.u32 %r7, %r6, 1024, %r5; mul.wide.u32 %rd3, %r7, 4; add.s64 %rd4, %rd1, %rd3;
        ld.global.f32 %f1, [%rd4];
        """,
        (86, 84), (16, 16), a=1 << 20,
    )  # fmt: skip
    assert stream.sharing.beside == pytest.approx(0.4, abs=0.02)


def test_what_one_load_asks_of_two_buffers_is_shared_out_by_how_often() -> None:
    """Half the warps go through ``a``, half read the same of ``b`` eight times, by one load: each
    asks for as many sectors, although those of ``b`` are an eighth of the distinct ones."""
    found = streams(
        """
        setp.lt.u32 %p1, %r1, 128; and.b32 %r5, %r1, 127; mov.u32 %r6, 0;
        selp.b64 %rd5, %rd1, %rd2, %p1; selp.b32 %r7, 2048, 0, %p1;
        mad.lo.u32 %r8, %r2, 16384, 0; mad.lo.u32 %r8, %r5, 16, %r8;
        cvt.u64.u32 %rd6, %r8; add.s64 %rd5, %rd5, %rd6; cvt.u64.u32 %rd7, %r7;
        L: ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd5];
        add.s64 %rd5, %rd5, %rd7; add.u32 %r6, %r6, 1;
        setp.lt.u32 %p2, %r6, 8; @%p2 bra L;
        """,
        (800,), (256,), a=1 << 23, b=1 << 23,
    )  # fmt: skip
    assert [stream.kept_load_sectors for stream in found] == pytest.approx([800 * 64 * 8] * 2)
