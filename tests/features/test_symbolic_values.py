"""The expression graph, affine forms, dependent chains, and hostile text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.features.execution_kernels import BASE, kernel
from tests.features.symbolic_programs import affine_programs, count_errors, known, loop_errors
from tests.features.whole_runs import run_whole
from tests.fixtures.tables import table
from tests.generated.compare import run_engine
from tests.generated.programs import program
from tests.reference.machine import run as run_reference
from wattcast.features.errors import LaunchError
from wattcast.features.execution import ExecutionResult
from wattcast.features.integers import COMPARISONS, Whole, fold, fold_lanes, operations
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import AccessInfo, SymbolicResult, TripInfo, analyse_symbolically
from wattcast.features.symbolic import sample as sampling
from wattcast.features.symbolic.arith import Arithmetic, Val, limits
from wattcast.features.values import Graph, affine, describe


def test_equal_expressions_are_one_node() -> None:
    graph = Graph(100)
    x, y = graph.leaf("special", 32, "tid.x"), graph.leaf("special", 32, "tid.y")
    assert graph.make("add", 32, (x, y)) is graph.make("add", 32, (x, y))
    assert graph.make("add", 32, (x, graph.constant(0, 32))) is x
    twice = graph.make("add", 32, (graph.make("add", 32, (x, graph.constant(3, 32))),
                                   graph.constant(4, 32)))  # fmt: skip
    assert twice is graph.make("add", 32, (x, graph.constant(7, 32)))


def test_a_graph_that_grows_too_large_gives_unknown_values() -> None:
    graph = Graph(3)
    node = graph.leaf("special", 32, "tid.x")
    for _ in range(5):
        node = graph.make("mul", 32, (node, node))
    assert node.unknown
    assert "too large" in node.value[0]


def test_affine_form_and_text() -> None:
    graph = Graph(100)
    x, n = graph.leaf("special", 32, "tid.x"), graph.leaf("param", 32, ("n", 0))
    scaled = graph.make("shl", 32, (x, graph.constant(2, 32)))
    node = graph.make("sub", 32, (graph.make("add", 32, (scaled, n)), x))
    form = affine(node)
    assert form is not None
    assert (dict(form.terms), form.constant) == ({x: 3, n: 1}, 0)
    assert str(form) == "3*tid.x + n"
    known = affine(node, lambda leaf: 7 if leaf is n else None)
    assert known is not None
    assert str(known) == "3*tid.x + 7"
    assert describe(node) == "(((tid.x << 2) + n) - tid.x)"


def test_the_deepest_expressions_do_not_recurse() -> None:
    graph = Graph(100_000)
    node = graph.leaf("special", 32, "tid.x")
    for number in range(20_000):
        node = graph.make("xor" if number % 2 else "mul", 32, (node, graph.constant(3, 32)))
    assert affine(node) is None or affine(node) is not None  # it ends
    assert describe(node).count("...") == 1


BY_SIGN = ("mulhi", "min", "max", "div", "rem", "shr", "bfe", "lt", "le")
"""Operations that differ by sign: their names say it. Of ``eq`` and ``ne`` only ``.s`` is used."""

NAMES = [
    name
    for base in sorted(operations(Whole(32, True)))
    for name in (
        (f"{base}.s", f"{base}.u") if base in BY_SIGN
        else (f"{base}.s",) if base in ("eq", "ne") else (base,)
    )
]  # fmt: skip


def operands_of(op: str, bits: int, draw: st.DataObject) -> list[int]:
    """Operands of an operation: numbers of ``bits`` bits (their ends more often), and counts."""
    _, numbers, counts = operations(Whole(bits, True))[op.partition(".")[0]]
    half = 1 << (bits - 1)
    number = st.integers(-half, half - 1) | st.sampled_from([-half, half - 1, -1, 0, 1])
    count = st.integers(0, 70) | st.sampled_from([255, 256, -1, 1 << 30])
    return [draw.draw(number) for _ in range(numbers)] + [draw.draw(count) for _ in range(counts)]


@given(st.sampled_from(NAMES), st.sampled_from([8, 16, 32, 64]), st.data())
def test_arrays_compute_what_scalars_do(op: str, bits: int, data: st.DataObject) -> None:
    """The same operation on lanes and on plain integers."""
    operands = operands_of(op, bits, data)
    result = 1 if op in COMPARISONS else 32 if op in ("popc", "clz") else bits
    wanted = fold(op, result, bits, tuple(operands))
    counts = operations(Whole(bits, True))[op.partition(".")[0]].counts
    bounds = [limits(bits)] * (len(operands) - counts) + [limits(32)] * counts
    lanes = [
        Val(np.array([v, v], dtype=np.int64), low, high)
        for v, (low, high) in zip(operands, bounds, strict=True)
    ]
    if op == "zext":
        result = 64
        wanted = fold(op, result, bits, tuple(operands))
    found = Arithmetic().apply(op, result, bits, list(lanes))
    if isinstance(found, Val):
        assert np.asarray(found.base).tolist() == [wanted, wanted]
        assert found.low <= wanted <= found.high
    else:
        assert found == wanted


def test_the_least_64_bit_integer_divides_like_every_other() -> None:
    least, thirds = -(1 << 63), -((1 << 63) // 3)
    for op, pair, wanted in [
        ("div.s", (least, 3), thirds), ("rem.s", (least, 3), least - 3 * thirds),
        ("div.s", (33, least), 0), ("rem.s", (33, least), 33), ("div.s", (least, -1), least),
    ]:  # fmt: skip
        assert fold(op, 64, 64, pair) == wanted
        lanes = [np.array([v], dtype=np.int64) for v in pair]
        assert fold_lanes(op, 64, lanes).tolist() == [wanted]


# --- chains ------------------------------------------------------------------------------------


# --- hostile text --------------------------------------------------------------------------------
def run(text: str, **arguments: int) -> SymbolicResult:
    module = read_module(text)
    launch = Launch.of(4, 64, 0, arguments)
    return analyse_symbolically(module, module.kernels[0], launch)


def test_irreducible_flow_is_marked() -> None:
    body = """setp.lt.s32 %p1, %r2, 5; @%p1 bra B; A: add.s32 %r8, %r2, 1;
        B: setp.lt.s32 %p2, %r3, 1; @%p2 bra A; ret;"""
    result = run(kernel(body))
    assert not known(result)
    assert "irreducible_loop" in {d.code for d in result.diagnostics}


@pytest.mark.parametrize("body", ["L: bra L;", "L: @%p1 bra L; bra L;", "bra M; M: bra M; ret;"])
def test_endless_loops_end(body: str) -> None:
    result = run(kernel(body))
    assert not result.loops[0].exact


def test_an_endless_geometric_loop_is_given_up() -> None:
    body = "mov.u32 %r8, 1; L: xor.b32 %r8, %r8, 3; setp.ne.s32 %p1, %r8, 7; @%p1 bra L; ret;"
    result = run(kernel(body))
    assert result.loops[0].how == "assumed"
    assert "too many iterations" in (result.unproven or "")


def test_calls_are_not_followed_and_said() -> None:
    text = """.version 7.8
    .target sm_80
    .address_size 64
    .func f() { call f; ret; }
    .visible .entry k() { call f; ret; }
    """
    result = run(text)
    assert not result.complete
    assert not known(result)
    assert set(result.functions) == {"k"}


# --- Trip counts, branches, accesses and samples of small kernels, checked by hand


def analyse(
    body: str, *, grid: int | tuple[int, ...] = 1, block: int | tuple[int, ...] = 32,
    declarations: str = "", **arguments: object,
) -> SymbolicResult:  # fmt: skip
    module = read_module(kernel(body, declarations=declarations))
    launch = Launch.of(grid, block, 0, arguments)  # type: ignore[arg-type]
    return analyse_symbolically(module, module.kernel("k"), launch)


def per_request(result: SymbolicResult, access: AccessInfo) -> float:
    """Sectors of a request to global memory, or transactions of one to shared memory."""
    counts, at = result.functions["k"], access.position
    moved = counts.sectors[at] + counts.shared_transactions[at]
    return float(moved / (counts.requests[at] + counts.shared_requests[at]))


def only_loop(result: SymbolicResult) -> TripInfo:
    (loop,) = result.loops
    return loop


COUNT = """mov.u32 %r8, {start}; L: add.s32 %r8, %r8, {step};
    setp.{how} %p1, %r8, {to}; @%p1 bra L; ret;"""


@pytest.mark.parametrize(
    ("start", "step", "how", "to", "trips"),
    [
        (0, 1, "lt.s32", 10, 10),
        (0, 3, "lt.s32", 10, 4),
        (0, 3, "le.s32", 9, 4),
        (10, -1, "ne.s32", 0, 10),
        (10, -4, "gt.s32", 0, 3),
        (5, 1, "lt.s32", 0, 1),
        ("-1", 1, "lt.u32", 5, 6),
    ],
)
def test_constant_trip_counts(start: object, step: int, how: str, to: int, trips: int) -> None:
    loop = only_loop(analyse(COUNT.format(start=start, step=step, how=how, to=to)))
    assert (loop.how, loop.count, loop.mean) == ("constant", trips, trips)


def test_a_counter_that_wraps_is_followed_or_unknown_but_never_wrong() -> None:
    # From 10 in steps of 3 the counter passes 0 only after wrapping: 10 + 3 k = 2^32 m.
    loop = only_loop(analyse(COUNT.format(start=10, step=3, how="ne.s32", to=0)))
    assert loop.how == "assumed"


def test_a_missing_argument_is_named() -> None:
    result = analyse(COUNT.format(start=0, step=1, how="lt.s32", to="%r1"))
    loop = only_loop(result)
    assert (loop.how, loop.exact) == ("assumed", False)
    assert not result.exact
    assert not known(result)
    assert "trip count of the loop L in line" in (result.unproven or "")
    assert "n is not given" in (result.unproven or "")


def test_a_data_dependent_loop_says_where_the_data_come_from() -> None:
    result = analyse("L: ld.global.u32 %r8, [%rd3]; setp.lt.s32 %p1, %r8, 3; @%p1 bra L; ret;")
    assert only_loop(result).how == "assumed"
    assert "loaded from memory" in (result.unproven or "")


def test_a_loop_that_tests_first_counts_its_body() -> None:
    body = """mov.u32 %r8, 0; L: setp.ge.s32 %p1, %r8, %r1; @%p1 bra E;
        add.s32 %r8, %r8, 1; bra L; E: ret;"""
    loop = only_loop(analyse(body, n=6))
    assert (loop.count, loop.mean) == (6, 7)


def test_geometric_loops_are_followed() -> None:
    body = "mov.u32 %r8, 1; L: shl.b32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 1000; @%p1 bra L; ret;"
    assert only_loop(analyse(body)).count == 10


def test_a_guard_splits_lanes_and_warps_exactly_over_a_large_grid() -> None:
    # 1000 blocks of 64 threads; 40,010 pass: 1250 whole warps and 10 lanes of another.
    body = "setp.ge.s32 %p1, %r5, %r1; @%p1 bra E; st.global.u32 [%rd3], 1; E: ret;"
    result = analyse(body, grid=1000, block=64, n=40_010)
    counts = result.functions["k"]
    assert (counts.warp_executions[10], counts.active_lanes[10]) == (1251, 40_010)
    assert result.sampling.exact
    assert len(result.sampling.blocks) < 10
    (branch,) = result.branches
    assert branch.known
    assert (branch.taken_warps, branch.other_warps) == pytest.approx((750 / 1251, 1))


def test_a_branch_on_data_is_not_proven() -> None:
    body = """ld.global.u32 %r8, [%rd3]; setp.eq.s32 %p1, %r8, 0; @%p1 bra E;
        st.global.u32 [%rd3], 1; E: ret;"""
    result = analyse(body)
    counts = result.functions["k"]
    assert not counts.counts_known[11]
    assert counts.counts_known[12]  # all meet again
    assert counts.active_lanes[12] == 32
    assert (result.unproven or "").startswith("which way the branch goes in line")


def test_a_branch_by_a_table_is_not_proven() -> None:
    """Under a guard as well, of which the lanes that do not take it go on behind it."""
    body = """T: .branchtargets A, B; setp.ge.s32 %p1, %r2, 7; @%p1 brx.idx %r3, T;
        st.global.u32 [%rd3], 1; A: st.global.u32 [%rd3], 2; B: ret;"""
    result = analyse(body)
    assert "brx.idx" in (result.unproven or "")
    assert not result.functions["k"].counts_known[10:12].any()


@pytest.mark.parametrize(
    ("scale", "offset", "stride", "sectors"),
    [(4, 0, 4, 4), (8, 0, 8, 8), (4, 4, 4, 5), (128, 0, 128, 32), (0, 0, 0, 1)],
)
def test_stride_and_sectors_of_a_load(scale: int, offset: int, stride: int, sectors: int) -> None:
    body = f"""mul.wide.u32 %rd5, %r2, {scale}; add.u64 %rd5, %rd1, %rd5;
        ld.global.f32 %f1, [%rd5+{offset}]; ret;"""
    result = analyse(body)
    (access,) = result.accesses
    assert access.affine
    assert (access.stride_bytes, per_request(result, access)) == (stride, sectors)


@pytest.mark.parametrize(("lane", "sectors"), [(1024, 4), (32, 4), (16, 4), (12, 5)])
def test_a_choice_of_two_buffers_by_place_is_read_like_one(lane: int, sectors: int) -> None:
    """``t < n ? a : b`` (before: 32 sectors, one a lane)."""
    pick = f"""
        ld.param.u64 %rd4, [b]; setp.lt.u32 %p1, %r2, {lane}; selp.b64 %rd5, %rd1, %rd4, %p1;
        add.u64 %rd6, %rd5, %rd2; ld.global.u32 %r9, [%rd6]; ret;"""
    module = read_module(kernel(pick).replace(".param .u32 n)", ".param .u32 n, .param .u64 b)"))
    result = analyse_symbolically(module, module.kernel("k"), Launch.of(1, 32, 0, {}))
    (access,) = result.accesses
    assert access.affine
    assert per_request(result, access) == sectors


@pytest.mark.parametrize(("words", "degree"), [(1, 1), (2, 2), (32, 32), (33, 1)])
def test_bank_conflicts(words: int, degree: int) -> None:
    body = f"mul.lo.u32 %r8, %r2, {4 * words}; st.shared.u32 [%r8], 1; ret;"
    result = analyse(body, declarations=".shared .align 4 .b8 s[8192];")
    (access,) = result.accesses
    assert (access.affine, per_request(result, access)) == (True, degree)


def test_alignment_that_changes_with_the_iteration_is_averaged_exactly() -> None:
    # 4 bytes further each time: of eight iterations one is aligned (4 sectors), seven not (5).
    body = """mul.wide.u32 %rd5, %r2, 4; add.u64 %rd5, %rd1, %rd5; mov.u32 %r8, 0;
        L: ld.global.f32 %f1, [%rd5]; add.u64 %rd5, %rd5, 4; add.u32 %r8, %r8, 1;
        setp.ne.s32 %p1, %r8, 16; @%p1 bra L; ret;"""
    result = analyse(body)
    (access,) = result.accesses
    assert access.affine
    assert per_request(result, access) == pytest.approx((4 + 7 * 5) / 8)


def test_gathered_addresses_are_unknown_with_the_reason() -> None:
    body = """ld.global.u32 %r8, [%rd3]; mul.wide.u32 %rd5, %r8, 4; add.u64 %rd5, %rd1, %rd5;
        ld.global.f32 %f1, [%rd5]; ret;"""
    result = analyse(body)
    first, second = result.accesses
    assert first.affine
    assert not second.affine
    assert "the address in line" in (result.unproven or "")
    assert "loaded from memory" in (result.unproven or "")


def test_an_argument_that_no_parameter_has_is_refused() -> None:
    with pytest.raises(LaunchError, match="no parameter 'm'"):
        analyse("ret;", m=1)


BODIES = table("bodies", "blocks_of_each_kind")


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("n", [1, 333, 4000, 9001, 20000])
def test_one_block_of_each_kind_tells_what_all_blocks_do(
    name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = analyse(BODIES[name], grid=96, block=96, n=n)
    assert few.sampling.exact
    assert len(few.sampling.blocks) < 96
    monkeypatch.setattr(sampling, "ALL_LANES", 1 << 20)
    every = analyse(BODIES[name], grid=96, block=96, n=n)
    assert len(every.sampling.blocks) == 96
    for what in ("warp_executions", "active_lanes", "sectors"):
        np.testing.assert_allclose(
            getattr(few.functions["k"], what), getattr(every.functions["k"], what), err_msg=what
        )


# --- Generated programs: what the symbolic analysis calls known is what the interpreters do

SHARED = ".shared .align 4 .b8 s[512];"

MANY = ".reg .b32 %r<400>;"


def check(said: SymbolicResult, executed: ExecutionResult, text: str) -> None:
    """Compare with execution."""
    assert not loop_errors(said, executed, "k"), text
    assert not count_errors(said, executed), text


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=affine_programs(), block=st.sampled_from([32, 48, 65]), n=st.integers(0, 140))
def test_affine_programs_are_known_whole(body: str, block: int, n: int) -> None:
    text = kernel(body, declarations=SHARED).replace(".reg .b32 %r<32>;", MANY)
    module = read_module(text)
    out = np.zeros(1024, dtype=np.uint32)
    real = run_reference(text, "k", (2,), (block,), {"out": out, "n": np.uint32(n)})
    launch = Launch.of(2, block, 0, {"out": BASE, "n": n})
    said = analyse_symbolically(module, module.kernel("k"), launch)
    assert known(said)
    counts = said.functions["k"]
    for one in real.per_instruction:
        found = (
            counts.warp_executions[one.index], counts.active_lanes[one.index],
            counts.sectors[one.index], counts.shared_transactions[one.index],
        )  # fmt: skip
        wanted = (one.warp_executions, one.active_lanes, one.sectors, one.shared_transactions)
        if not counts.access_known[one.index]:
            found, wanted = found[:2], wanted[:2]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, err_msg=f"line {one.line}: {text}")
    executed, _ = run_whole(module.kernel("k"), module, launch, {BASE: out})
    check(said, executed, text)


@pytest.mark.parametrize("seed", range(32))
def test_programs_that_depend_on_data_are_marked(seed: int) -> None:
    generated = program(seed)
    executed, _, module, launch = run_engine(generated)
    said = analyse_symbolically(module, module.kernel("k"), launch)
    check(said, executed, generated.ptx)
