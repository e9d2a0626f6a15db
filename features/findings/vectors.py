"""Kernels that move words and do little else.

One word a thread: four at once take a quarter of the instructions that load, store and compute
indices (CUDA C++ Best Practices Guide; J. Luitjens, Increase Performance with Vectorized Memory
Access, NVIDIA 2013). Words that pass device memory once: halves are half as many bytes. Blocks too
short for what starting each takes: as many as fit, each doing the work of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.dataflow import reads, writes
from wattcast.features.findings.finding import (
    Difference,
    Evidence,
    Finding,
    NotRewritableError,
    Rewriting,
    operands_of,
    place,
)
from wattcast.features.findings.tiles import summed_accesses
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.ptx.ir import Body, Instruction, Register, Special

WORDS = 4
"""Words of the widest access: 16 bytes (PTX ISA, vectors of ``ld``)."""

WORD_BYTES = 4

_INDEX = frozenset({"%tid.x", "%ntid.x", "%ctaid.x"})
_FORBIDDEN = frozenset({"shared", "local", "generic", "const"})


def narrow_accesses(evidence: Evidence) -> Iterator[Finding]:
    """Kernels without loops whose threads load and store neighbouring words of 4 bytes.

    Rewritten, a thread does four neighbours in a quarter of the blocks, and what is computed from
    loaded words is done four times. Buffers are taken to be aligned to 16 bytes.
    """
    analysis = evidence.analysis
    function, launch = analysis.function, analysis.launch
    if analysis.loops.loops or launch.blocks % WORDS or launch.block[0] != launch.threads_per_block:
        return
    if launch.grid[0] != launch.blocks or not _plain(function.body):
        return
    if launch.blocks < WORDS * analysis.gpu.sm_count:
        return  # a quarter of the blocks would leave SMs without one
    body = function.body
    moves = _moves(body)
    known = {load.one.position: load for load in summed_accesses(analysis, None, moves)}
    step = (WORD_BYTES, 0, 0), (WORD_BYTES * launch.block[0], 0, 0)
    if not moves or any(
        one.position not in known
        or (known[one.position].threads, known[one.position].blocks) != step
        or known[one.position].width != WORD_BYTES
        or known[one.position].offset % (WORDS * WORD_BYTES)
        for one in moves
    ):
        return
    try:
        ptx = _widened(analysis, moves)
    except NotRewritableError:
        return
    yield Finding(
        "narrow_accesses",
        tuple(place(function, one) for one in moves),
        f"each thread moves words of {WORD_BYTES} bytes by {len(moves)} instructions, side by side "
        "with its neighbours",
        f"let a thread load and store {WORDS} neighbours at once (float4, int4), in a quarter of "
        "the blocks",
        ptx=ptx,
        grid=launch.blocks // WORDS,
    )


LEAST_WAVES = 4.0
"""Waves of blocks from which those that fit once may do the work of all: with fewer, some would do
a good part more than others."""


def persistent_blocks(evidence: Evidence) -> Iterator[Finding]:
    """Many blocks without loops, of which the board starts one after another.

    Rewritten, as many as fit at once go round over the numbers of all (persistent threads: Gupta,
    Stuart and Owens, A Study of Persistent Threads Style GPU Programming, InPar 2012), with a
    barrier between rounds where they share memory. It computes the same.
    """
    analysis = evidence.analysis
    launch, body = analysis.launch, analysis.function.body
    room = analysis.gpu.sm_count * analysis.occupancy.resident_blocks_per_sm
    if analysis.loops.loops or launch.grid[0] != launch.blocks:
        return
    if launch.blocks < LEAST_WAVES * room or not _knows_index_alone(body):
        return
    try:
        ptx = in_rounds(analysis, room)
    except NotRewritableError:
        return
    last = body.instructions[-1]
    yield Finding(
        "persistent_blocks",
        (place(analysis.function, last),),
        f"{launch.blocks} blocks without a loop are started one after another, where {room} fit on "
        "the board at once",
        f"launch {room} blocks, and let each step through the work by gridDim.x "
        "(cudaOccupancyMaxActiveBlocksPerMultiprocessor)",
        ptx=ptx,
        grid=room,
    )


def in_rounds(analysis: KernelAnalysis, room: int) -> str:
    """The kernel with its body in a loop over numbers of blocks."""
    instructions = analysis.function.body.instructions
    change = Rewriting(analysis.module, analysis.function)
    number, more = change.new("b32"), change.new("pred")
    change.before(instructions[0], [f"mov.u32 {number}, %ctaid.x;", "$wattcast_blocks:"])
    for one in instructions:
        if Special("%ctaid.x") in one.operands:
            result = operands_of(change.text_of(one))[0]
            change.replace(one, [f"mov.u32 {result}, {number};"])
        elif one.base == "ret":
            change.replace(one, ["bra $wattcast_next;"])
    last = instructions[-1]
    if last.base != "ret" or last.predicate is not None:
        raise NotRewritableError("it does not end with a return")
    shares = any(classify(one.opcode).space == "shared" for one in instructions)
    lines = (
        "$wattcast_next:",
        *(["bar.sync 0;"] if shares else []),
        f"add.u32 {number}, {number}, {room};",
        f"setp.lt.u32 {more}, {number}, {analysis.launch.blocks};",
        f"@{more} bra $wattcast_blocks;",
        "ret;",
    )
    change.swap(last, lines)
    return change.text()


MOST_ARITHMETIC = 16.0
"""FP32 instructions of a lane for each float that passes device memory, above which a launch is no
stream: a V100 does 31 (7.8e12 a second, 9.0e11 bytes), later boards more."""


def half_storage(evidence: Evidence) -> Iterator[Finding]:
    """Floats that a launch loads and stores and does little else with.

    Mended, they lie in memory in halves and are converted by an instruction each. What else there
    is to mend comes first (``find``).
    """
    activity, difference, places = evidence.activity, Difference(), []
    moved = 0.0
    for function, events in evidence.functions():
        for one in function.body.instructions:
            facts, at = classify(one.opcode), one.position
            beyond = float(events.dram_sectors[at])
            moves = facts.category in ("load", "store") and facts.space == "global"
            if not moves or facts.type != "f32" or not beyond:
                continue
            kind, way = ("load", "read") if facts.category == "load" else ("store", "write")
            difference.add(f"global_{kind}_sectors", -0.5 * float(events.global_sectors[at]))
            difference.add("l2_sectors", -0.5 * float(events.l2_sectors[at]))
            difference.add(f"dram_{way}_sectors", -0.5 * beyond)
            converted = float(events.warp_executions[at]) * max(
                1, facts.bytes_per_lane // WORD_BYTES
            )
            difference.more("cvt.f32.f16" if kind == "load" else "cvt.rn.f16.f32", converted)
            places.append(place(function, one))
            moved += beyond
    every = activity.dram_read_sectors + activity.dram_write_sectors
    done = activity.fp32_instructions * WARP_SIZE * WORD_BYTES / SECTOR_BYTES
    if 2 * moved < every or done > MOST_ARITHMETIC * moved:
        return
    yield Finding(
        "half_storage",
        tuple(places),
        f"{moved / every:.0%} of the {every * SECTOR_BYTES:.3g} bytes that pass device memory are "
        "single-precision numbers",
        "keep these arrays as __half or __nv_bfloat16 and compute in float, where 11 or 8 bits of "
        "each number suffice",
        difference.applied(activity),
    )


def _plain(body: Body) -> bool:
    """Whether a body does nothing that its threads do together, and knows its index alone."""
    for one in body.instructions:
        facts = classify(one.opcode)
        if facts.category in ("barrier", "atomic", "texture", "surface", "copy"):
            return False
        if facts.space in _FORBIDDEN or facts.pipe == "tensor" or one.base in ("call", "shfl"):
            return False
    return _knows_index_alone(body)


def _knows_index_alone(body: Body) -> bool:
    """Whether a body ends by returns, calls nothing, copies nothing that goes on beside it, and
    knows nothing of its launch but its index along x."""
    for one in body.instructions:
        special = {each.name for each in one.operands if isinstance(each, Special)}
        if special - _INDEX or (special and one.base != "mov"):
            return False
        if one.base in ("call", "exit") or classify(one.opcode).category == "copy":
            return False
    return True


def _moves(body: Body) -> list[Instruction]:
    """Loads and stores of global memory."""
    return [
        one
        for one in body.instructions
        if classify(one.opcode).space == "global" and classify(one.opcode).accesses_memory
    ]


def _widened(analysis: KernelAnalysis, moves: list[Instruction]) -> str:
    body = analysis.function.body
    change = Rewriting(analysis.module, analysis.function)
    copies: list[dict[str, str]] = [{} for _ in range(WORDS)]

    def copied(name: str) -> None:
        for number, names in enumerate(copies):
            names[name] = change.new(_type(body, name)) if number else name

    for one in body.instructions:
        facts = classify(one.opcode)
        special = next((each.name for each in one.operands if isinstance(each, Special)), "")
        if special == "%tid.x":
            result = operands_of(change.text_of(one))[0]
            change.after(one, [f"shl.b32 {result}, {result}, {WORDS.bit_length() - 1};"])
        elif special == "%ntid.x":
            result = operands_of(change.text_of(one))[0]
            change.replace(one, [f"mov.u32 {result}, {WORDS * analysis.launch.block[0]};"])
        elif one in moves:
            _widen(change, one, copies, load=facts.category == "load", copied=copied)
        elif copies[0].keys() & set(reads(one)):
            if facts.category == "control" or one.predicate in copies[0]:
                raise NotRewritableError("loaded words decide the way")
            for name in writes(one):
                copied(name)
            text = change.text_of(one)
            change.replace(one, [_renamed(one.opcode, text, names) for names in copies])
    return change.text()


def _widen(
    change: Rewriting,
    one: Instruction,
    copies: list[dict[str, str]],
    *,
    load: bool,
    copied: Callable[[str], None],
) -> None:
    """A load or store of a vector in the place of one of a word."""
    head, _, kind = one.opcode.rpartition(".")
    first, second = operands_of(change.text_of(one))
    value = first if load else second
    if not isinstance(one.operands[0 if load else 1], Register) or "v2" in head or "v4" in head:
        raise NotRewritableError("no register is moved")
    if load:
        copied(value)
    words = ", ".join(names.get(value, value) for names in copies)
    vector = f"{{{words}}}"
    parts = (vector, second) if load else (first, vector)
    change.replace(one, [f"{head}.v{WORDS}.{kind} {', '.join(parts)};"])


def _renamed(opcode: str, text: str, names: Mapping[str, str]) -> str:
    return f"{opcode} {', '.join(names.get(each, each) for each in operands_of(text))};"


def _type(body: Body, name: str) -> str:
    """The declared type of a register."""
    for each in body.registers:
        rest = name.removeprefix(each.name)
        if rest != name and (not rest or rest.isdigit()):
            return each.type.lstrip(".")
    raise NotRewritableError(f"{name} is declared nowhere")
