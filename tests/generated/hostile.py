"""Programs made to hang, crash or exhaust an analysis. Text only; ``test_hostile.py`` runs them."""

from __future__ import annotations

from dataclasses import dataclass

from wattcast.features.launch import Launch, PointerHint

HEAD = ".version 8.3\n.target sm_70\n.address_size 64\n"
REGISTERS = (
    ".reg .b32 %r<16>; .reg .b64 %d<16>; .reg .f32 %f<8>; .reg .pred %p<8>;\n"
    "ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4;\n"
    "add.u64 %d1, %d0, %d1; mov.u32 %r1, 0;\n"
)


@dataclass(frozen=True)
class Hostile:
    """``says``: diagnostics of which the executed analysis must give one, saying that its counts
    are no longer those of the program. Empty where they must be right: ``executions`` is then
    the number of warp instructions of the launch, where it is known."""

    ptx: str
    launch: Launch
    says: tuple[str, ...] = ()
    executions: int | None = None


def kernel(body: str, before: str = "", declared: str = "") -> str:
    return (
        f"{HEAD}{before}\n.visible .entry k(.param .u64 out)\n{{\n{declared}{REGISTERS}{body}\n}}\n"
    )


def launch(grid: int = 4, block: int = 64) -> Launch:
    return Launch.of(grid, block, 0, {"0": PointerHint(1 << 16, low=0.0, high=100.0)})


PROLOGUE = 5
"""Instructions of ``REGISTERS``."""
CUT = ("execution_cut_short",)
STORE = "st.global.u32 [%d1], %r1;"


def _irreducible() -> str:
    return kernel(
        f"""
        setp.lt.u32 %p0, %r0, 13; @%p0 bra $middle;
        $top: add.u32 %r1, %r1, 1;
        $middle: add.u32 %r1, %r1, 2;
        setp.lt.u32 %p1, %r1, 30; @%p1 bra $top;
        {STORE} ret;"""
    )


def _labels(count: int) -> str:
    lines = [f"$l{i}: add.u32 %r1, %r1, {i};" for i in range(count)]
    return kernel("\n".join([*lines, STORE, "ret;"]))


def _predicated_branches(count: int) -> str:
    lines = []
    for i in range(count):
        lines += [
            f"and.b32 %r2, %r0, {1 << i % 6}; setp.ne.u32 %p0, %r2, 0; @%p0 bra $b{i};",
            "add.u32 %r1, %r1, 1;",
            f"$b{i}:",
        ]
    return kernel("\n".join([*lines, STORE, "ret;"]))


def _scattered_branches(count: int) -> str:
    """Every block may go to one far away: irreducible everywhere."""
    lines = []
    for i in range(count):
        lines += [
            f"$b{i}: add.u32 %r1, %r1, 1; setp.gt.u32 %p0, %r1, 3000; @%p0 bra $end;",
            f"and.b32 %r2, %r1, {1 << i % 7}; setp.ne.u32 %p1, %r2, 0;",
            f"@%p1 bra $b{(i * 7919 + 13) % count};",
        ]
    return kernel("\n".join([*lines, "bra $b0;", f"$end: {STORE}", "ret;"]))


def _nested(depth: int, trips: int) -> str:
    counters = f".reg .b32 %n<{depth}>;\n"
    opening = [f"mov.u32 %n{i}, 0;\n$loop{i}:" for i in range(depth)]
    closing = [
        f"add.u32 %n{i}, %n{i}, 1; setp.lt.u32 %p0, %n{i}, {trips}; @%p0 bra $loop{i};"
        for i in reversed(range(depth))
    ]
    body = "\n".join([*opening, "add.u32 %r1, %r1, 1;", *closing, STORE, "ret;"])
    return kernel(body, declared=counters)


def _many_functions(count: int) -> str:
    """A chain of calls, cut into reachable depth, and thousands that nobody calls."""
    functions = [f".func f{i}(.param .b32 a)\n{{ ret; }}" for i in range(count)]
    calls = "\n".join(
        f"{{ .param .b32 a; st.param.b32 [a], %r0; call f{i * 97 % count}, (a); }}"
        for i in range(20)
    )
    return kernel(f"{calls}\n{STORE}\nret;", "\n".join(functions))


def _wild(address: str) -> str:
    return kernel(
        f"""
        mov.u64 %d2, {address};
        ld.global.u32 %r2, [%d2]; ld.u32 %r3, [%d2]; ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d2];
        st.global.u32 [%d2], %r2; st.u64 [%d2], %d2; atom.global.add.u32 %r8, [%d2], 1;
        red.add.u32 [%d2], 1; ld.shared.u32 %r9, [%d2]; st.shared.u32 [%d2], %r9;
        ld.local.u32 %r10, [%d2]; st.local.u32 [%d2], %r10;
        {STORE} ret;"""
    )


SHARED_LIMIT = 48 * 1024

PROGRAMS: dict[str, Hostile] = {
    "infinite_loop": Hostile(
        kernel("$l: add.u32 %r1, %r1, 1; ld.global.u32 %r2, [%d1]; bra $l;"), launch(), CUT
    ),
    "self_loop": Hostile(kernel("$l: bra $l;"), launch(), CUT),
    "predicated_self_loop": Hostile(
        kernel(f"setp.lt.u32 %p0, %r0, 5;\n$l: @%p0 bra $l;\n{STORE} ret;"), launch(), CUT
    ),
    "two_loops_that_never_meet": Hostile(
        kernel(
            "setp.lt.u32 %p0, %r0, 16; @%p0 bra $b;\n"
            "$a: add.u32 %r1, %r1, 1; bra $a;\n$b: add.u32 %r1, %r1, 3; bra $b;"
        ),
        launch(), CUT,
    ),
    "irreducible": Hostile(_irreducible(), launch()),
    "scattered_branches": Hostile(_scattered_branches(400), launch()),
    "5000_labels": Hostile(_labels(5000), launch(), executions=8 * (PROLOGUE + 5002)),
    "5000_labels_of_one_place": Hostile(
        kernel("\n".join(f"$l{i}:" for i in range(5000)) + f"\n{STORE} ret;"), launch(),
        executions=8 * (PROLOGUE + 2),
    ),
    "1000_predicated_branches": Hostile(_predicated_branches(1000), launch()),
    "endless_recursion": Hostile(
        kernel(f"call f; {STORE} ret;", ".func f()\n{ call f; ret; }"), launch(),
        ("recursion_cut",),
    ),
    "mutual_recursion": Hostile(
        kernel(
            f"call f; {STORE} ret;",
            ".func g();\n.func f()\n{ call g; call g; ret; }\n.func g()\n{ call f; call f; ret; }",
        ),
        launch(), ("recursion_cut", *CUT),
    ),
    "null_address": Hostile(_wild("0"), launch(), ("address_out_of_range",)),
    "huge_address": Hostile(_wild("0xfffffffffffffff0"), launch(), ("address_out_of_range",)),
    "address_at_the_sign": Hostile(
        _wild("0x7ffffffffffffff0"), launch(), ("address_out_of_range",)
    ),
    "misaligned_address": Hostile(
        kernel(
            f"add.u64 %d2, %d1, 1; ld.global.u32 %r2, [%d2]; st.global.u64 [%d2], %d2;\n"
            f"{STORE} ret;"
        ),
        launch(), ("misaligned_address", "address_out_of_range"),
    ),
    "unreachable_code": Hostile(
        kernel(f"{STORE} ret;\n$u: add.u32 %r1, %r1, 1; bra $u;\n$v: bra $w;\n$w: bra $v;"),
        launch(), executions=8 * (PROLOGUE + 2),
    ),
    "2_to_the_40_iterations": Hostile(
        kernel(
            "mov.u64 %d2, 0;\n$l: ld.global.u32 %r2, [%d1]; add.u64 %d2, %d2, 1;\n"
            f"setp.lt.u64 %p0, %d2, {1 << 40}; @%p0 bra $l;\n{STORE} ret;"
        ),
        launch(), executions=8 * (PROLOGUE + 3 + 4 * (1 << 40)),
    ),
    "2_to_the_40_uneven_iterations": Hostile(
        kernel(
            "mov.u64 %d2, 0; mov.u32 %r3, %r0;\n"
            "$l: mad.lo.u32 %r3, %r3, 1664525, 1013904223; setp.lt.s32 %p1, %r3, 0;\n"
            "@%p1 bra $s; add.u32 %r1, %r1, 1;\n$s: add.u64 %d2, %d2, 1;\n"
            f"setp.lt.u64 %p0, %d2, {1 << 40}; @%p0 bra $l;\n{STORE} ret;"
        ),
        launch(), CUT,
    ),
    "counter_that_wraps": Hostile(
        kernel(f"$l: sub.u32 %r1, %r1, 3; setp.ne.u32 %p0, %r1, 1; @%p0 bra $l;\n{STORE} ret;"),
        launch(), executions=8 * (PROLOGUE + (1 << 32) - 1 + 2),
    ),
    "deadlocked_barrier": Hostile(
        kernel(
            f"setp.lt.u32 %p0, %r0, 7; @%p0 bra $a; bar.sync 0; bra $e;\n"
            f"$a: bar.sync 1;\n$e: {STORE} ret;"
        ),
        launch(), ("barrier_divergence",),
    ),
    "barrier_of_too_many": Hostile(
        kernel(f"bar.sync 0, 1024; {STORE} ret;"), launch(), ("barrier_divergence",)
    ),
    "lanes_that_never_come": Hostile(
        kernel(
            "setp.lt.u32 %p0, %r0, 7; @%p0 bra $a;\n"
            "shfl.sync.idx.b32 %r2, %r0, 0, 31, 0xffffffff; bra $e;\n"
            f"$a: vote.sync.ballot.b32 %r2, %p0, 0xffffffff;\n$e: {STORE} ret;"
        ),
        launch(), ("collective_divergence",),
    ),
    "spin_on_a_flag_nobody_sets": Hostile(
        kernel(
            "$l: ld.volatile.global.u32 %r2, [%d0]; setp.ne.u32 %p0, %r2, 12345678;\n"
            f"@%p0 bra $l;\n{STORE} ret;"
        ),
        launch(), ("wait_not_timed",),
    ),
    "200_nested_loops": Hostile(_nested(200, 2), launch(), CUT),
    "200_nested_loops_once": Hostile(
        _nested(200, 1), launch(), executions=8 * (PROLOGUE + 200 * 4 + 3)
    ),
    "nothing_but_ret": Hostile(
        f"{HEAD}.visible .entry k(.param .u64 out)\n{{ ret; }}\n", launch(), executions=8
    ),
    "no_instruction": Hostile(f"{HEAD}.visible .entry k(.param .u64 out)\n{{ }}\n", launch()),
    "3000_functions": Hostile(_many_functions(3000), launch()),
    "shared_at_the_limit": Hostile(
        kernel(
            "shl.b32 %r2, %r0, 2; mov.u32 %r3, array; add.u32 %r2, %r2, %r3;\n"
            f"st.shared.u32 [%r2+{SHARED_LIMIT - 4096}], %r0; bar.sync 0;\n"
            f"ld.shared.u32 %r1, [%r2+{SHARED_LIMIT - 4096}]; {STORE} ret;",
            declared=f".shared .align 4 .b8 array[{SHARED_LIMIT}];\n",
        ),
        launch(8, 1024), executions=256 * (PROLOGUE + 8),
    ),
    "a_thousand_threads_with_long_indices": Hostile(
        kernel(
            "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mul.wide.u32 %d2, %r2, %r3;\n"
            "cvt.u64.u32 %d3, %r0; add.u64 %d2, %d2, %d3; mul.lo.u64 %d2, %d2, 4096;\n"
            "add.u64 %d2, %d0, %d2; ld.global.u64 %d4, [%d2]; st.global.u64 [%d2+8], %d4; ret;"
        ),
        Launch.of((1 << 31) - 1, 1024, 0, {"0": PointerHint(1 << 40)}),
        ("address_out_of_range",), ((1 << 31) - 1) * 32 * (PROLOGUE + 10),
    ),
}  # fmt: skip
