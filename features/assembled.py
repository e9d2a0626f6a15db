"""What ptxas makes of a kernel, asked once for each capability and cap of registers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from wattcast.features.activity import Activity
from wattcast.features.activity.counts import WORD_BYTES
from wattcast.features.activity.memory import local_levels
from wattcast.features.attached import Attached
from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.cuda.isolation import PTXAS_READS, PtxasReport, measuring
from wattcast.features.errors import Diagnostic, GivenUpError, checkpoint
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE, Launch
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.statics import spill_weights

Floats = npt.NDArray[np.float64]

_Asked = tuple[str, int | None]

_known: Attached[Function, dict[_Asked, Future[PtxasReport | None]]] = Attached("assembled")
_weights: Attached[ControlFlowGraph, dict[int, Floats]] = Attached("spill_weights")


def assembled(
    module: Module, function: Function, gpu: GpuProfile, most_registers: int | None = None
) -> PtxasReport | None:
    """Registers, stack and spills of ``function`` on ``gpu``; ``None`` if ptxas cannot tell.

    ``most_registers`` per thread caps them, as ``-maxrregcount`` does. Who asks while ptxas runs
    for another waits for that, and where that was given up, asks itself. Raises GivenUpError.
    """
    with assembling(module, function, gpu, most_registers) as told:
        return told()


@contextmanager
def assembling(
    module: Module, function: Function, gpu: GpuProfile, most_registers: int | None = None
) -> Iterator[Callable[[], PtxasReport | None]]:
    """``assembled`` in two halves: ptxas, if nobody asked it before, runs beside what is inside,
    which gets what waits for it. It is ended where nobody waited."""
    known = _known.set(function, {})
    asked, mine = (gpu.compute_capability, most_registers), Future[PtxasReport | None]()
    if (told := known.setdefault(asked, mine)) is not mine:

        def waited() -> PtxasReport | None:
            while True:
                checkpoint()
                try:
                    return told.result(WAIT_SECONDS)
                except TimeoutError:
                    continue
                except GivenUpError:
                    return assembled(module, function, gpu, most_registers)

        yield waited
        return
    major, minor = map(int, gpu.compute_capability.split("."))
    try:
        with measuring(
            module.text, function.name, (major, minor), most_registers=most_registers
        ) as measured:

            def kept() -> PtxasReport | None:
                mine.set_result(report := measured())
                return report

            yield kept
    finally:
        if not mine.done():
            del known[asked]  # another may have more time
            mine.set_exception(GivenUpError("whoever asked ptxas gave it up"))


WAIT_SECONDS = 0.05
"""How often who waits for another's compiler looks whether its own time is up."""

MOST_AT_ONCE = 4
"""Compilers that one request runs at once; no more than there are cores. Each may take the memory
that ``isolation.LIMITS`` lets it take."""


@contextmanager
def ahead(kernels: Iterable[tuple[Module, Function, GpuProfile]]) -> Iterator[None]:
    """What is inside finds these kernels assembled, or waits: ptxas, a process of its own, takes
    longer than most analyses, and runs for several beside each other and beside them."""
    pool = ThreadPoolExecutor(min(MOST_AT_ONCE, os.cpu_count() or 1), "ptxas")
    try:
        for each in kernels:
            pool.submit(copy_context().run, partial(assembled, *each))
        yield
    finally:
        pool.shutdown(cancel_futures=True)


def ptxas_warnings(module: Module, line: int, report: PtxasReport) -> list[Diagnostic]:
    """What to say of the kernel on ``line`` whose registers do not hold its values, which its PTX
    does not show, and of one that was assembled as PTX of a version lower than its own."""
    said = []
    if report.spills:
        detail = (
            f"ptxas spills registers at {report.registers_per_thread} a thread: "
            f"{report.spill_store_bytes} bytes stored and {report.spill_load_bytes} bytes loaded "
            "per thread. Each is taken to be executed where values do not fit. Relax "
            "__launch_bounds__ or -maxrregcount, or keep fewer values alive"
        )
        said.append(Diagnostic("registers_spilled", detail, line))
    if report.lowered and module.version is not None:
        own, read = (".".join(map(str, version)) for version in (module.version, PTXAS_READS))
        detail = (
            f"ptxas counted {report.registers_per_thread} registers per thread with PTX {own} read "
            f"as PTX {read}; a newer ptxas may differ: give registers_per_thread if you know it"
        )
        said.append(Diagnostic("ptx_version_lowered", detail, line))
    return said


def spills_executed(cfg: ControlFlowGraph, report: PtxasReport, entered: Floats) -> float:
    """How often a thread executes a spill on average; ``entered`` by a thread, by instruction.

    ptxas does not tell where they are: where values do not fit into the registers that it gave.
    """
    known = _weights.set(cfg, {})
    if report.registers_per_thread not in known:
        known[report.registers_per_thread] = np.array(
            spill_weights(cfg, report.registers_per_thread)
        )
    weights = known[report.registers_per_thread]
    starts = [min(block.start, entered.size - 1) for block in cfg.blocks]
    return float(weights @ entered[starts] / weights.sum()) if weights.any() else 1.0


def with_spills(
    activity: Activity, report: PtxasReport, launch: Launch, gpu: GpuProfile, shared_bytes: int,
    times: float = 1.0,
) -> Activity:  # fmt: skip
    """The activity with what ``report`` spills, executed so many ``times`` by every thread.

    A spilled word of a warp's lanes lies in four adjacent sectors (CUDA C++ Programming Guide,
    local memory). ``shared_bytes`` are those of a block.
    """
    warps = float(launch.blocks * launch.warps_per_block)
    sectors_per_byte = WARP_SIZE / SECTOR_BYTES
    loads = times * warps * report.spill_load_bytes * sectors_per_byte
    stores = times * warps * report.spill_store_bytes * sectors_per_byte
    l2_sectors, read, written = local_levels(
        loads, stores, report.stack_bytes, gpu, launch, activity.resident_blocks_per_sm,
        shared_bytes,
    )  # fmt: skip
    requests = (loads + stores) / (WARP_SIZE * WORD_BYTES // SECTOR_BYTES)
    waits = loads / (WARP_SIZE * WORD_BYTES // SECTOR_BYTES) / warps
    return replace(
        activity,
        warp_instructions_sass=activity.warp_instructions_sass + requests,
        instructions_per_warp=activity.instructions_per_warp + requests / warps,
        load_requests_per_warp=activity.load_requests_per_warp + waits,
        lsu_requests=activity.lsu_requests + requests,
        local_sectors=activity.local_sectors + loads + stores,
        l2_sectors=activity.l2_sectors + l2_sectors,
        dram_read_sectors=activity.dram_read_sectors + read,
        dram_write_sectors=activity.dram_write_sectors + written,
    )
