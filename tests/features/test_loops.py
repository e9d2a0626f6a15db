"""Natural loops against their definition."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings

from tests.features.test_cfg import digraph, edges
from tests.fixtures.ptx_text import graph_kernel
from wattcast.features.cfg import build_cfg
from wattcast.features.errors import DEFAULT_LIMITS
from wattcast.features.loops import LoopForest, deciding, natural_loops
from wattcast.features.ptx import read_module


def loops(successors: list[tuple[int, ...]]) -> LoopForest:
    return natural_loops(build_cfg(read_module(graph_kernel(successors)).kernel().body))


def brute_force(
    successors: list[tuple[int, ...]],
) -> tuple[dict[int, frozenset[int]], set[tuple[int, int]]]:
    """Blocks by header from the definition, and the back edges."""
    graph = digraph(successors)
    reachable = {0} | nx.descendants(graph, 0)
    graph = graph.subgraph(reachable)

    def dominates(above: int, below: int) -> bool:
        if above == below or above == 0:
            return True
        without = graph.subgraph(reachable - {above})
        return below not in ({0} | nx.descendants(without, 0))

    back = {(u, v) for u, v in graph.edges if dominates(v, u)}
    found: dict[int, frozenset[int]] = {}
    for latch, header in back:
        body = {header, latch}
        if latch != header:
            body |= nx.ancestors(graph.subgraph(reachable - {header}), latch)
        found[header] = found.get(header, frozenset()) | body
    return found, back


@settings(deadline=None)
@given(edges())
def test_loops_are_those_of_the_definition(successors: list[tuple[int, ...]]) -> None:
    forest = loops(successors)
    wanted, back = brute_force(successors)
    assert {loop.header: loop.blocks for loop in forest.loops} == wanted
    assert {edge for loop in forest.loops for edge in loop.back_edges} == back
    for loop in forest.loops:
        around = [one for one in forest.loops if loop.blocks < one.blocks]
        assert loop.depth == len(around) + 1
        nearest = min(around, key=lambda one: len(one.blocks), default=None)
        assert loop.parent == (nearest.index if nearest else -1)
        assert forest.loops[loop.index] is loop
    for block, innermost in enumerate(forest.innermost):
        holding = [loop for loop in forest.loops if block in loop.blocks]
        assert forest.depth(block) == len(holding)
        if holding:
            assert innermost == min(holding, key=lambda one: len(one.blocks)).index


@settings(deadline=None)
@given(edges())
def test_without_back_edges_only_irreducible_cycles_remain(
    successors: list[tuple[int, ...]],
) -> None:
    """A graph is reducible just if it has no cycle once its back edges are gone."""
    forest = loops(successors)
    graph = digraph(successors)
    graph = graph.subgraph({0} | nx.descendants(graph, 0)).copy()
    stuck = all(successors[block] for block in graph)
    graph.remove_edges_from([edge for loop in forest.loops for edge in loop.back_edges])
    assert nx.is_directed_acyclic_graph(graph) == (not forest.irreducible)
    graph.remove_edges_from(forest.irreducible)
    assert nx.is_directed_acyclic_graph(graph)
    told = ["irreducible_loop"] * len(forest.irreducible)
    assert [one.code for one in forest.diagnostics] == told + ["endless_loop"] * stuck


def test_a_loop_without_a_way_out_is_reported_where_it_begins() -> None:
    forest = loops([(1,), (1, 2), (3,), (4,), (3, 4)])
    told = [(one.code, one.line) for one in forest.diagnostics]
    assert told == [("endless_loop", forest.loops[1].line)]


def test_a_cycle_with_two_entries_is_reported() -> None:
    forest = loops([(1, 2), (2,), (1, 3), ()])
    assert forest.loops == ()
    assert len(forest.irreducible) == 1
    assert forest.diagnostics[0].code == "irreducible_loop"
    assert forest.diagnostics[0].line is not None


@pytest.mark.parametrize("depth", [50, DEFAULT_LIMITS.max_loop_nesting])
def test_deep_nests(depth: int) -> None:
    """``depth`` loops in one another: header i goes on to i + 1, latch i back to header i."""
    successors: list[tuple[int, ...]] = [(n + 1,) for n in range(depth)]
    successors += [(depth - 1 - n, depth + n + 1) for n in range(depth)]
    successors.append(())
    forest = loops(successors)
    assert [loop.depth for loop in forest.loops] == list(range(1, depth + 1))
    assert len(forest.loops[0].blocks) == 2 * depth
    assert len(forest.loops[-1].blocks) == 2


@pytest.mark.parametrize(("counter", "loaded"), [("%r2", False), ("%r1", True)])
def test_a_counter_that_begins_as_a_copy_is_no_data(counter: str, loaded: bool) -> None:
    """NVRTC copies the zero of a sum that the loop then fills with what it loads."""
    text = f""".version 7.0\n.target sm_70\n.address_size 64
.visible .entry k(.param .u64 p)\n{{\n.reg .b32 %r<4>;\n.reg .b64 %rd<2>;\n.reg .pred %p<2>;
ld.param.u64 %rd1, [p];\nmov.u32 %r1, 0;\nmov.u32 %r2, %r1;
L:\nld.global.u32 %r3, [%rd1];\nadd.s32 %r1, %r1, %r3;\nadd.s32 %r2, %r2, 1;
setp.ne.s32 %p1, {counter}, 600;\n@%p1 bra L;\nst.global.u32 [%rd1], %r1;\nret;\n}}\n"""
    (origin,) = deciding(read_module(text).kernel()).loops
    assert origin.loaded is loaded
    assert bool(origin.data) is loaded
