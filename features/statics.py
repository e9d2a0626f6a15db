"""What the PTX of a kernel tells without launch or GPU: ``statics(module, function)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Literal, NamedTuple

from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph, build_cfg
from wattcast.features.dataflow import reads, writes
from wattcast.features.errors import Diagnostic, checkpoint
from wattcast.features.gpus import GpuProfile
from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.loops import UNROLL, LoopForest, natural_loops, reachable
from wattcast.features.ptx import ir
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.register_view import Step, View, bit_set, machine_view
from wattcast.features.schemas.counting import PtxCounts, count

# Registers per thread, estimated from the PTX alone.
#
# PTX has registers without end; ``ptxas`` assigns real ones. The estimate is the largest number
# of 32-bit registers that live values need at once, over a simplified picture of what ptxas
# makes of the text:
#
# - Parameters, constants and the addresses of variables lie in the constant bank or in the
#   instruction; they take no register until they are combined with something else.
# - An offset that is only added to a base (``mul.wide`` and ``add.s64``) is one instruction.
# - Divisions, square roots and the like are sequences with temporaries of their own.
# - Instructions are reordered to hide latency: whatever does not wait for a load is done while
#   it is under way. ptxas does so while registers cost no occupancy.
# - Counted loops that load are unrolled, their loads gathered.
# - Some registers are always taken, and pairs must be aligned.
#
# The numbers in the rules come from comparing with ptxas 12.9 and 13.0 (docs/gpus.md); none is
# fitted to a single kernel. An estimate states its range.

How = Literal["given", "ptxas", "liveness"]

MOST_REGISTERS = 255
"""Registers a thread can have (CUDA C++ Programming Guide, technical specifications)."""


@dataclass(frozen=True, slots=True)
class RegisterEstimate:
    """32-bit registers of a thread, and the range the true number is expected in.

    ``how``: ``given`` by the user, counted by ``ptxas`` (both exact: low = high), or
    estimated by ``liveness``.
    """

    registers_per_thread: int
    low: int
    high: int
    how: How


# --- what ptxas is known to do; figures compared in docs/gpus.md ---------------------------

RESERVED = 5
"""Registers beyond those of live values, capability 7.0 on: the stack pointer, a zero or
constant in hand, and what aligning pairs leaves unused. An empty kernel takes 4."""

RESERVED_BEFORE_VOLTA = 3
"""The same on 3.x to 6.x, where the stack pointer is only taken if used (empty kernel: 2)."""

LEAST, LEAST_BEFORE_VOLTA = 4, 2
"""Fewest registers ptxas reports for a kernel: those of an empty one."""

SPREAD = (0.75, 1.4)
"""True over estimated registers: nine in ten of the kernels compared lie inside."""


# --- estimate ---------------------------------------------------------------------------------


def estimate_registers(
    function: ir.Function | ir.Body, cfg: ControlFlowGraph, *, gpu: GpuProfile | None = None
) -> RegisterEstimate:
    """Registers per thread that ptxas would allocate, estimated from the live values.

    With a ``Function`` its ``.maxnreg``, ``.maxntid`` and ``.minnctapersm`` cap the number, as
    they do in ptxas, which then spills. ``gpu`` gives the register file that caps and
    reordering go by; without it that of most GPUs since 2012 is taken. Near-linear in the
    number of instructions.
    """
    body = function.body if isinstance(function, ir.Function) else function
    directives = function.directives if isinstance(function, ir.Function) else {}
    file_size, threads, most = 65536, 2048, MOST_REGISTERS
    reserved, least = RESERVED, LEAST
    if gpu is not None:
        file_size, threads = gpu.registers_per_sm, gpu.max_threads_per_sm
        most = gpu.max_registers_per_thread
        if int(gpu.compute_capability.partition(".")[0]) < 7:
            reserved, least = RESERVED_BEFORE_VOLTA, LEAST_BEFORE_VOLTA
    most = min(most, _cap(directives, file_size))
    room = file_size // threads - reserved
    words = _words_needed(body, cfg, room)
    registers = min(max(words + reserved, least), most)
    low = max(min(registers, least), int(registers * SPREAD[0]))
    high = min(ceil(registers * SPREAD[1]), most)
    return RegisterEstimate(registers, low, max(high, registers), "liveness")


def _cap(directives: Mapping[str, tuple[int, ...]], file_size: int) -> int:
    """Registers that performance directives leave a thread (PTX ISA 9.0, 11.4)."""
    cap = MOST_REGISTERS
    if directives.get("maxnreg"):
        cap = min(cap, directives["maxnreg"][0])
    threads = prod(directives.get("maxntid") or directives.get("reqntid") or (0,))
    if threads > 0:
        blocks = (directives.get("minnctapersm") or (1,))[0]
        warps = -(-threads // WARP_SIZE) * max(blocks, 1)
        # Registers are handed out to warps, 8 per thread at a time.
        cap = min(cap, max(file_size // (warps * WARP_SIZE) // 8 * 8, 16))
    return max(cap, 1)


# --- live values ------------------------------------------------------------------------------


class _Flow(NamedTuple):
    """What lives at a block's end: bits of ``numbers`` and its words; and the words of all that
    live anywhere in the block."""

    out: int
    numbers: Sequence[int]
    words: int
    bound: int


def _flow(cfg: ControlFlowGraph, view: View) -> list[_Flow]:
    """Live registers of every block. Only those that live across blocks take part in the passes.

    Raises TooComplexError where these, times blocks, are beyond the body's limits.
    """
    used: list[set[int]] = []
    defined: list[set[int]] = []
    touched: list[set[int]] = []
    for steps in view.steps:
        checkpoint()
        reading: set[int] = set()
        ending: set[int] = set()
        writing: set[int] = set()
        for step in steps:
            reading.update([register for register in step.reads if register not in ending])
            writing.update(step.writes)
            if step.kills:
                ending.update(step.writes)
        used.append(reading)
        defined.append(ending)
        touched.append(writing | reading)
    numbers = sorted(set().union(*used))
    place = {register: index for index, register in enumerate(numbers)}
    cfg.body.limits.hold(
        "max_kernel_liveness",
        len(numbers) * len(cfg.blocks),
        f"values alive across blocks, times blocks ({len(numbers):,} x {len(cfg.blocks):,})",
        cfg.body.instructions[0].line if cfg.body.instructions else 1,
    )
    use = [bit_set(place[register] for register in some) for some in used]
    define = [bit_set(place[r] for r in some if r in place) for some in defined]
    live_in = list(use)
    live_out = [0] * len(cfg.blocks)
    # Successors first, so that a pass carries values from end to entry; each loop around another
    # takes one pass more. What cannot be reached comes last.
    order = cfg.reverse_post_order[::-1]
    order += tuple(block.index for block in cfg.blocks if block.index not in cfg.reachable)
    changed = True
    while changed:
        changed = False
        for index in order:
            checkpoint()
            out = 0
            for successor in cfg.blocks[index].successors:
                out |= live_in[successor]
            live_out[index] = out
            into = use[index] | (out & ~define[index])
            if into != live_in[index]:
                live_in[index] = into
                changed = True
    across = view.of(numbers)
    found = []
    for out, some in zip(live_out, touched, strict=True):
        inside = sum(view.words[register] for register in some if register not in place)
        within = bit_set(place[register] for register in some if register in place)
        found.append(_Flow(out, numbers, across.total(out), across.total(out | within) + inside))
    return found


def _words_needed(body: ir.Body, cfg: ControlFlowGraph, room: int) -> int:
    """Most 32-bit words alive at once, latency hidden as far as ``room`` allows."""
    view = machine_view(body, cfg)
    flow = _flow(cfg, view)
    counted = _counted_loops(cfg)
    bounds: list[tuple[int, int, int]] = []
    for index, steps in enumerate(view.steps):
        gathered = 0
        if index in counted:
            loads = [step for step in steps if step.kind.role == "load"]
            gathered = (UNROLL - 1) * sum(
                view.words[register] for step in loads for register in step.writes
            )
        extra = max((step.temporaries for step in steps), default=0)
        bounds.append((flow[index].bound + extra, gathered, index))
    most = 0
    # The largest blocks first: what cannot need more than was found already is not looked at.
    for bound, gathered, index in sorted(bounds, reverse=True):
        if max(bound, min(bound + gathered, room)) <= most:
            continue
        steps, alive = view.steps[index], flow[index]
        text = _pressure(steps, view, alive)
        reordered = text
        if any(step.kind.waited_for for step in steps):
            reordered = _pressure(_latency_order(steps), view, alive)
        # ptxas hides latency only while it has registers to spare.
        wanted = min(max(text, reordered) + gathered, room)
        most = max(most, min(text, reordered), wanted if steps else 0)
    return most


def _pressure(steps: Sequence[Step], view: View, at_end: _Flow) -> int:
    """Most 32-bit words alive at once while ``steps`` run in this order."""
    words = view.words
    # A set of numbers is faster to change than a long bit string.
    bits = reversed(f"{at_end.out:b}")
    alive = {at_end.numbers[place] for place, bit in enumerate(bits) if bit == "1"}
    now = most = at_end.words
    checkpoint()
    for step in reversed(steps):
        for register in step.writes:
            if register not in alive:
                # Never read: it still needs a place when written.
                most = max(most, now + words[register])
            elif step.kills:
                alive.discard(register)
                now -= words[register]
        for register in step.reads:
            if register not in alive:
                alive.add(register)
                now += words[register]
        if now + step.temporaries > most:
            most = now + step.temporaries
    return most


def spill_weights(cfg: ControlFlowGraph, registers: int) -> tuple[float, ...]:
    """By block: words that do not fit into so many ``registers`` there, times its steps.

    Of a loop only what it touches counts. What merely lives through it is spilled around it: a
    spill costs by how often it is executed (Chaitin, Register Allocation and Spilling via Graph
    Coloring, 1982).
    """
    view = machine_view(cfg.body, cfg)
    flow, forest = _flow(cfg, view), natural_loops(cfg)
    touched = [
        {each for block in loop.blocks for step in view.steps[block]
         for each in (*step.reads, *step.writes)}
        for loop in forest.loops
    ]  # fmt: skip
    weights = []
    for steps, alive, loop in zip(view.steps, flow, forest.innermost, strict=True):
        if loop >= 0:
            inside = [place for place, each in enumerate(alive.numbers) if each in touched[loop]]
            out = alive.out & bit_set(inside)
            alive = alive._replace(out=out, words=view.of(alive.numbers).total(out))
        weights.append(max(0.0, _pressure(steps, view, alive) + RESERVED - registers) * len(steps))
    return tuple(weights)


def _latency_order(steps: Sequence[Step]) -> list[Step]:
    """Steps sorted by how many loads they wait for, one after another; text order inside.

    Memory accesses that may touch the same bytes keep their order, and nothing in memory
    passes a barrier.
    """
    checkpoint()
    ready: dict[int, int] = {}
    read_at: dict[int, int] = {}
    stored = {"shared": 0, "global": 0}
    loaded = {"shared": 0, "global": 0}
    floor = top = 0
    levels: list[int] = []
    for kind, read, written, _, _ in steps:
        level = 0
        for register in read:
            if (at := ready.get(register, 0)) > level:
                level = at
        for register in written:
            level = max(level, read_at.get(register, 0), ready.get(register, 0))
        role = kind.role
        if role != "plain":
            space = kind.space
            if role == "load":
                level = max(level, floor, 0 if kind.read_only else stored[space])
                loaded[space] = max(loaded[space], level)
            elif role == "store":
                level = max(level, floor, stored[space], loaded[space])
                stored[space] = level
            elif role == "ordered":
                level = max(level, floor, *stored.values(), *loaded.values())
                floor = level
            else:
                level = top
        if level > top:
            top = level
        if level:
            for register in read:
                if level > read_at.get(register, 0):
                    read_at[register] = level
        for register in written:
            ready[register] = level + kind.waited_for
        levels.append(level)
    order = sorted(range(len(steps)), key=levels.__getitem__)  # stable: text order inside
    return [steps[index] for index in order]


def _counted_loops(cfg: ControlFlowGraph) -> set[int]:
    """Blocks that are loops of their own, left by comparing a counter of constant step."""
    return {
        loop.header
        for loop in natural_loops(cfg).loops
        if loop.single_block and _is_counted(cfg.instructions(cfg.blocks[loop.header]))
    }


def _is_counted(instructions: Sequence[ir.Instruction]) -> bool:
    counters: set[str] = set()
    for instruction in instructions:
        if (
            instruction.base in ("add", "sub")
            and instruction.predicate is None
            and instruction.operands
            and isinstance(instruction.operands[-1], ir.Immediate)
            and reads(instruction) == writes(instruction)
        ):
            counters.update(writes(instruction))
    return any(
        instruction.base == "setp" and not counters.isdisjoint(reads(instruction))
        for instruction in instructions
    )


# --- shared memory a kernel declares: what it takes whatever the launch adds ------------------


def static_shared_bytes(module: ir.Module, function: ir.Function) -> int:
    """Bytes of ``.shared`` variables a kernel uses, its own and its callees', each aligned.

    Variables of the module count if the kernel or a function it calls (directly or through
    others) names them. ``.extern`` and unsized arrays are dynamic shared memory: not counted.
    A call through a register may reach any function of the module: all are followed then.
    """
    outside = {item.name: item for item in module.variables if _is_static_shared(item)}
    own_body = function.body
    if (
        not outside
        and not any(_is_static_shared(item) for item in own_body.variables)
        and not any(instruction.opcode.startswith("call") for instruction in own_body.instructions)
    ):
        return 0
    used: dict[tuple[str, str], ir.Variable] = {}
    reached = list(reachable(module, function).values())
    if any(_is_indirect_call(one) for each in reached for one in each.body.instructions):
        reached += [each for each in module.functions if not each.is_entry and not each.declaration]
    for each in reached:
        checkpoint()
        own = {item.name: item for item in each.body.variables if _is_static_shared(item)}
        used |= {(each.name, name): item for name, item in own.items()}
        operands = (operand for one in each.body.instructions for operand in one.operands)
        parts = (part for operand in operands for part in ir.parts(operand))
        named = (part.base if isinstance(part, ir.Address) else part for part in parts)
        names = {symbol.name for symbol in named if isinstance(symbol, ir.Symbol)}
        used |= {("", name): outside[name] for name in (names - own.keys()) & outside.keys()}
    total = 0
    for item in sorted(used.values(), key=lambda item: -item.align):
        align = max(item.align, 1)
        total = -(-total // align) * align + item.bytes
    return total


def _is_static_shared(item: ir.Variable) -> bool:
    return item.space == "shared" and not item.external and item.bytes > 0


def _is_indirect_call(instruction: ir.Instruction) -> bool:
    if instruction.base != "call":
        return False
    target = next((item for item in instruction.operands if not isinstance(item, ir.Group)), None)
    return isinstance(target, ir.Register)


@dataclass(frozen=True, eq=False)
class KernelStatics:
    """What the PTX of one kernel tells without launch or GPU."""

    function: Function
    cfg: ControlFlowGraph
    loops: LoopForest
    counts: PtxCounts
    static_shared_bytes: int
    diagnostics: tuple[Diagnostic, ...]
    _registers: dict[str, RegisterEstimate] = field(default_factory=dict, init=False, repr=False)

    def registers(self, gpu: GpuProfile) -> RegisterEstimate:
        """The liveness estimate; worked out only where nobody gives the number.

        It depends on the compute capability alone, and is kept for it.
        """
        known = self._registers.get(gpu.compute_capability)
        if known is None:
            known = estimate_registers(self.function, self.cfg, gpu=gpu)
            self._registers[gpu.compute_capability] = known
        return known


def statics(module: Module, function: Function) -> KernelStatics:
    """Analyse a kernel's text once; later calls for the same function are look-ups.

    Raises PtxError where the body is not PTX, TooComplexError where it is beyond its limits.
    """
    return _statics(function, module)


@attached
def _statics(function: Function, module: Module) -> KernelStatics:
    body = function.body
    cfg = build_cfg(body)
    loops = natural_loops(cfg)
    checkpoint()
    return KernelStatics(
        function=function,
        cfg=cfg,
        loops=loops,
        counts=count(body),
        static_shared_bytes=static_shared_bytes(module, function),
        diagnostics=(
            *module.diagnostics,
            *body.diagnostics,
            *cfg.diagnostics,
            *loops.diagnostics,
            *_unknown_opcodes(function),
        ),
    )


def _unknown_opcodes(function: Function) -> list[Diagnostic]:
    """One warning per unknown opcode, at its first place."""
    first: dict[str, Diagnostic] = {}
    for instruction in function.body.instructions:
        opcode = instruction.opcode
        if opcode not in first and not classify(opcode).known:
            detail = f"{opcode} is not a known PTX instruction; it is counted as unknown"
            place = (instruction.line, instruction.column)
            first[opcode] = Diagnostic("unknown_opcode", detail, *place)
    return list(first.values())
