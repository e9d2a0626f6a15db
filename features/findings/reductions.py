"""Findings about reductions: spread threads, steps that a warp could take itself.

A tree of sums in shared memory is a loop with a barrier in which a part of the threads adds one
word to another (M. Harris, Optimizing Parallel Reduction in CUDA, NVIDIA 2007).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wattcast.features.activity.instructions import InstructionEvents
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.dataflow import computed_from, flow, reads, writes, written
from wattcast.features.findings.arithmetic import divisor_of
from wattcast.features.findings.finding import (
    Evidence,
    Finding,
    NotRewritableError,
    Rewriting,
    inside_of,
    operands_of,
    place,
)
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.loops import Loop
from wattcast.features.ptx.ir import Address, Immediate, Instruction, Register, Special

_COMBINED = frozenset({"add", "min", "max", "and", "or", "xor", "mul"})


@dataclass(frozen=True)
class _Tree:
    """A reduction: its loop, what combines two words, the store of the result, and the remainder
    of the thread index that chooses threads, with the comparison made of it, if one does."""

    loop: Loop
    combines: Instruction
    stores: Instruction
    remainder: Instruction | None
    compares: Instruction | None


def reductions(evidence: Evidence) -> Iterator[Finding]:
    """Trees in shared memory: threads side by side first, then shuffles.

    Threads chosen by a remainder of their index are spread over all warps. Rewritten, the first
    ones of the block are chosen instead, half as many at each step. A tree whose threads are
    side by side is rewritten with shuffles, which need no barrier; the first store to shared memory
    and its barrier stay there though they could go.
    """
    analysis = evidence.analysis
    for tree in trees(evidence):
        try:
            if tree.remainder is not None and tree.compares is not None:
                yield _spread(evidence, tree, tree.remainder, tree.compares)
            elif analysis.launch.threads_per_block >= 2 * WARP_SIZE:
                yield _shuffled(evidence, tree)
        except NotRewritableError:
            continue


def trees(evidence: Evidence) -> Iterator[_Tree]:
    """The reductions of a kernel that run."""
    analysis = evidence.analysis
    launch = analysis.launch
    made = written(analysis.function.body)
    events = evidence.events[analysis.function.name]
    for loop in analysis.loops.loops:
        inside = inside_of(analysis, loop.blocks)
        facts = [classify(one.opcode) for one in inside]
        shared = [one for one, of in zip(inside, facts, strict=True) if of.space == "shared"]
        loads = [one for one in shared if classify(one.opcode).category == "load"]
        stores = [one for one in shared if classify(one.opcode).category == "store"]
        others = any(of.space in ("global", "local", "generic") for of in facts)
        barrier = any(of.entry in ("bar", "barrier") for of in facts)
        if others or not barrier or len(stores) != 1 or not 1 <= len(loads) <= 2 or loop.children:
            continue
        if not events.warp_executions[stores[0].position]:
            continue
        # Halved at each step, fewer lanes add than a block has: a scan's are more.
        if events.active_lanes[stores[0].position] > launch.blocks * launch.threads_per_block:
            continue
        if _read_by_many(analysis, events):
            continue
        loaded = {name for one in loads for name in writes(one)}
        stored = next((o for o in stores[0].operands if isinstance(o, Register)), None)
        combines = next(
            (
                one
                for one in inside
                if one.base in _COMBINED
                and stored is not None
                and stored.name in writes(one)
                and loaded & set(reads(one))
            ),
            None,
        )
        if combines is not None:
            yield _Tree(loop, combines, stores[0], *_chosen_by(analysis, inside, made))


def _read_by_many(analysis: KernelAnalysis, events: InstructionEvents) -> bool:
    """Whether several lanes each read their own word of shared memory outside of loops: more than
    the one sum is wanted."""
    made, thread = written(analysis.function.body), Special("%tid.x")
    members = {
        one.position for loop in analysis.loops.loops for one in inside_of(analysis, loop.blocks)
    }
    for one in analysis.function.body.instructions:
        facts, at = classify(one.opcode), one.position
        if facts.space != "shared" or facts.category != "load" or at in members:
            continue
        address = one.operands[-1]
        base = address.base if isinstance(address, Address) else None
        if isinstance(base, Register) and events.active_lanes[at] > events.warp_executions[at]:
            sources = computed_from([base.name], made)
            if any(thread in one.operands for name in sources for one in made.get(name, ())):
                return True
    return False


def _chosen_by(
    analysis: KernelAnalysis,
    inside: Sequence[Instruction],
    made: Mapping[str, Sequence[Instruction]],
) -> tuple[Instruction | None, Instruction | None]:
    """The remainder of the thread index that a comparison with 0 chooses threads by, and that."""
    by_name = {name: one for one in inside for name in writes(one)}
    for one in inside:
        zero = one.operands[-1] if one.base == "setp" else None
        if not isinstance(zero, Immediate) or zero.value or one.modifiers[0] not in ("eq", "ne"):
            continue
        compared = one.operands[1]
        found = by_name.get(compared.name) if isinstance(compared, Register) else None
        if found is None or found.base not in ("rem", "and"):
            continue
        index, step = found.operands[1:]
        if not isinstance(index, Register) or not isinstance(step, Register):
            continue
        if found.base == "and" and not _is_thread(index, made):
            index, step = step, index
        halves = found.base == "and" or divisor_of(analysis, step.name, made).power
        if _is_thread(index, made) and step.name in by_name and halves:
            return found, one
    return None, None


def _is_thread(register: Register, made: Mapping[str, Sequence[Instruction]]) -> bool:
    writers = made.get(register.name, ())
    first = writers[0].operands[1] if len(writers) == 1 and len(writers[0].operands) > 1 else None
    return first == Special("%tid.x")


def _spread(
    evidence: Evidence, tree: _Tree, remainder: Instruction, compares: Instruction
) -> Finding:
    analysis = evidence.analysis
    function = analysis.function
    change = Rewriting(analysis.module, function)
    made = written(function.body)
    threads = analysis.launch.block[0]
    left = change.new("b32")
    first = function.body.instructions[0]
    change.before(first, [f"mov.u32 {left}, {1 << (threads - 1).bit_length()};"])
    change.replace(remainder, [f"shr.u32 {left}, {left}, 1;"])
    index = next(
        one for one in remainder.operands[1:] if isinstance(one, Register) and _is_thread(one, made)
    )
    flag = operands_of(change.text_of(compares))[0]
    test = "lt" if compares.modifiers[0] == "eq" else "ge"
    change.replace(compares, [f"setp.{test}.u32 {flag}, {index.name}, {left};"])
    branches = [
        one
        for one in inside_of(analysis, tree.loop.blocks)
        if one.base == "bra" and one.predicate is not None and one.predicate in writes(compares)
    ]
    events = evidence.events[function.name]
    at = tree.stores.position
    lanes = events.active_lanes[at] / max(1.0, events.warp_executions[at])
    return Finding(
        "divergent_branch",
        tuple(place(function, one) for one in (*branches, remainder)),
        f"every step of this reduction picks threads by a remainder of their index, so that they "
        f"are spread over all warps: {lanes:.1f} of {WARP_SIZE} lanes work where a warp adds, and "
        f"all warps compute {remainder.opcode}",
        "let the first threads of the block add, side by side: halve the distance from "
        "blockDim.x / 2 on and test threadIdx.x < distance. Warp shuffles are the next step",
        ptx=change.text(),
        form="reduction",
    )


def _shuffled(evidence: Evidence, tree: _Tree) -> Finding:
    """The loop replaced by shuffles of each warp, one store, one barrier, shuffles of the first."""
    analysis = evidence.analysis
    function, cfg = analysis.function, analysis.cfg
    change = Rewriting(analysis.module, function)
    inside = inside_of(analysis, tree.loop.blocks)
    header = cfg.blocks[tree.loop.header]
    after = {
        follower
        for block in tree.loop.blocks
        for follower in cfg.blocks[block].successors
        if follower not in tree.loop.blocks
    }
    if len(after) != 1 or tree.combines.opcode.split(".")[-1][1:] != "32":
        raise NotRewritableError("the loop has several ways out, or other words than of 4 bytes")
    (out,) = after
    if cfg.blocks[out].start >= cfg.blocks[out].end:
        raise NotRewritableError("nothing follows the loop")
    variable = next(
        (
            variable.name
            for variable in (*function.body.variables, *analysis.module.variables)
            if variable.space == "shared"
        ),
        None,
    )
    if variable is None:
        raise NotRewritableError("no shared variable")
    kind = tree.combines.opcode.split(".")[-1]
    word = "f32" if kind == "f32" else "b32"
    thread, own, other = change.new("b32"), change.new(word), change.new(word)
    at, lane, first = change.new("b32"), change.new("pred"), change.new("pred")
    rounds = _rounds(tree.combines.opcode, own, other)
    rest, warp, sums = change.new("b32"), change.new("b32"), change.new("b32")
    warps = analysis.launch.warps_per_block
    change.declare(f".shared .align 4 .b8 wattcast_sums[{4 * WARP_SIZE}];")
    if tree.combines.base in ("add", "xor"):  # of lanes beyond the warps: nothing
        beyond = [f"mov.{word} {own}, {'0f00000000' if word == 'f32' else 0};"]
    elif tree.combines.base == "mul":
        raise NotRewritableError("a product")
    else:  # the last warp's once more, which changes nothing
        beyond = [f"ld.shared.{word} {own}, [wattcast_sums+{4 * (warps - 1)}];"]
    inside_warps = change.new("pred")
    lines = [
        f"mov.u32 {thread}, %tid.x;",
        f"mov.u32 {at}, {variable};",
        f"mad.lo.u32 {at}, {thread}, 4, {at};",
        f"ld.shared.{word} {own}, [{at}];",
        *rounds,
        f"and.b32 {rest}, {thread}, {WARP_SIZE - 1};",
        f"setp.ne.u32 {lane}, {rest}, 0;",
        f"shr.u32 {warp}, {thread}, 5;",
        f"mov.u32 {sums}, wattcast_sums;",
        f"mad.lo.u32 {warp}, {warp}, 4, {sums};",
        f"@!{lane} st.shared.{word} [{warp}], {own};",
        "bar.sync 0;",
        f"setp.ge.u32 {first}, {thread}, {WARP_SIZE};",
        f"@{first} bra $wattcast_reduced;",
        *beyond,
        f"setp.lt.u32 {inside_warps}, {thread}, {warps};",
        f"mad.lo.u32 {sums}, {thread}, 4, {sums};",
        f"@{inside_warps} ld.shared.{word} {own}, [{sums}];",
        *rounds,
        f"st.shared.{word} [{at}], {own};",
        "bra.uni $wattcast_reduced;",
    ]
    for one in inside:
        change.swap(one, lines if one.position == header.start else [])
    follows = function.body.instructions[cfg.blocks[out].start]
    change.before(follows, ["$wattcast_reduced:"])
    return Finding(
        "shared_reduction",
        tuple(
            place(function, one)
            for one in inside
            if one.base in ("bar", "barrier", "bra") or one is tree.combines
        ),
        f"a reduction takes a barrier of {analysis.launch.threads_per_block} threads and two "
        "accesses of shared memory at every step; a warp can add up its lanes with shuffles",
        "add up each warp with __shfl_down_sync, store one word for each, and let the first warp "
        "add those up: one barrier is left",
        ptx=change.text(),
        at_least=True,
    )


def _rounds(opcode: str, own: str, other: str) -> list[str]:
    """Shuffles that combine what the 32 lanes of a warp hold in ``own``; the first lane has all."""
    return [
        line
        for apart in (16, 8, 4, 2, 1)
        for line in (
            f"shfl.sync.down.b32 {other}, {own}, {apart}, 31, -1;",
            f"{opcode} {own}, {own}, {other};",
        )
    ]


def warp_aggregation(evidence: Evidence) -> Iterator[Finding]:
    """Atomics of whole warps on one word, whatever the data, whose result nobody reads.

    Rewritten, shuffles combine the lanes' values and one lane does the atomic. ptxas does so itself
    for integer sums in global memory (``AtomicUse.aggregated``).
    """
    analysis = evidence.analysis
    for use in analysis.extras.atomics.uses:
        function = analysis.module.function(use.function)
        if function is None or not use.uniform or use.aggregated or not use.requests:
            continue
        one = function.body.instructions[use.position]
        opcode = f"{next((w for w in one.modifiers if w in _COMBINED), '')}.{one.modifiers[-1]}"
        whole = use.passes == use.operations == WARP_SIZE * use.requests
        if not whole or one.predicate or opcode[0] == "." or opcode[-2:] != "32":
            continue
        if any(set(writes(one)).intersection(read) for read in flow(function.body).reads):
            continue
        change = Rewriting(analysis.module, function)
        word = "f32" if opcode.endswith("f32") else "b32"
        own, other, lane = change.new(word), change.new(word), change.new("b32")
        first = change.new("pred")
        try:
            *where, value = operands_of(change.text_of(one))
        except NotRewritableError:
            continue
        change.swap(
            one,
            [
                f"mov.{word} {own}, {value};",
                *_rounds(opcode, own, other),
                f"mov.u32 {lane}, %laneid;",
                f"setp.eq.u32 {first}, {lane}, 0;",
                f"@{first} {one.opcode} {', '.join(where)}, {own};",
            ],
        )
        yield Finding(
            "warp_aggregation",
            (place(function, one),),
            f"{use.operations:.4g} atomics go to {use.space} memory, those of a warp all to the "
            "same word, one after the other",
            "add up each warp with __shfl_down_sync and let its first lane do the atomic; threads "
            "without work take part with 0",
            ptx=change.text(),
        )
