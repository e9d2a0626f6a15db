"""Basic blocks, orders, dominators."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.ptx_text import graph_kernel, kernel
from wattcast.features.cfg import ControlFlowGraph, build_cfg, dominators, post_dominators
from wattcast.features.ptx import read_module


def graph(text: str) -> ControlFlowGraph:
    return build_cfg(read_module(kernel(text)).kernel().body)


@st.composite
def edges(draw: st.DrawFn, most: int = 14) -> list[tuple[int, ...]]:
    """Successors of every block of a random graph, any shape, unreachable parts included."""
    count = draw(st.integers(1, most))
    block = st.integers(0, count - 1)
    following = st.lists(block, max_size=3, unique=True).map(tuple)
    return draw(st.lists(following, min_size=count, max_size=count))


def of_edges(successors: list[tuple[int, ...]]) -> ControlFlowGraph:
    found = build_cfg(read_module(graph_kernel(successors)).kernel().body)
    assert [block.successors for block in found.blocks] == successors
    return found


def test_branch_tables() -> None:
    found = graph("ts: .branchtargets A, B, A;\nbrx.idx %r1, ts;\nA: ret;\nB: trap;")
    assert found.blocks[0].successors == (1, 2)
    assert [block.exits for block in found.blocks] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("bra NOWHERE;\nret;", "unknown_label"),
        ("brx.idx %r1, ts;\nret;", "unknown_label"),
        ("ts: .branchtargets A, B;\nbrx.idx %r1, ts;\nA: ret;", "unknown_label"),
        ("bra %r1;\nret;", "indirect_branch"),
        ("bra;\nret;", "indirect_branch"),
    ],
)
def test_jumps_that_lead_nowhere_are_reported(text: str, code: str) -> None:
    found = graph(text)
    assert [(one.code, one.column) for one in found.diagnostics] == [(code, 1)]
    assert len(found.blocks) == 2


def test_an_empty_body_is_one_empty_block() -> None:
    found = graph("")
    assert [(b.start, b.end, b.successors, b.exits) for b in found.blocks] == [(0, 0, (), True)]
    assert dominators(found) == (0,)
    assert post_dominators(found) == (1,)


def test_a_jump_behind_the_last_instruction_leaves() -> None:
    found = graph("@%p1 bra END;\nbra END;\nEND:")
    assert [block.successors for block in found.blocks] == [(2, 1), (2,), ()]
    assert found.blocks[2].exits
    assert post_dominators(found) == (2, 2, 3)


def test_an_endless_loop_has_no_post_dominator() -> None:
    assert post_dominators(graph("L: bra L;")) == (-1,)


@settings(deadline=None)
@given(edges())
def test_dominators_are_those_of_networkx(successors: list[tuple[int, ...]]) -> None:
    found = of_edges(successors)
    wanted = dict(nx.immediate_dominators(digraph(successors), 0)) | {0: 0}
    assert dominators(found) == tuple(wanted.get(node, -1) for node in range(len(successors)))


@settings(deadline=None)
@given(edges())
def test_post_dominators_are_dominators_backwards(successors: list[tuple[int, ...]]) -> None:
    found = of_edges(successors)
    backwards = digraph(successors).reverse()
    leave = len(successors)
    backwards.add_edges_from((leave, block.index) for block in found.blocks if block.exits)
    backwards.add_node(leave)
    wanted = nx.immediate_dominators(backwards, leave)
    assert post_dominators(found) == tuple(wanted.get(node, -1) for node in range(leave))


def digraph(successors: list[tuple[int, ...]]) -> nx.DiGraph:
    made = nx.DiGraph()
    made.add_nodes_from(range(len(successors)))
    made.add_edges_from((node, to) for node, all_to in enumerate(successors) for to in all_to)
    return made


@settings(deadline=None)
@given(edges())
def test_the_order_puts_dominators_first(successors: list[tuple[int, ...]]) -> None:
    found = of_edges(successors)
    order = found.reverse_post_order
    assert set(order) == {0} | nx.descendants(digraph(successors), 0)
    place = {block: number for number, block in enumerate(order)}
    parents = dominators(found)
    assert all(place[parents[block]] < place[block] for block in order if block)


@settings(deadline=None)
@given(edges())
def test_blocks_cover_the_body_and_edges_have_two_ends(successors: list[tuple[int, ...]]) -> None:
    found = of_edges(successors)
    ends = [0, *(block.end for block in found.blocks)]
    assert [block.start for block in found.blocks] == ends[:-1]
    assert ends[-1] == len(found.body.instructions)
    forward = {(block.index, to) for block in found.blocks for to in block.successors}
    assert forward == {(by, block.index) for block in found.blocks for by in block.predecessors}


@pytest.mark.parametrize("count", [3_000, 6_000])
def test_long_chains_need_no_recursion(count: int) -> None:
    """A chain with an edge from every block to the end, and one back to the start."""
    successors: list[tuple[int, ...]] = [(n + 1, count) for n in range(count - 1)]
    successors += [(count, 0), ()]
    assert dominators(of_edges(successors)) == (0, *range(count - 1), 0)
