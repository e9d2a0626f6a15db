"""Instruction classes, self loops and trip counts of the published counting rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.tables import rows, table
from wattcast.features.errors import LaunchError
from wattcast.features.ptx.ir import Body
from wattcast.features.ptx.reader import read_module
from wattcast.features.schemas.counting import PtxCounts, count, find_n_loop, opcode_kind

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ptx"

HEADER = table("bodies", "schemas_counting")["header"]


def body(text: str) -> Body:
    return read_module(HEADER + text + "\n}\n").kernel().body


def counts(text: str) -> PtxCounts:
    return count(body(text))


@pytest.mark.parametrize(
    ("opcode", "kind"),
    rows("counting", "opcode_and_kind"),
)
def test_an_opcode_falls_into_the_first_class_that_fits(opcode: str, kind: str) -> None:
    assert opcode_kind(opcode) == kind


def test_only_a_bare_return_is_a_return() -> None:
    found = counts("@%p1 ret;\nret;\nret.uni;\n")
    assert (found.returns, found.static.unknown) == (1, 2)


def test_names_and_comments_do_not_count_only_opcodes_do() -> None:
    text = HEADER.replace("_Z1kPf", "_Z6divaddPf") + (
        "ld.param.u64 %rd1, [_Z6divaddPf_param_0]; // mul add sync\n"
        "{ // callseq 0, 0\n.reg .b32 temp_param_reg;\n} // callseq 0\n"
        ".loc 1 3 5\nret;\n}\n"
    )
    found = count(read_module(text).kernel().body)
    assert found.static.compute_total == 0
    assert found.static.unknown == 0
    assert (found.parameter, found.returns, found.sync) == (1, 1, 0)


SELF_LOOP = table("bodies", "schemas_counting")["self_loop"]


def test_a_self_loop_runs_n_loop_further_times_at_nine_cycles_each() -> None:
    found = counts(SELF_LOOP)
    assert [loop.label for loop in found.self_loops] == ["LOOP"]
    executed = found.dynamic(10)
    assert executed.compute == 4 + 3 * 10
    assert (executed.global_load, executed.global_store, executed.unknown) == (11, 1, 11)
    latency = {"arithmetic": 15, "mov": 51, "setp": 30, "cvt": 192, "div": 1278, "sqrt": 550}
    first = 51 + 1278 + 15 + 30
    assert found.compute_cycles(latency, 0) == first
    assert found.compute_cycles(latency, 10) == first + 3 * 10 * 9


def test_a_loop_over_several_blocks_is_no_loop() -> None:
    found = counts(
        "LOOP:\nsetp.lt.s32 %p1, %r1, 3;\n@%p1 bra SKIP;\nadd.s32 %r2, %r2, 1;\n"
        "SKIP:\nadd.s32 %r1, %r1, 1;\n@%p2 bra LOOP;\nret;"
    )
    assert found.self_loops == ()
    assert found.dynamic(1000) == found.dynamic(0)
    assert find_n_loop(found) == (0.0, ())


def test_the_trip_count_of_a_self_loop_is_found_by_label_line_and_default() -> None:
    found = counts(SELF_LOOP)
    line = found.self_loops[0].line
    assert find_n_loop(found, {"LOOP": 7, "default": 3}) == (7.0, ())
    assert find_n_loop(found, {str(line + 1): 5, "default": 3}) == (5.0, ())
    assert find_n_loop(found, {"default": 3}) == (3.0, ())


def test_a_trip_count_nobody_gave_is_assumed_and_says_so() -> None:
    found = counts(SELF_LOOP)
    value, (warning,) = find_n_loop(found)
    assert value == 32
    assert (warning.code, warning.line) == ("trip_count_assumed", found.self_loops[0].line)
    value, (warning,) = find_n_loop(found, {"OTHER": 9})
    assert value == 9
    assert warning.code == "trip_count_assumed"


def test_different_trip_counts_merge_into_the_largest_with_a_warning() -> None:
    two = SELF_LOOP.replace("    ret;", "") + SELF_LOOP.replace("LOOP", "NEXT")
    found = counts(two)
    assert len(found.self_loops) == 2
    value, (warning,) = find_n_loop(found, {"LOOP": 4, "NEXT": 9})
    assert (value, warning.code) == (9.0, "trip_counts_merged")


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_loop_count_must_be_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(LaunchError, match="LOOP"):
        find_n_loop(counts(SELF_LOOP), {"LOOP": bad})


@pytest.mark.parametrize(
    ("kernel", "compute", "global_", "unknown"),
    [("saxpy", 11, 3, 0), ("vecAdd3", 16, 4, 0), ("nearest", 19, 3, 0), ("bfsFront", 15, 5, 1)],
)
def test_compiled_kernels_count_as_their_published_rows_do(
    kernel: str, compute: int, global_: int, unknown: int
) -> None:
    # Published: saxpy, vecAdd3, nn and bfs Kernel2; CUDA 13 compiles them to the same counts.
    module = read_module((FIXTURES / "schemas" / "published.ptx").read_text())
    static = count(module.kernel(kernel).body).static
    assert static.compute_total == compute
    assert static.global_load + static.global_store == global_
    assert static.unknown == unknown
