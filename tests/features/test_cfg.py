"""Basic blocks, orders, dominators."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.ptx_text import graph_kernel, kernel
from tests.fixtures.tables import rows
from wattcast.features.analysis import analyse
from wattcast.features.cfg import ControlFlowGraph, build_cfg, dominators, post_dominators
from wattcast.features.dataflow import block_edges, reads, writes
from wattcast.features.errors import DEFAULT_LIMITS, LaunchError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.loops import LoopForest, deciding, natural_loops
from wattcast.features.occupancy import fixed_block
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Instruction


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


# --- Natural loops against their definition


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


# --- Reads, writes and def-use edges


def one(text: str) -> Instruction:
    return read_module(kernel(text)).kernel().body.instructions[0]


@pytest.mark.parametrize(
    ("text", "read", "written"),
    rows("dataflow", "read_and_written"),
)  # fmt: skip
def test_reads_and_writes(text: str, read: str, written: str) -> None:
    found = one(text)
    assert reads(found) == tuple(read.split())
    assert writes(found) == tuple(written.split())


def edges_of(text: str) -> tuple[tuple[int, int], ...]:
    graph = build_cfg(read_module(kernel(text)).kernel().body)
    return block_edges(graph.body, graph.blocks[0])


def test_the_carry_flag_is_an_edge() -> None:
    assert edges_of(
        "add.cc.u32 %r1, %r2, %r3;\naddc.cc.u32 %r4, %r5, %r6;\nmul.lo.u32 %r7, %r8, %r8;\n"
        "addc.u32 %r9, %r2, %r3;\nret;"
    ) == ((0, 1), (1, 3))


def test_edges_stay_inside_their_block() -> None:
    graph = build_cfg(
        read_module(kernel("mov.u32 %r1, 1;\nL: add.s32 %r1, %r1, 1;\nbra L;")).kernel().body
    )
    assert [block_edges(graph.body, block) for block in graph.blocks] == [(), ()]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
        max_size=30,
    )
)
def test_edges_of_random_blocks(rows: list[tuple[bool, int, int, int]]) -> None:
    """Against the definition: the last write before each read, kept values included."""
    text = "\n".join(
        f"{'@%p0 ' if guarded else ''}add.s32 %r{d}, %r{a}, %r{b};" for guarded, d, a, b in rows
    )
    wanted = set()
    for reader, (guarded, d, a, b) in enumerate(rows):
        for register in {a, b, d} if guarded else {a, b}:
            before = [w for w in range(reader) if rows[w][1] == register]
            if before:
                wanted.add((before[-1], reader))
    found = edges_of(text)
    assert set(found) == wanted
    assert list(found) == sorted(found, key=lambda edge: (edge[1], edge[0]))


# --- Launches that a kernel's own directives forbid, and block sizes they fix

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def text(directives: str) -> str:
    return f"{HEADER}.visible .entry k(\n.param .u64 p\n)\n{directives}\n{{\nret;\n}}\n"


@pytest.mark.parametrize(
    ("directives", "grid", "block", "says", "field"),
    [
        (".reqntid 256", 8, 128, ".reqntid in line 7 wants blocks of exactly 256", "block"),
        (".reqntid 16, 16, 1", 8, 256, "exactly 16 x 16 threads; 256 are", "block"),
        (".maxntid 128, 1, 1", 8, 256, ".maxntid in line 7 wants blocks of at most 128", "block"),
        ("\n.maxntid 16, 16", 8, 512, "line 8", "block"),
        (".reqnctapercluster 4, 1, 1", 10, 64, "whole clusters of 4 blocks; 10 blocks", "grid"),
        (".reqnctapercluster 4\n.maxclusterrank 2", 8, 64, "allows clusters of 2", "grid"),
    ],
)
def test_a_launch_against_a_directive_is_refused(
    directives: str, grid: int, block: int, says: str, field: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        analyse(read_module(text(directives)), None, Launch.of(grid, block), load_gpu("h100"))
    assert says in caught.value.detail
    assert caught.value.field == field
    assert caught.value.context["line"] >= 7


@pytest.mark.parametrize(
    ("directives", "grid", "block"),
    [
        (".reqntid 256", 8, 256),
        (".maxntid 16, 16", 8, 256),
        (".maxntid 256\n.minnctapersm 4\n.maxnctapersm 8", 8, 32),
        # Deprecated; it tells the compiler how many blocks an SM has to make room for, and
        # neither driver nor hardware hold a launch to it (PTX ISA 9.0, 11.4).
        (".maxntid 256\n.maxnctapersm 1", 100_000, 32),
        (".reqnctapercluster 2, 2", (4, 2), 64),
        ("", 8, 1024),
    ],
)
def test_a_launch_that_keeps_to_them_is_not(directives, grid, block) -> None:
    analyse(read_module(text(directives)), None, Launch.of(grid, block), load_gpu("h100"))


def test_the_block_that_is_fixed() -> None:
    assert fixed_block(read_module(text(".reqntid 32, 4")).kernel(None)) == (32, 4, 1)
    assert fixed_block(read_module(text(".maxntid 32")).kernel(None)) is None
