"""analyse(): one entrance, everything guessed is marked."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from tests.fixtures.kernels.data import FixtureKernel, Shape, path_for
from tests.fixtures.kernels.manifest import KERNELS
from tests.fixtures.ptx_text import stored_ptx
from tests.needs import needs_ptxas
from tests.reference.fixtures import reference_arguments
from tests.reference.machine import run
from tests.wide import wide
from wattcast.features.analysis import (
    ASSUMED_TRIP_RANGE,
    DEFAULT_TRIP_COUNT,
    KernelAnalysis,
    analyse,
)
from wattcast.features.checked import MOST_POWER_WATTS, check_measured
from wattcast.features.cuda import PtxasReport, measure_resources
from wattcast.features.errors import AnalysisError, DataError, KernelError, LaunchError
from wattcast.features.findings import find
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module
from wattcast.features.runs import Runs

LOOPS = stored_ptx("nested_loops")


def nest(**options):
    gpu = load_gpu("tesla-k20")
    return analyse(read_module(LOOPS), None, Launch.of(64, 256), gpu, **options)


def test_loops_nobody_gave_are_assumed_and_said():
    analysis = nest()
    assert [(t.label, t.how, t.count) for t in analysis.trip_counts] == [
        ("OUTER", "assumed", DEFAULT_TRIP_COUNT),
        ("INNER", "assumed", DEFAULT_TRIP_COUNT),
    ]
    assert [d.line for d in analysis.diagnostics if d.code == "trip_count_assumed"] == [12, 14]


def test_loops_are_given_by_label_line_or_default():
    analysis = nest(loops={"INNER": 7, "default": 3})
    assert [(t.count, t.how) for t in analysis.trip_counts] == [(3, "given"), (7, "given")]
    # Line 14 lies in both loops: it means the inner one.
    analysis = nest(loops={"14": 5})
    assert [(t.count, t.how) for t in analysis.trip_counts] == [
        (DEFAULT_TRIP_COUNT, "assumed"),
        (5, "given"),
    ]


@pytest.mark.parametrize(
    "loops", [{"INNER": -1}, {"default": float("inf")}, {"NOWHERE": 3}, {"9999": 2}]
)
def test_a_trip_count_that_fits_nothing_is_refused(loops):
    with pytest.raises(LaunchError) as caught:
        nest(loops=loops)
    assert caught.value.field == "loops"


def test_another_case_of_what_is_assumed_changes_only_that():
    low, high = (
        nest().vector("alavani2023", assumed_trips=trips).values for trips in ASSUMED_TRIP_RANGE
    )
    assert low["comp_inst_sm"] < high["comp_inst_sm"]
    assert low["comp_inst_kernel"] == high["comp_inst_kernel"]
    given = nest(loops={"default": 4})
    assert given.vector("alavani2023", assumed_trips=900.0) == given.vector("alavani2023")


CALLS = stored_ptx("called_in_a_loop")


@pytest.mark.parametrize("mode", ["auto", "executed"])
def test_what_a_kernel_calls_is_executed(mode):
    analysis = analyse(
        read_module(CALLS), None, Launch.of(2, 64), load_gpu("tesla-v100"), analysis=mode
    )
    assert analysis.activity_how == "executed"
    counts = analysis.counts.functions(None)
    assert list(counts["twice"].warp_executions) == [40, 40]  # 2 blocks of 2 warps, 10 times


def test_a_wait_for_other_blocks_ends_and_the_work_goes_on():
    """A grid barrier in each of four rounds: its word is there, and polled once."""
    module, launch = read_module(stored_ptx("grid_sync")), Launch.of(80, 256)
    analysis = analyse(module, None, launch, load_gpu("tesla-v100"), analysis="executed")
    assert [t.count for t in analysis.trip_counts] == [4, 1]
    assert analysis.activity.global_store_requests == 4 * 80 * 8 + 4 * 80  # and arrivals
    codes = {d.code for d in (*analysis.diagnostics, *analysis.activity_diagnostics)}
    assert "wait_not_timed" in codes
    assert not codes & {"address_out_of_range", "trip_count_assumed", "execution_cut_short"}


def test_symbols_refuse_what_a_kernel_calls():
    analysis = analyse(
        read_module(CALLS), None, Launch.of(2, 64), load_gpu("tesla-v100"), analysis="symbolic"
    )
    with pytest.raises(AnalysisError, match=r"calls is not proven: analysis auto or executed"):
        _ = analysis.activity


def test_symbols_assume_of_arguments_what_an_execution_does():
    """And say so; the guard passes the threads of the launch."""
    launch, gpu = Launch.of(4096, 256), load_gpu("tesla-v100")
    symbolic, executed = (
        analyse(read_module(STREAM), None, launch, gpu, analysis=mode)
        for mode in ("symbolic", "executed")
    )
    ours, theirs = symbolic.activity, executed.activity
    assert ours.warp_instructions_ptx == pytest.approx(theirs.warp_instructions_ptx)
    assert ours.global_load_sectors == pytest.approx(theirs.global_load_sectors)
    (said,) = symbolic.activity_diagnostics
    assert said in executed.activity_diagnostics


def test_a_function_does_as_much_more_as_it_is_called_more_often():
    analysis = analyse(
        read_module(CALLS), None, Launch.of(2, 64), load_gpu("tesla-v100"), loops={"LOOP": 30}
    )
    counts = analysis.counts
    found = counts.functions(counts.factors())
    assert list(found["twice"].warp_executions) == [120, 120]


def test_an_unknown_opcode_is_warned_about_once_with_its_place():
    found = [d for d in nest().diagnostics if d.code == "unknown_opcode"]
    assert [(d.line, d.column) for d in found] == [(20, 1)]


def test_registers_that_are_given_are_certain():
    analysis = nest(registers_per_thread=40)
    assert (analysis.registers.low, analysis.registers.high) == (40, 40)
    assert analysis.registers.how == "given"
    assert not [d for d in analysis.diagnostics if d.code == "registers_estimated"]


def test_estimated_registers_are_marked_and_span_a_range():
    analysis = nest()
    assert analysis.registers.how != "given"
    assert analysis.registers.low <= analysis.registers.registers_per_thread
    assert analysis.registers.high > analysis.registers.low
    assert [d.code for d in analysis.diagnostics if d.code == "registers_estimated"]


def test_the_launch_is_checked_against_the_gpu():
    module, gpu = read_module(LOOPS), load_gpu("tesla-k20")
    with pytest.raises(LaunchError) as caught:
        analyse(module, None, Launch.of(1, 1025), gpu)
    assert caught.value.field == "block"
    with pytest.raises(LaunchError):
        analyse(module, None, Launch.of(1, 256, 50_000), gpu)
    with pytest.raises(KernelError, match="nest"):
        analyse(module, "other", Launch.of(1, 1), gpu)


STREAM = stored_ptx("guarded_stream")


def test_the_activity_of_a_stream_is_what_it_physically_does():
    """A million threads each read and write one float: 4 sectors a warp, all from memory."""
    launch = Launch.of(4096, 256, arguments={"1": 4096 * 256})
    analysis = analyse(read_module(STREAM), None, launch, load_gpu("tesla-v100"))
    values = analysis.vector("activity1").values
    warps = 4096 * 8
    assert values["warp_instructions_ptx"] == pytest.approx(15 * warps)
    assert values["global_load_requests"] == pytest.approx(warps)
    assert values["global_load_sectors"] == pytest.approx(4 * warps)
    assert values["global_store_sectors"] == pytest.approx(4 * warps)
    assert values["fp32_instructions"] == pytest.approx(warps)
    assert values["footprint_bytes"] == pytest.approx(4 * 4096 * 256)
    # 4 MiB stay in the 6 MiB of L2; sixteen times as much does not.
    assert values["dram_read_sectors"] == 0
    large = Launch.of(65536, 256, arguments={"1": 65536 * 256})
    analysis = analyse(read_module(STREAM), None, large, load_gpu("tesla-v100"))
    values = analysis.vector("activity1").values
    assert values["dram_read_sectors"] == pytest.approx(4 * 16 * warps, rel=1e-6)
    assert values["dram_write_sectors"] == pytest.approx(4 * 16 * warps, rel=1e-6)


def test_a_guard_that_few_blocks_of_many_pass_is_not_missed():
    """n = 1000 of a million threads: three blocks and a part of one read and write."""
    launch = Launch.of(4096, 256, arguments={"1": 1000})
    gpu = load_gpu("tesla-v100")
    executed = analyse(read_module(STREAM), None, launch, gpu, analysis="executed")
    symbolic = analyse(read_module(STREAM), None, launch, gpu, analysis="symbolic")
    ours, theirs = executed.activity, symbolic.activity
    assert ours.global_load_requests == theirs.global_load_requests == 32
    assert ours.global_load_sectors == theirs.global_load_sectors == 125
    assert ours.warp_instructions_ptx == theirs.warp_instructions_ptx
    assert ours.active_lane_fraction == pytest.approx(theirs.active_lane_fraction)
    assert executed.executed.memory.busy_blocks == 4
    assert ours.footprint_bytes == 4000


def test_activity_is_told_by_line():
    launch = Launch.of(64, 256, arguments={"1": 64 * 256})
    analysis = analyse(read_module(STREAM), None, launch, load_gpu("tesla-v100"))
    loads = {line.line: line for line in analysis.lines if line.global_sectors}
    assert sorted(loads) == [21, 23]
    assert loads[21].global_sectors == pytest.approx(64 * 8 * 4)


@needs_ptxas
def test_values_that_only_ptxas_spills_are_warned_of():

    def told(ptx: str, **how: Any) -> list[str]:
        launch, gpu = Launch.of(64, 128), load_gpu("tesla-v100")
        found = analyse(read_module(ptx), None, launch, gpu, **how).diagnostics
        return [each.detail for each in found if each.code == "registers_spilled"]

    (detail,) = told(wide(40, ".maxnreg 24"), ptxas=True)
    assert "at 24 a thread" in detail
    assert not told(wide(40), ptxas=True)
    assert not told(wide(40, ".maxnreg 24"))  # nobody was asked
    # The number that somebody measured is believed: what ptxas would do is not asked.
    assert not told(wide(40, ".maxnreg 24"), ptxas=True, registers_per_thread=48)


@needs_ptxas
def test_what_is_spilled_goes_to_local_memory():
    """Each byte that a thread spills is a sector of 32 bytes that its warp moves."""
    gpu, launch = load_gpu("tesla-v100"), Launch.of(64, 128)
    tight, wide_open = (
        analyse(read_module(text), None, launch, gpu, ptxas=True).activity
        for text in (wide(40, ".maxnreg 24"), wide(40))
    )
    module = read_module(wide(40, ".maxnreg 24"))
    report = measure_resources(module.text, module.kernel(None).name, (7, 0))
    assert report is not None
    assert wide_open.local_sectors == 0
    spilled = report.spill_load_bytes + report.spill_store_bytes
    assert spilled > 0
    assert tight.local_sectors == 64 * 4 * spilled
    assert tight.lsu_requests == wide_open.lsu_requests + tight.local_sectors / 4
    # Stores pass L1; the stacks of a block's threads lie in L1.
    stores = 64 * 4 * report.spill_store_bytes
    assert tight.l2_sectors == pytest.approx(wide_open.l2_sectors + stores)


@needs_ptxas
def test_what_is_spilled_in_a_loop_is_moved_in_each_round():
    """And what merely lives through a loop is spilled around it."""
    gpu, launch = load_gpu("tesla-v100"), Launch.of(64, 128)
    for apart, times in ((False, 10), (True, 1)):
        text = wide(40, ".maxnreg 24", rounds=10, apart=apart)
        module = read_module(text)
        report = measure_resources(text, module.kernel(None).name, (7, 0))
        assert report is not None
        assert report.spills
        activity = analyse(module, None, launch, gpu, ptxas=True).activity
        spilled = report.spill_load_bytes + report.spill_store_bytes
        assert activity.local_sectors == pytest.approx(64 * 4 * spilled * times, rel=0.05), apart


COUNTED = LOOPS.replace("ld.param.u32 %r1, [n];", "mov.u32 %r1, 24;")


def test_what_the_user_gives_wins_over_what_is_worked_out():
    gpu, launch = load_gpu("tesla-k20"), Launch.of(64, 256)
    analysis = analyse(read_module(COUNTED), None, launch, gpu, loops={"INNER": 3})
    assert [t.count for t in analysis.trip_counts] == [24, 3]
    assert analysis.trip_counts[1].how == "given"


GATHER = STREAM.replace(
    "mul.wide.u32 %rd3, %r5, 4;",
    "mul.wide.u32 %rd3, %r5, 4;\nadd.s64 %rd3, %rd2, %rd3;\n"
    "ld.global.u32 %r5, [%rd3];\nmul.wide.u32 %rd3, %r5, 4;",
)

WALK = STREAM.replace("mul.wide.u32 %rd3, %r5, 4;", "mul.wide.u32 %rd3, %r5, 32;").replace(
    "ld.global.f32 %f1, [%rd4];\nmul.f32 %f2, %f1, 0f40000000;\nst.global.f32 [%rd4], %f2;",
    "\n".join(
        f"ld.global.f32 %f1, [%rd4+{at}];\nst.global.f32 [%rd4+{at}], %f1;"
        for at in range(0, 32, 4)
    ),
)


def test_what_is_cut_short_at_once_is_worked_out_instead_if_it_is_proven():
    launch = Launch.of(65536, 256, arguments={"1": 65536 * 256})
    gpu = load_gpu("tesla-v100")

    def found(mode, effort, text=WALK):
        return analyse(read_module(text), None, launch, gpu, analysis=mode, effort=effort)

    hurried, symbolic = found("auto", 1), found("symbolic", 1)
    assert hurried.activity_how == "symbolic"
    assert hurried.activity == symbolic.activity
    unproven = found("auto", 1, GATHER)
    assert unproven.activity_how == "executed"
    assert unproven.cut_short
    assert "execution_cut_short" in {d.code for d in hurried.activity_diagnostics}
    assert hurried.cut_short
    asked = found("executed", 1)
    assert asked.executed.lower_bounds
    assert asked.cut_short
    whole = found("auto", 10**9)
    assert whole.activity_how == "executed"
    assert not whole.cut_short


def test_nothing_is_run_where_symbols_know_everything():
    """Counts do not depend on a budget then, and agree with those of an execution."""
    launch = Launch.of(65536, 256, arguments={"1": 65536 * 256 - 1000})
    gpu = load_gpu("tesla-v100")
    hurried = analyse(read_module(STREAM), None, launch, gpu, effort=1)
    assert hurried.activity_how == "symbolic"
    assert not hurried.cut_short
    assert (hurried.coverage.worked_out, hurried.coverage.error) == (1.0, 0.0)
    ran = analyse(read_module(STREAM), None, launch, gpu, analysis="executed").activity
    for each in fields(ran):
        expected = pytest.approx(getattr(ran, each.name), rel=1e-4)
        assert getattr(hurried.activity, each.name) == expected, each


def test_threads_that_walk_a_sector_each_are_run():
    """Eight words a thread: what L1 keeps between them decides, and closed forms do not tell."""
    assert WALK.count("st.global") == 8
    launch = Launch.of(512, 256, arguments={"1": 512 * 256})
    gpu = load_gpu("tesla-v100")
    found = analyse(read_module(WALK), None, launch, gpu)
    ran = analyse(read_module(WALK), None, launch, gpu, analysis="executed")
    assert found.activity_how == "executed"
    assert found.activity == ran.activity


def test_accesses_carry_counts_and_shape():
    launch = Launch.of(64, 256, arguments={"1": 64 * 256})
    analysis = analyse(read_module(STREAM), None, launch, load_gpu("tesla-v100"))
    load, store = analysis.accesses
    assert (load.opcode, load.is_load, load.stride_bytes) == ("ld.global.f32", True, 4)
    assert (store.opcode, store.is_store) == ("st.global.f32", True)
    assert load.sectors_per_request == pytest.approx(4)
    assert load.affine
    assert analysis.mix["global_load"] == pytest.approx(64 * 8)


WHILE = stored_ptx("loop_of_data")


def test_a_loop_that_depends_on_data_is_executed_and_counts_its_body():
    """The loop is tested first: its header runs once more than its body."""
    hint = PointerHint(elements=64, values="uniform", low=12, high=12)
    launch = Launch.of(4, 64, arguments={"data": hint, "n": 5})
    analysis = analyse(read_module(WHILE), None, launch, load_gpu("tesla-v100"))
    (trip,) = analysis.trip_counts
    assert (trip.how, trip.count) == ("given", 12)
    alone = analyse(read_module(WHILE), None, launch, load_gpu("tesla-v100"), analysis="symbolic")
    assert alone.trip_counts[0].how == "assumed"


def test_chains_tell_how_dependent_each_block_is():
    """Address arithmetic, load, product, store follow each other; parameters do not wait."""
    analysis = analyse(read_module(STREAM), None, Launch.of(64, 256), load_gpu("tesla-v100"))
    first, second, last = analysis.chains
    assert (first.instructions, first.longest_chain) == (8, 4)
    assert (second.instructions, second.longest_chain) == (6, 5)
    assert second.ilp == pytest.approx(6 / 5)
    assert (last.instructions, last.longest_chain) == (1, 1)


# --- The dynamic analyses degrade openly: no text takes an answer down


def test_a_failing_analysis_is_an_error_that_names_it_and_prediction_goes_on(monkeypatch):
    def fails(*_args: object, **_options: object) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("wattcast.features.symbolic.analyse_symbolically", fails)
    loop = (
        ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry spin(.param .u32 n)\n{\n"
        ".reg .pred %p<2>;\n.reg .b32 %r<3>;\nld.param.u32 %r1, [n];\nmov.u32 %r2, 0;\nL:\n"
        "add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p1, %r2, %r1;\n@%p1 bra L;\nret;\n}\n"
    )
    module, gpu = read_module(loop), load_gpu("tesla-v100")
    analysis = analyse(module, None, Launch.of(1, 32), gpu)
    assert [trip.how for trip in analysis.trip_counts] == ["assumed"]
    assert "analysis_failed" in {d.code for d in analysis.diagnostics}
    runs = Runs(module, module.kernel(), Launch.of(1, 32), gpu, {}, 1.0)
    with pytest.raises(AnalysisError, match="symbolic analysis") as caught:
        _ = runs.symbolic
    assert caught.value.context["analysis"] == "symbolic"


# --- Measured values: what is taken, what is told, what is refused

K20 = load_gpu("tesla-k20")

IDLING = load_gpu("titan-v")


def test_the_bounds_themselves_are_taken() -> None:
    assert not check_measured(K20, power_watts=1.5 * K20.tdp_watts, time_seconds=1e-7)
    assert not check_measured(None, power_watts=MOST_POWER_WATTS, time_seconds=86_400)
    assert not check_measured(K20)


@pytest.mark.parametrize("watts", [0.0, -1.0, 1e-300, 1.5 * K20.tdp_watts * 1.001, inf, nan])
def test_power_beyond_the_board(watts: float) -> None:
    with pytest.raises(DataError, match=r"^known\[2\]\.power_watts: .* W is") as caught:
        check_measured(K20, power_watts=watts, where="known[2]")
    assert caught.value.context["field"] == "known[2].power_watts"
    if watts > 1 and watts != inf:
        assert f"{1.5 * K20.tdp_watts:g} W, 1.5 times the limit of tesla-k20" in str(caught.value)


def test_power_of_an_unknown_board() -> None:
    with pytest.raises(DataError, match="milliwatts"):
        check_measured(None, power_watts=95_000)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-30, 0.9e-7, 86_401.0, inf, nan])
def test_time_outside_100_ns_to_a_day(seconds: float) -> None:
    with pytest.raises(DataError, match=r"^time_seconds: .* 1e-07 s \(100 ns\) and 86400 s"):
        check_measured(None, time_seconds=seconds)


def test_less_than_a_tenth_of_idle_is_told() -> None:
    idle = IDLING.idle_watts
    assert idle is not None
    (note,) = check_measured(IDLING, power_watts=0.09 * idle)
    assert (note.code, "a tenth of the idle" in note.detail) == ("power_below_idle", True)
    assert not check_measured(IDLING, power_watts=0.11 * idle)


# --- Changed PTX of the fixture kernels: it is PTX, it is analysed, and computes what it did

TARGET = "sm_80"


def analysed(text: str, entry: str, shape: Shape, grid: tuple[int, ...]) -> KernelAnalysis:
    """The launch on an A100 with the numbers among its arguments given."""
    given = {
        str(position): value.item()
        for position, value in enumerate(shape.arguments.values())
        if isinstance(value, np.number)
    }
    launch = Launch.of(grid, shape.block, shape.dynamic_shared_bytes, given)
    return analyse(read_module(text), entry, launch, load_gpu("a100-sxm4-80gb"))


def results(kernel: FixtureKernel, text: str, shape: Shape, grid: tuple[int, ...]) -> list[Any]:
    """The outputs on the reference interpreter."""
    given = reference_arguments(kernel.name, shape)
    found = run(text, kernel.entry, grid, shape.block, given, shape.dynamic_shared_bytes)
    return [found.memory[name] for name in kernel.outputs]


CHANGED = {
    "atomics": {"warp_aggregation"},
    "geometric": {"constant_division"},
    "last_block": {"shared_reduction"},
    "local_array": {"constant_division"},
    "matmul_naive": {"reread_tiles"},
    "reduce_shared": {"shared_reduction"},
    "votes": {"constant_division"},
    "wide_index": {"constant_division"},
}
"""What is rewritten of the first two shapes of a fixture; of the others nothing (a scan is no
reduction)."""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_is_rewritten_is_analysed_and_computes_the_same(kernel: FixtureKernel) -> None:
    text, told = path_for(kernel.source, TARGET).read_text(), set()
    for shape in kernel.shapes[:2]:
        for each in find(analysed(text, kernel.entry, shape, shape.grid)):
            if each.ptx is None:
                continue
            told.add(each.code)
            grid = shape.grid if each.grid is None else (each.grid,)
            changed = analysed(each.ptx, kernel.entry, shape, grid)
            assert changed.activity.warp_instructions_ptx > 0
            if each.code == "reread_tiles":  # the last tile here reaches beyond the matrix
                continue
            before = results(kernel, text, shape, shape.grid)
            for one, other in zip(before, results(kernel, each.ptx, shape, grid), strict=True):
                assert other == pytest.approx(one, rel=1e-5)
    assert told == CHANGED.get(kernel.name, set())


def test_spills_are_a_finding_that_takes_them_away() -> None:
    kernel = next(each for each in KERNELS if each.name == "saxpy")
    text = path_for(kernel.source, TARGET).read_text()
    shape = kernel.shapes[0]
    plain = analysed(text, kernel.entry, shape, shape.grid)
    spilled = replace(plain, spilled=PtxasReport(24, 64, 32, 48, 0, 80))
    assert not [each for each in find(plain) if each.code == "register_spills"]
    (found,) = [each for each in find(spilled) if each.code == "register_spills"]
    assert "32 bytes stored, 48 bytes loaded" in found.detail
    assert spilled.activity.local_sectors > 0
    assert found.mended == plain.activity
