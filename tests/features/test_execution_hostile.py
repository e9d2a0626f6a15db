"""Programs that would hang, crash or wander end in bounded time, and say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.features.execution_kernels import HEAD, kernel, of_class, run
from wattcast.features.errors import LaunchError
from wattcast.features.execution import assumed_integer, execute
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module


def codes(result) -> set[str]:
    return {d.code for d in result.diagnostics}


def test_addresses_outside_every_buffer_read_zero_and_write_nothing() -> None:
    result, out = run(
        """
        mov.u64 %rd5, 4096;
        ld.global.u32 %r6, [%rd5];
        add.u32 %r6, %r6, 5;
        st.global.u32 [%rd3], %r6;
        st.global.u32 [%rd1+4096], %r6;
        ld.shared.u32 %r7, [%r5+1000000];
        ret;
        """
    )
    assert out.tolist() == [5] * 32
    assert "address_out_of_range" in codes(result)
    assert sum(d.code == "address_out_of_range" for d in result.diagnostics) == 3


def test_unknown_instructions_and_functions_are_reported_not_hidden() -> None:
    before = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
    result, out = run(
        """
        frobnicate.u32 %r6, %r2;
        { .param .b64 a; .param .b64 b; .param .b32 r;
        call.uni (r), vprintf, (a, b); }
        st.global.u32 [%rd3], %r2;
        ret;
        """,
        before=before,
    )
    assert out.tolist() == list(range(32))
    assert {"unsupported_instruction", "external_call"} <= codes(result)


def test_warps_that_wait_for_a_later_warp_see_its_store() -> None:
    result, out = run(
        """
        setp.ge.u32 %p1, %r2, 32; @%p1 bra $signal;
        $spin: ld.volatile.global.u32 %r6, [%rd1]; setp.eq.u32 %p2, %r6, 0; @%p2 bra $spin;
        bra $end;
        $signal: st.volatile.global.u32 [%rd1], 77;
        $end: ret;
        """,
        block=64,
        effort=None,
    )
    assert out[0] == 77
    assert result.sampling.completed


def test_a_squared_integer_is_assumed_as_the_root_of_the_threads() -> None:
    """``i < n * n`` of heat: the square of the number of threads overflows to 0, so none worked."""
    text = kernel("mul.lo.u32 %r6, %r1, %r1; setp.ge.u32 %p1, %r5, %r6; @%p1 ret; "
                  "st.global.u32 [%rd3], %r5; ret;")  # fmt: skip
    squared = read_module(text).kernel("k")
    assert assumed_integer(squared, "n", Launch.of(65536, 256)) == 4096
    assert assumed_integer(squared, "n", Launch.of(100, 100)) == 100


def test_an_integer_is_assumed_as_all_elements_that_the_threads_have() -> None:
    """bm3d guards tiles of 64 elements a row of 8 threads: by the number of threads seven blocks of
    eight had no work."""
    guard = "setp.ge.u32 %p1, %r7, %r1; @%p1 ret; st.global.u32 [%rd3], %r5; ret;"
    for elements, index in {
        4: "shl.b32 %r6, %r5, 2; or.b32 %r7, %r6, 3;",
        8: "mov.u32 %r6, %ctaid.x; shl.b32 %r8, %r6, 11; add.s32 %r7, %r8, 2047;",
        1: "add.s32 %r7, %r5, 1;",
    }.items():
        tiled = read_module(kernel(index + guard)).kernel("k")
        assert assumed_integer(tiled, "n", Launch.of(4096, 256)) == elements * 4096 * 256


def test_what_is_taken_from_a_bound_is_assumed_as_nothing() -> None:
    """``i < n - 1 - t`` of gaussian: both as many as threads left none of them work."""
    begun = kernel("not.b32 %r6, %r8; add.s32 %r7, %r6, %r1; setp.ge.s32 %p1, %r5, %r7; "
                   "@%p1 ret; st.global.u32 [%rd3], %r5; ret;")  # fmt: skip
    text = begun.replace(".param .u32 n", ".param .u32 n, .param .u32 t")
    text = text.replace("not.b32", "ld.param.u32 %r8, [t]; not.b32")
    found = read_module(text).kernel("k")
    told = [assumed_integer(found, name, Launch.of(64, 256)) for name in "nt"]
    assert told == [64 * 256, 0]


def test_numbers_inside_a_structure_are_arguments() -> None:
    """A size by value (``uint2``) guarded every thread as zero, and nobody could give it."""
    text = kernel("ld.param.v2.u32 {%r6, %r7}, [size]; setp.ge.u32 %p1, %r5, %r7; @%p1 ret; "
                  "st.global.u32 [%rd3], %r6; ret;")  # fmt: skip
    module = read_module(text.replace(".param .u32 n", ".param .u32 n, .param .b8 size[8]"))
    found = module.kernel("k")
    launch = Launch.of(64, 256)
    assert [assumed_integer(found, name, launch) for name in ("size", "size+4")] == [1024, 16384]
    for given, stores in (({}, 512), ({"size+4": 0}, 0), ({"2+4": 0}, 0)):
        counts = execute(found, module, replace(launch, arguments=given), effort=None).functions
        assert of_class(module, counts["k"], "global_store")["requests"] == stores


def test_missing_arguments_are_assumed_and_said() -> None:
    module = read_module(kernel("setp.ge.u32 %p1, %r5, %r1; @%p1 ret; "
                                "ld.global.f32 %f1, [%rd3]; ret;"))  # fmt: skip
    result = execute(module.kernel("k"), module, Launch.of(1000, 128), effort=None)
    assumed = [d.detail for d in result.diagnostics if d.code == "argument_assumed"]
    assert len(assumed) == 2
    assert any("128000" in detail for detail in assumed)  # n: compared with the global index
    loads = of_class(module, result.functions["k"], "global_load")
    assert loads["active_lanes"] == 128_000


def test_arguments_that_fit_no_parameter_are_refused() -> None:
    module = read_module(kernel("ret;"))
    function = module.kernel("k")
    with pytest.raises(LaunchError, match="no parameter 'z'"):
        execute(function, module, Launch.of(1, 32, 0, {"z": 1}))
    with pytest.raises(LaunchError, match="does not fit"):
        execute(function, module, Launch.of(1, 32, 0, {"n": 2**40}))


@pytest.mark.parametrize("values", ["uniform", "zeros", "sorted", "index"])
def test_hints_say_what_is_read(values: str) -> None:
    text = f"""{HEAD}
    .visible .entry g(.param .u64 a)
    {{ .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2; ld.global.u32 %r2, [%rd3];
    setp.lt.u32 %p1, %r2, 10; @%p1 bra $low; setp.ge.u32 %p2, %r2, 20; @%p2 bra $high; ret;
    $low: add.u32 %r3, %r2, 1; ret; $high: add.u32 %r3, %r2, 2; ret; }}"""
    module = read_module(text)
    hint = PointerHint(elements=256, values=values, low=10, high=20)
    result = execute(module.kernel("g"), module, Launch.of(1, 256, 0, {"a": hint}), effort=None)
    lanes = result.functions["g"].active_lanes
    low, high = lanes[10], lanes[12]
    assert high == 0
    assert low == (256 if values == "zeros" else 0)


def test_a_loop_cut_off_is_scaled_to_the_rounds_it_had_to_go() -> None:
    body = """
        mov.u32 %r6, 0;
        $loop: ld.global.u32 %r8, [%rd3]; add.u32 %r6, %r6, 1;
        setp.lt.u32 %p1, %r6, %r1; @%p1 bra $loop;
        ret;"""
    result, _ = run(
        body, n=100_000, grid=2, exact=False, step_limit=1000, effort=None,
        extrapolate=False,
    )  # fmt: skip
    assert not result.sampling.completed
    assert any("scaled" in d.detail for d in result.diagnostics)
    loads = of_class(read_module(kernel(body)), result.functions["k"], "global_load")
    assert loads["warp_executions"] == pytest.approx(200_000, rel=0.01)
    assert result.loops[0].mean == pytest.approx(100_000, rel=0.01)
    assert result.loops[0].extrapolated
