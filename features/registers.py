"""Registers per thread, estimated from the PTX alone.

PTX has registers without end; ``ptxas`` assigns real ones. The estimate is the largest number
of 32-bit registers that live values need at once, over a simplified picture of what ptxas
makes of the text:

- Parameters, constants and the addresses of variables lie in the constant bank or in the
  instruction; they take no register until they are combined with something else.
- An offset that is only added to a base (``mul.wide`` and ``add.s64``) is one instruction.
- Divisions, square roots and the like are sequences with temporaries of their own.
- Instructions are reordered to hide latency: whatever does not wait for a load is done while
  it is under way. ptxas does so while registers cost no occupancy.
- Counted loops that load are unrolled, their loads gathered.
- Some registers are always taken, and pairs must be aligned.

The numbers in the rules come from comparing with ptxas 12.9 and 13.0 (docs/gpus.md); none is
fitted to a single kernel. An estimate states its range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal, NamedTuple

from features.cfg import ControlFlowGraph
from features.dataflow import reads, writes
from features.gpus import GpuProfile
from features.launch import WARP_SIZE
from features.loops import natural_loops
from features.ptx.ir import (
    Address,
    Body,
    Function,
    Immediate,
    Instruction,
    RegisterDeclaration,
    Special,
)
from features.static_shared import static_shared_bytes

__all__ = ["RegisterEstimate", "estimate_registers", "static_shared_bytes"]

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

UNROLL = 4
"""How often ptxas unrolls a counted loop of one block."""

SPREAD = (0.75, 1.4)
"""True over estimated registers: nine in ten of the kernels compared lie inside."""

_CONSTANT_SPECIALS = ("%ntid", "%nctaid", "%warpsize", "WARP_SZ", "%envreg")
"""Special registers that are read from the constant bank."""

_WIDE_OFFSETS = ("mul.wide", "cvt.s64.s32", "cvt.u64.u32", "cvt.u64.u16", "shl.b64")
_ADDS = frozenset({"add", "sub", "mad", "shl"})

_LOADS = frozenset({"ld", "ldu", "tex", "tld4", "suld", "ldmatrix"})
_STORES = frozenset({"st", "sust", "stmatrix"})
_WAITED_FOR = _LOADS | {"atom", "shfl"}
_ORDERED = frozenset(
    {"bar", "barrier", "membar", "fence", "call", "atom", "red", "cp", "mbarrier", "wgmma"}
)  # fmt: skip
_ENDS = frozenset({"bra", "brx", "ret", "exit", "trap"})
_WORDS = {"b64": 2, "u64": 2, "s64": 2, "f64": 2, "f32x2": 2, "b128": 4, "pred": 0}
"""32-bit words of a type; all others take one."""


# --- estimate ---------------------------------------------------------------------------------


def estimate_registers(
    function: Function | Body, cfg: ControlFlowGraph, *, gpu: GpuProfile | None = None
) -> RegisterEstimate:
    """Registers per thread that ptxas would allocate, estimated from the live values.

    With a ``Function`` its ``.maxnreg``, ``.maxntid`` and ``.minnctapersm`` cap the number, as
    they do in ptxas, which then spills. ``gpu`` gives the register file that caps and
    reordering go by; without it that of most GPUs since 2012 is taken. Near-linear in the
    number of instructions.
    """
    body = function.body if isinstance(function, Function) else function
    directives = function.directives if isinstance(function, Function) else {}
    file_size, threads, most = 65536, 2048, MOST_REGISTERS
    reserved, least = RESERVED, LEAST
    if gpu is not None:
        file_size, threads = gpu.registers_per_sm, gpu.max_threads_per_sm
        most = gpu.max_registers_per_thread
        if int(gpu.compute_capability.partition(".")[0]) < 7:
            reserved, least = RESERVED_BEFORE_VOLTA, LEAST_BEFORE_VOLTA
    most = min(most, _cap(directives, file_size))
    room = file_size // threads - reserved
    words = max((demand.words(room) for demand in _demands(body, cfg)), default=0)
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


class _Demand(NamedTuple):
    """32-bit words a block needs: in text order, reordered to hide latency, and for what
    unrolling gathers on top."""

    text: int
    reordered: int
    gathered: int

    def words(self, room: int) -> int:
        """Need, if ptxas hides latency only while it has ``room`` registers to spare."""
        least = min(self.text, self.reordered)
        wanted = max(self.text, self.reordered) + self.gathered
        return max(least, min(wanted, room))


def _demands(body: Body, cfg: ControlFlowGraph) -> list[_Demand]:
    view = _view(body, cfg)
    counted = _counted_loops(cfg)
    demands = []
    for block, steps, live in zip(cfg.blocks, view.steps, _live_out(cfg, view), strict=True):
        gathered = 0
        if block.index in counted:
            gathered = (UNROLL - 1) * sum(
                view.words[register]
                for step in steps
                if body.instructions[step.position].base in _LOADS
                for register in step.writes
            )
        demands.append(
            _Demand(
                _pressure(steps, view.words, live),
                _pressure(_latency_order(body, steps), view.words, live),
                gathered,
            )
        )
    return demands


def _temporaries(instruction: Instruction) -> int:
    """Registers an instruction needs besides operands: it becomes a sequence or a call."""
    base, opcode = instruction.base, instruction.opcode
    wide = opcode.endswith(("f64", "64"))
    if base in ("div", "rem"):
        if opcode.endswith("f64"):
            return 10
        if opcode.endswith("64"):
            return 12
        if opcode.endswith("f32"):
            return 0 if ".approx" in opcode or ".full" in opcode else 5
        immediate = isinstance(instruction.operands[-1], Immediate)
        return 2 if immediate else 6
    if base in ("sqrt", "rcp", "rsqrt") and ".approx" not in opcode:
        return 8 if wide else 4
    return 0


class _Step(NamedTuple):
    """One machine-level instruction: register ids it reads and writes."""

    position: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    kills: bool
    temporaries: int


@dataclass(slots=True)
class _View:
    """The body as the machine sees it. ``words`` gives the 32-bit words of every register id."""

    steps: list[list[_Step]]
    words: list[int]


def _widths(declarations: Sequence[RegisterDeclaration]) -> dict[str, int]:
    return {item.name: _WORDS.get(item.type.removeprefix("."), 1) for item in declarations}


def _view(body: Body, cfg: ControlFlowGraph) -> _View:
    instructions = body.instructions
    read = [reads(instruction) for instruction in instructions]
    written = [writes(instruction) for instruction in instructions]
    definitions: dict[str, int] = {}
    for names in written:
        for name in names:
            definitions[name] = definitions.get(name, 0) + 1
    free = _free(instructions, read, written, definitions)
    offsets = _offsets(instructions, read, written, definitions, free)
    declared = _widths(body.registers)
    ids: dict[str, int] = {}
    words: list[int] = []

    def number(name: str) -> int:
        found = ids.get(name)
        if found is None:
            stem, _, scope = name.partition("@")
            at = f"@{scope}" if scope else ""
            width = declared.get(name)
            if width is None:
                width = declared.get(stem.rstrip("0123456789") + at, 1)
            found = ids[name] = len(words)
            words.append(width)
        return found

    steps: list[list[_Step]] = []
    for block in cfg.blocks:
        of_block: list[_Step] = []
        for position in range(block.start, block.end):
            instruction = instructions[position]
            names = written[position]
            if names and all(name in free or name in offsets for name in names):
                continue
            sources: list[int] = []
            extra = _temporaries(instruction)
            for name in read[position]:
                if name in free:
                    if _is_base(instruction, name):
                        extra += 2
                elif name in offsets:
                    sources.append(number(offsets[name]))
                else:
                    sources.append(number(name))
            of_block.append(
                _Step(
                    position,
                    tuple(dict.fromkeys(sources)),
                    tuple(number(name) for name in names),
                    instruction.predicate is None,
                    extra,
                )
            )
        steps.append(of_block)
    return _View(steps, words)


def _is_base(instruction: Instruction, name: str) -> bool:
    """The register is the base of an address."""
    return any(
        isinstance(operand, Address) and getattr(operand.base, "name", None) == name
        for operand in instruction.operands
    )


def _free(
    instructions: Sequence[Instruction],
    read: Sequence[tuple[str, ...]],
    written: Sequence[tuple[str, ...]],
    definitions: Mapping[str, int],
) -> set[str]:
    """Registers whose value needs none: parameters, constants, addresses of variables."""
    free: set[str] = set()
    for instruction, sources, names in zip(instructions, read, written, strict=True):
        if len(names) != 1 or definitions[names[0]] != 1 or instruction.predicate is not None:
            continue
        base = instruction.base
        if instruction.opcode.startswith("ld.param"):
            free.add(names[0])
        elif base == "mov" and not sources:
            value = instruction.operands[-1]
            if not isinstance(value, Special) or value.name.startswith(_CONSTANT_SPECIALS):
                free.add(names[0])
        elif base in ("cvta", "mov") and all(source in free for source in sources):
            free.add(names[0])
    return free


def _offsets(
    instructions: Sequence[Instruction],
    read: Sequence[tuple[str, ...]],
    written: Sequence[tuple[str, ...]],
    definitions: Mapping[str, int],
    free: set[str],
) -> dict[str, str]:
    """Widened indices that only ever are added to a base: name -> the index they come from."""
    other: set[str] = set()
    for instruction, sources in zip(instructions, read, strict=True):
        if instruction.base not in _ADDS:
            other.update(sources)
    found: dict[str, str] = {}
    for instruction, sources, names in zip(instructions, read, written, strict=True):
        if (
            len(names) == 1
            and names[0] not in other
            and definitions[names[0]] == 1
            and instruction.predicate is None
            and instruction.opcode.startswith(_WIDE_OFFSETS)
            and len(sources) == 1
            and sources[0] not in free
            and definitions.get(sources[0]) == 1
        ):
            found[names[0]] = found.get(sources[0], sources[0])
    return found


def _live_out(cfg: ControlFlowGraph, view: _View) -> list[int]:
    """Bit set of the registers alive at the end of every block."""
    use, define = [], []
    for steps in view.steps:
        used = defined = 0
        for step in steps:
            for register in step.reads:
                if not defined >> register & 1:
                    used |= 1 << register
            if step.kills:
                for register in step.writes:
                    defined |= 1 << register
        use.append(used)
        define.append(defined)
    live_in = [0] * len(cfg.blocks)
    live_out = [0] * len(cfg.blocks)
    waiting = list(range(len(cfg.blocks)))
    queued = [True] * len(cfg.blocks)
    while waiting:
        index = waiting.pop()
        queued[index] = False
        block = cfg.blocks[index]
        out = 0
        for successor in block.successors:
            out |= live_in[successor]
        live_out[index] = out
        into = use[index] | (out & ~define[index])
        if into != live_in[index]:
            live_in[index] = into
            for predecessor in block.predecessors:
                if not queued[predecessor]:
                    queued[predecessor] = True
                    waiting.append(predecessor)
    return live_out


def _bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def _pressure(steps: Sequence[_Step], words: Sequence[int], out: int) -> int:
    """Most 32-bit words alive at once while ``steps`` run in this order."""
    alive = set(_bits(out))
    now = sum(words[register] for register in alive)
    most = now
    for step in reversed(steps):
        born = now + sum(words[register] for register in step.writes if register not in alive)
        if step.kills:
            for register in step.writes:
                if register in alive:
                    alive.discard(register)
                    now -= words[register]
        for register in step.reads:
            if register not in alive:
                alive.add(register)
                now += words[register]
        most = max(most, born, now + step.temporaries)
    return most


def _latency_order(body: Body, steps: Sequence[_Step]) -> list[_Step]:
    """Steps sorted by how many loads they wait for, one after another; text order inside."""
    level_of: dict[int, int] = {}
    readers: dict[int, int] = {}
    floor = top = 0
    stored: dict[str, int] = {}
    loaded: dict[str, int] = {}
    levels: list[int] = []
    for step in steps:
        instruction = body.instructions[step.position]
        base, opcode = instruction.base, instruction.opcode
        level = 0
        for register in step.reads:
            level = max(level, level_of.get(register, 0))
        for register in step.writes:
            level = max(level, readers.get(register, 0), level_of.get(register, 0))
        is_load = base in _LOADS and not opcode.startswith("ld.param")
        space = "shared" if ".shared" in opcode else "global"
        if is_load:
            level = max(level, floor, 0 if ".nc" in opcode else stored.get(space, 0))
            loaded[space] = max(loaded.get(space, 0), level)
        elif base in _STORES:
            level = max(level, floor, stored.get(space, 0), loaded.get(space, 0))
            stored[space] = level
        elif base in _ORDERED:
            level = max(level, floor, *stored.values(), *loaded.values(), 0)
            floor = level
        elif base in _ENDS:
            level = top
        top = max(top, level)
        for register in step.reads:
            readers[register] = max(readers.get(register, 0), level)
        for register in step.writes:
            level_of[register] = level + (base in _WAITED_FOR)
        levels.append(level)
    order = sorted(range(len(steps)), key=lambda index: (levels[index], index))
    return [steps[index] for index in order]


def _counted_loops(cfg: ControlFlowGraph) -> set[int]:
    """Blocks that are loops of their own, left by comparing a counter of constant step."""
    return {
        loop.header
        for loop in natural_loops(cfg).loops
        if loop.single_block and _is_counted(cfg.instructions(cfg.blocks[loop.header]))
    }


def _is_counted(instructions: Sequence[Instruction]) -> bool:
    counters: set[str] = set()
    for instruction in instructions:
        if (
            instruction.base in ("add", "sub")
            and instruction.predicate is None
            and isinstance(instruction.operands[-1], Immediate)
            and reads(instruction) == writes(instruction)
        ):
            counters.update(writes(instruction))
    return any(
        instruction.base == "setp" and not counters.isdisjoint(reads(instruction))
        for instruction in instructions
    )
