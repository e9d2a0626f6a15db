"""Activity follows the trip counts of the answer: given, assumed, and their ends."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.fixtures.ptx_text import stored_ptx
from wattcast.features.activity import Activity
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.occupancy import occupancy
from wattcast.features.ptx import read_module
from wattcast.features.statics import RegisterEstimate
from wattcast.features.trips import assumed_trips_of

V100 = load_gpu("tesla-v100")

# Each thread adds up n floats of its own, inner times m each; stores once.
NESTED = stored_ptx("nested_sums")
MODULE = read_module(NESTED)
WARPS = 64 * 4


def nested(
    loops: dict[str, float] | None = None, mode: str = "auto", grid: int = 64, **arguments: int
) -> KernelAnalysis:
    positions = {"n": "1", "m": "2"}
    given = {positions[name]: value for name, value in arguments.items()}
    # One warp where nothing is given: the trips that stand in are then as few as threads.
    launch = Launch.of(grid, 128 if grid > 1 else 32, 0, given)
    return analyse(
        MODULE,
        None,
        launch,
        V100,
        loops=loops,
        registers_per_thread=16,
        analysis=mode,  # type: ignore[arg-type]
    )


def fma(found: Activity) -> float:
    """FMAs of a warp."""
    return found.fp32_instructions / (found.blocks * max(1.0, found.threads_per_block / 32))


@pytest.mark.parametrize("mode", ["auto", "executed", "symbolic"])
def test_given_trips_multiply_through_the_nest(mode: str) -> None:
    # What is given wins over the arguments, as everywhere.
    found = nested({"$OUTER": 10, "$INNER": 7}, mode, n=20, m=9).activity
    assert fma(found) == pytest.approx(70, rel=1e-4)
    assert found.global_load_requests == pytest.approx(10 * WARPS, rel=1e-4)
    if mode != "symbolic":  # which cannot tell that all lanes read the same address
        assert found.global_load_sectors == pytest.approx(10 * WARPS, rel=1e-4)
    # The store stands outside.
    assert found.global_store_requests == pytest.approx(WARPS)


def test_given_trips_are_what_arguments_say_too() -> None:
    by_arguments = nested(n=10, m=7).activity
    by_loops = nested({"$OUTER": 10, "$INNER": 7}, n=20, m=9).activity
    for field in fields(Activity):
        if field.name == "active_lane_fraction":
            continue  # of the longer run, in which the few idle lanes at its end weigh less
        assert getattr(by_loops, field.name) == pytest.approx(
            getattr(by_arguments, field.name), rel=0.05
        ), field.name


def test_what_arguments_settle_is_not_scaled() -> None:
    analysis = nested(n=5, m=3)
    assert {trip.how for trip in analysis.trip_counts} <= {"inferred", "constant", "executed"}
    assert fma(analysis.activity) == pytest.approx(15)
    assert analysis.activity_cases == ()


def test_assumed_trips_are_those_of_the_answer_and_the_cases_their_ends() -> None:
    analysis = nested(grid=1)
    assert [(trip.count, trip.how) for trip in analysis.trip_counts] == [(32, "assumed")] * 2
    assert fma(analysis.activity) == pytest.approx(32 * 32, rel=1e-4)
    low, high = analysis.activity_cases
    least, most = assumed_trips_of(analysis.launch.threads, nested=2)
    assert fma(low) == pytest.approx(least**2, rel=1e-4)
    assert fma(high) == pytest.approx(most**2, rel=1e-4)
    # Both loops together have the range that one alone has.
    alone = [32 * end for end in assumed_trips_of(analysis.launch.threads)]
    assert [least**2, most**2] == pytest.approx(alone)


def test_half_given_scales_what_is_given_and_assumes_the_rest() -> None:
    analysis = nested({"$INNER": 5}, grid=1)
    assert fma(analysis.activity) == pytest.approx(32 * 5, rel=1e-4)
    low, high = analysis.activity_cases
    ends = [5 * end for end in assumed_trips_of(analysis.launch.threads)]
    assert [fma(low), fma(high)] == pytest.approx(ends, rel=1e-4)


def test_registers_are_a_case_where_they_change_the_occupancy() -> None:
    launch = Launch.of(640, 1024, 0, {"1": 4, "2": 4})
    analysis = analyse(MODULE, None, launch, V100)
    assert analysis.registers.low < analysis.registers.high
    assert analysis.activity_cases == ()  # two blocks of 1024 threads either way
    # 65,536 registers: one block of 1024 threads at 33 or 64 each, two at 24.
    wide = RegisterEstimate(33, 24, 64, "liveness")
    resident = occupancy(V100, launch, 33, 0)
    uncertain = replace(analysis, registers=wide, occupancy=resident)
    (case,) = uncertain.activity_cases
    assert (case.registers_per_thread, case.resident_blocks_per_sm, case.waves) == (24, 2, 4)
    assert (uncertain.activity.resident_blocks_per_sm, uncertain.activity.waves) == (1, 8)


@pytest.mark.parametrize("mode", ["executed", "symbolic"])
def test_lines_and_mix_tell_of_the_same_launch(mode: str) -> None:
    analysis = nested({"$OUTER": 10, "$INNER": 7}, mode, n=20, m=9)
    total = analysis.activity.warp_instructions_ptx
    assert sum(analysis.mix.values()) == pytest.approx(total)
    assert sum(line.warp_instructions_ptx for line in analysis.lines) == pytest.approx(total)


def test_a_loop_never_entered_stays_as_it_is() -> None:
    # The guard is false for every thread: 1 times nothing, not a division by nothing.
    text = NESTED.replace("$OUTER:\n", " setp.ne.s32 %p1, %r3, 0;\n @!%p1 bra $END;\n$OUTER:\n")
    text = text.replace(" st.global", "$END:\n st.global")
    launch = Launch.of(64, 128)
    found = analyse(
        read_module(text),
        None,
        launch,
        V100,
        loops={"$OUTER": 10, "$INNER": 7},
        analysis="executed",
    ).activity
    assert fma(found) == 0


def test_division_and_barriers_take_longer_before_volta() -> None:
    """ptxas 12.9 makes 32 instructions of rem.s32 for sm_60 and 22 for sm_75, two and one of
    bar.sync; the time model takes each product before Volta for three."""
    text = NESTED.split("{")[0].replace("nested(", "divided(") + (
        "{\n .reg .b32 %r<9>;\n ld.param.u32 %r1, [n];\n ld.param.u32 %r2, [m];\n"
        " rem.s32 %r3, %r1, %r2;\n bar.sync 0;\n ret;\n}\n"
    )
    module, launch = read_module(text), Launch.of(1, 32, 0, {"n": 7, "m": 3})
    volta, pascal = (
        analyse(module, None, launch, load_gpu(gpu)).activity
        for gpu in ("tesla-v100", "tesla-p100")
    )
    issued = pascal.warp_instructions_sass + 2 * (
        pascal.fma_pipe_instructions - pascal.fp32_instructions
    )
    assert issued - volta.warp_instructions_sass == pytest.approx(32 - 22 + 1, abs=2)


def test_halves_are_converted_by_special_functions_before_volta() -> None:
    """Half arithmetic of a GTX 1080 Ti takes 32 cycles a warp, a conversion one: kernels that only
    keep halves were told to wait for it."""
    text = NESTED.split("{")[0].replace("nested(", "widened(") + (
        "{\n .reg .b16 %h;\n .reg .f32 %f<3>;\n cvt.f32.f16 %f1, %h;\n"
        " cvt.rn.f16.f32 %h, %f1;\n fma.rn.f16 %h, %h, %h, %h;\n ret;\n}\n"
    )
    module, launch = read_module(text), Launch.of(1, 32, 0, {"n": 7, "m": 3})
    for gpu, halves, special in (("tesla-v100", 3, 0), ("gtx-1080-ti", 1, 2)):
        found = analyse(module, None, launch, load_gpu(gpu)).activity
        assert (found.fp16_instructions, found.sfu_instructions) == (halves, special), gpu


def test_indices_near_their_place_keep_a_gather_together() -> None:
    text = stored_ptx("index_then_data")

    def sectors(hint: PointerHint) -> float:
        elements = PointerHint(elements=1 << 20)
        launch = Launch.of(4096, 256, 0, {"index": hint, "data": elements, "out": elements})
        found = analyse(read_module(text), None, launch, V100).activity
        return found.global_load_sectors / found.global_load_requests * 2 - 4

    count = 1 << 20
    # 32 lanes draw from 32 + 2 x 40 numbers, 14 sectors; anywhere, each has a sector of its own.
    assert 10 < sectors(PointerHint(count, "near", 40.0, float(count))) < 15
    assert sectors(PointerHint(count, "near", 0.0, float(count))) == pytest.approx(4.0)
    assert sectors(PointerHint(count, "index")) > 30
