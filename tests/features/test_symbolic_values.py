"""The expression graph, affine forms, dependent chains, and hostile text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.features.execution_kernels import kernel
from tests.features.symbolic_programs import known
from wattcast.features.integers import COMPARISONS, Whole, fold, fold_lanes, operations
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.symbolic import SymbolicResult, analyse_symbolically
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
