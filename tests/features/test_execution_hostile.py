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
        mov.u64 %rd5, 4096; ld.global.u32 %r6, [%rd5];
        add.u32 %r6, %r6, 5; st.global.u32 [%rd3], %r6; st.global.u32 [%rd1+4096], %r6;
        ld.shared.u32 %r7, [%r5+1000000]; ret;
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
        st.global.u32 [%rd3], %r2; ret;
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


GUARDS = {  # what is compared with the index of 4,096 blocks of 256: what is assumed
    # i < n * n of heat: the square of the number of threads overflows to 0, so none worked
    "mul.lo.u32 %r6, %r1, %r1; setp.ge.u32 %p1, %r5, %r6;": {"n": 1024},
    # bm3d guards tiles of 64 elements a row of 8 threads: seven blocks of eight had no work
    "shl.b32 %r6, %r5, 2; or.b32 %r7, %r6, 3; setp.ge.u32 %p1, %r7, %r1;": {"n": 4 << 20},
    "shl.b32 %r8, %r3, 11; add.s32 %r7, %r8, 2047; setp.ge.u32 %p1, %r7, %r1;": {"n": 8 << 20},
    "add.s32 %r7, %r5, 1; setp.ge.u32 %p1, %r7, %r1;": {"n": 1 << 20},
    # i < n - 1 - t of gaussian: both as many as threads left none of them work
    "not.b32 %r6, %r9; add.s32 %r7, %r6, %r1; setp.ge.s32 %p1, %r5, %r7;": {"n": 1 << 20, "t": 0},
    # i < size.y, by value: guarded every thread as zero, and nobody could give it
    "setp.ge.u32 %p1, %r5, %r11;": {"size": 1024, "size+4": 1 << 20},
}


@pytest.mark.parametrize("guard", GUARDS)
def test_integers_are_assumed_so_that_threads_work(guard: str) -> None:
    loads = "ld.param.u32 %r9, [t]; ld.param.v2.u32 {%r10, %r11}, [size]; "
    text = kernel(f"{loads}{guard} @%p1 ret; st.global.u32 [%rd3], %r5; ret;")
    module = read_module(text.replace("u32 n", "u32 n, .param .u32 t, .param .b8 size[8]"))
    found, launch = module.kernel("k"), Launch.of(4096, 256)
    assert {name: assumed_integer(found, name, launch) for name in GUARDS[guard]} == GUARDS[guard]
    none = replace(launch, arguments={"3+4": 0})
    counts = execute(found, module, none, effort=None).functions["k"]
    assert bool(of_class(module, counts, "global_store")["requests"]) == ("%r11" not in guard)


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
