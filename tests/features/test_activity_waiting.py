"""What a warp waits for one after another, on code whose chains are counted by hand."""

from __future__ import annotations

import pytest

from tests.fixtures.tables import table
from wattcast.features.activity.waiting import Waiting
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module

V100 = load_gpu("tesla-v100")
KERNEL = table("bodies", "activity_waiting")["kernel"]


def waiting(body: str, threads: int = 32) -> tuple[Waiting, float, float]:
    """The chain of a warp, with the machine instructions and loads that it executes."""
    launch = Launch.of(1, threads, 0, {"0": PointerHint(elements=65536, values="index")})
    found = analyse(read_module(KERNEL.format(body=body)), None, launch, V100)
    known = found.extras.waiting
    assert known is not None
    return known, found.activity.instructions_per_warp, found.activity.load_requests_per_warp


def loads_of(body: str) -> float:
    shares, _, loads = waiting(body)
    return shares.loads * loads


def test_loads_that_do_not_depend_on_each_other_wait_together() -> None:
    together = "".join(f"ld.global.f32 %f{n}, [%rd4+{128 * n}];\n" for n in range(8))
    assert loads_of(together) == pytest.approx(1.0)
    chased = "ld.global.u32 %r4, [%rd4];\n" + "".join(
        "mul.wide.u32 %rd5, %r4, 4;\nadd.s64 %rd6, %rd2, %rd5;\nld.global.u32 %r4, [%rd6];\n"
        for _ in range(7)
    )
    assert loads_of(chased) == pytest.approx(8.0)


LOOP = "LOOP:\n{body}add.s32 %r2, %r2, 1;\nsetp.lt.u32 %p1, %r2, 64;\n@%p1 bra LOOP;\n"


def test_a_loop_gathers_the_loads_of_four_rounds_unless_it_chases_them() -> None:
    """ptxas unrolls a loop of one block by four; a pointer chase cannot be gathered."""
    sums = "ld.global.f32 %f1, [%rd4];\nadd.f32 %f2, %f2, %f1;\nadd.s64 %rd4, %rd4, 128;\n"
    assert loads_of(LOOP.format(body=sums)) == pytest.approx(64 / 4)
    gather = (
        "ld.global.u32 %r4, [%rd4];\nmul.wide.u32 %rd5, %r4, 4;\nadd.s64 %rd6, %rd2, %rd5;\n"
        "ld.global.f32 %f1, [%rd6];\nadd.s64 %rd4, %rd4, 128;\n"
    )
    assert loads_of(LOOP.format(body=gather)) == pytest.approx(2 * 64 / 4)
    chase = "mul.wide.u32 %rd5, %r3, 4;\nadd.s64 %rd6, %rd2, %rd5;\nld.global.u32 %r3, [%rd6];\n"
    assert loads_of(LOOP.format(body=chase)) == pytest.approx(64)
    barrier = sums + "bar.sync 0;\n"
    assert loads_of(LOOP.format(body=barrier)) == pytest.approx(64)


def test_a_load_stays_behind_a_store_that_may_be_to_the_same_place() -> None:
    """``sums[i] += a[i * n + j]``: ptxas cannot tell that the next load is not of the sum."""
    step = "ld.global.f32 %f1, [%rd4];\nadd.f32 %f2, %f2, %f1;\nst.global.f32 [%rd7], %f2;\n"
    moved = step + "add.s64 %rd4, %rd4, 128;\n"
    assert loads_of(LOOP.format(body=moved)) == pytest.approx(64)
    # So do the rounds that a compiler unrolled, each with its store.
    assert loads_of(4 * moved) == pytest.approx(4)
    # Not what nothing writes, a store before which nothing is waited for, nor one beside its load.
    assert loads_of(LOOP.format(body=moved.replace("ld.global", "ld.global.nc"))) == 64 / 4
    assert loads_of("st.global.f32 [%rd7], %f9;\n" + step) == pytest.approx(1)
    same = step.replace("%rd7", "%rd4")
    assert loads_of(same + same.replace("[%rd4]", "[%rd4+4]")) == pytest.approx(1)


@pytest.mark.parametrize("chains", [1, 2, 4, 8])
def test_independent_chains_of_arithmetic_wait_together(chains: int) -> None:
    body = "".join(f"fma.rn.f32 %f{n % chains}, %f{n % chains}, %f20, %f21;\n" for n in range(64))
    shares, instructions, _ = waiting(body)
    # The body's longest chain, beside address arithmetic that is shorter.
    assert shares.instructions * instructions == pytest.approx(64 / chains, abs=1.0)


@pytest.mark.parametrize(
    ("step", "instructions"),
    [
        ("add.f32 %f1, %f1, %f2;\n", 1.0),
        ("@%p2 add.f32 %f1, %f1, %f2;\n", 3.0),
        ("lg2.approx.ftz.f32 %f1, %f1;\n", 3.5),
        ("lg2.approx.f32 %f1, %f1;\n", 8.5),
    ],
)
def test_a_guard_is_waited_for(step: str, instructions: float) -> None:
    """Cycles of one after another in machine code for sm_75: 4, 12 from a comparison to a guard,
    14 and 37; the comparison itself is not in the chain here."""
    shares, executed, _ = waiting(16 * step)
    assert shares.instructions * executed == pytest.approx(16 * instructions, rel=0.05)


def test_a_barrier_orders_what_shared_memory_passes_on() -> None:
    exchange = (
        "shl.b32 %r5, %r1, 2;\nmov.u32 %r6, tile;\nadd.s32 %r7, %r6, %r5;\n"
        "ld.global.f32 %f1, [%rd4];\nst.shared.f32 [%r7], %f1;\nbar.sync 0;\n"
        "ld.shared.f32 %f2, [%r7+4];\nst.global.f32 [%rd4], %f2;\n"
    )
    shares, instructions, loads = waiting(exchange)
    assert shares.loads * loads == pytest.approx(1.0)
    assert shares.shared * instructions == pytest.approx(1.0)
    assert shares.barriers * instructions == pytest.approx(1.0)


def test_what_guards_skip_is_waited_for_like_what_they_let_pass() -> None:
    """ptxas predicates eight additions behind a branch: a warp of which no lane does them issues
    them all the same, one after another, and no launch waits longer than its instructions say."""

    def waited(first: int) -> tuple[float, float]:
        """Of eight warps, those from lane ``first`` on skip: instructions in the chain and all."""
        skipped = "add.f32 %f1, %f1, %f2;\n" * 8
        body = f"setp.ge.u32 %p2, %r1, {first};\n@%p2 bra SKIP;\n{skipped}SKIP:\n"
        shares, instructions, _ = waiting(body + "st.global.f32 [%rd4], %f1;\n", 256)
        return shares.instructions * instructions, instructions

    assert waited(32) == pytest.approx(waited(256))
    assert waited(32)[0] == pytest.approx(waited(128)[0])


STEPS = table("bodies", "activity_waiting")["steps"]


def test_where_warps_wait_for_each_other_the_slowest_counts() -> None:
    """Of a reduction's eight steps in a block of eight warps the first warp does all, the warps on
    average 4 + 2 + 1 and five times 1 of 64."""

    def waits(barrier: str, shift: int = 2) -> tuple[float, float]:
        shares, instructions, _ = waiting(STEPS.format(barrier=barrier, shift=shift), 256)
        assert (shares.uneven > 0.2) == bool(barrier)
        return shares.shared * instructions, shares.passes * instructions

    assert waits("bar.sync 0;") == (pytest.approx(8), 0)
    assert waits("") == (pytest.approx(12 / 8), 0)
    # Two words apart two lanes meet in a bank: a load and a store of two passes each, as far as
    # both halves of a warp are there (128 to 32 threads: 7 warps; 16, 8, 4, 2 and 1 do not meet).
    assert waits("bar.sync 0;", 3)[1] == pytest.approx(8 * 2 * 7 / 12, rel=0.01)
    assert waits("", 3)[1] == pytest.approx(2 * 7 / 8, rel=0.01)


def test_conversions_divisions_and_branches_are_waited_for_longer() -> None:
    """Beside 4 cycles an instruction: 10 for the special function unit, 9 for a branch that waits
    for its predicate, 10 for the lanes of a division to meet again."""
    plain = "add.f32 %f1, %f1, %f2;\n"

    def instructions(body: str) -> float:
        shares, per_warp, _ = waiting(body)
        return shares.instructions * per_warp

    def longer(body: str, machine: float) -> float:
        return instructions(body + plain) - instructions(plain) - machine

    assert longer("cvt.rn.f32.u32 %f1, %r1;\n", 1) == pytest.approx(2.5, abs=0.1)
    divided = "div.rn.f32 %f1, %f3, %f2;\n"
    assert instructions(divided) > instructions("div.approx.f32 %f1, %f3, %f2;\n") + 2
    turns = 64
    looped = LOOP.format(body=plain)
    assert instructions(looped) > turns * (1 + 2.25)


def test_nothing_passes_a_rounded_division() -> None:
    """Its rare cases are a function: ptxas ends a block there. Two that do not depend on each other
    come one after the other, and so does a load that could be asked for before."""
    one = "div.rn.f32 %f3, %f1, %f2;\n"
    chain = waiting(one)[0].instructions * waiting(one)[1]
    both = one + "div.rn.f32 %f6, %f4, %f5;\n"
    apart, instructions, _ = waiting(both)
    # Each is 10 instructions, of which one is slow, and the lanes meet again.
    assert apart.instructions * instructions - chain == pytest.approx(10 + 2.5 + 11)
    approximate, instructions, _ = waiting(both.replace("rn.f32", "approx.f32"))
    assert approximate.instructions * instructions < chain
    loads = "ld.global.f32 %f7, [%rd4];\n{division}ld.global.f32 %f8, [%rd4+4];\n"
    one = one.replace("%f1", "%f7")
    assert loads_of(loads.format(division=one)) == 2
    assert loads_of(loads.format(division=one.replace("rn", "approx"))) == 1
    turn = LOOP.format(body=loads.format(division=one))
    assert loads_of(turn) == pytest.approx(2 * 64)
    # A store before the second waits for its value, and the second for the store.
    stored = "mul.f32 %f9, %f3, %f8;\nst.global.f32 [%rd5], %f9;\n"
    two = loads.format(division=one) + stored + "{second}ld.global.nc.f32 %f10, [%rd4+8];\n"
    second = "div.rn.f32 %f6, %f4, %f7;\n"
    assert loads_of(two.format(second=second)) == 3
    assert loads_of(two.format(second=second.replace("rn", "approx"))) == 2
