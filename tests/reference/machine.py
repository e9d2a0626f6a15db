"""The scalar reference interpreter: one thread at a time, plain Python, no vectors.

``run`` executes a whole launch and returns memory and, per PTX instruction, the counts that the
README of the fixture kernels defines. Blocks run one after the other, the warps of a block in
turn, each until all its threads wait at a block barrier or have left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from tests.reference.compile import (
    ACCESS,
    BARRIER,
    BRANCH,
    CALL,
    COLLECTIVE,
    PLAIN,
    RETURN,
    WAIT,
    Code,
    Step,
)
from tests.reference.counters import sectors, shared_transactions
from tests.reference.memory import (
    BUFFER_BASE,
    TEXTURE_BASE,
    GlobalMemory,
    TensorMap,
    Texture,
    buffer_addresses,
)
from tests.reference.parse import InterpreterError, parse
from tests.reference.slots import SPECIALS

WARP = 32
FIRST_SPECIAL = 2  # after the sink and the carry flag, see slots.py
NO_LIMIT = 1 << 62

RUNNING, AT_COLLECTIVE, AT_BARRIER, AT_PHASE, DONE = range(5)


class PerInstruction(NamedTuple):
    """Counts of one PTX instruction over the launch.

    ``index`` counts instructions within ``function``; ``line`` is the PTX line, ``source_line``
    that of the last ``.loc`` of file 1. ``sectors``: 32-byte sectors of global memory;
    ``shared_transactions``: with bank conflicts.
    """

    function: str
    index: int
    line: int
    source_line: int
    opcode: str
    warp_executions: int
    active_lanes: int
    sectors: int
    shared_transactions: int


class ReferenceResult(NamedTuple):
    """``memory``: buffers by argument name after the launch. ``per_instruction``: the kernel's
    instructions in order, then those of every device function that ran."""

    memory: dict[str, np.ndarray[Any, np.dtype[Any]]]
    per_instruction: list[PerInstruction]


@dataclass(eq=False)
class Frame:
    """What a call puts aside."""

    return_to: int
    regs: list[int]
    params: bytearray
    local_top: int
    results: list[tuple[int, int, int]]  # offset in the callee, offset in the caller, bytes


class Thread:
    __slots__ = (
        "block", "frames", "lane", "local", "local_top", "params", "pc", "regs", "specials",
        "state", "warp",
    )  # fmt: skip

    def __init__(self, block: Block, linear: int, specials: list[int]) -> None:
        self.block = block
        self.warp, self.lane = divmod(linear, WARP)
        self.specials = specials
        self.frames: list[Frame] = []
        self.local = bytearray()
        self.local_top = 0
        self.params = bytearray()
        self.regs: list[int] = []
        self.pc = 0
        self.state = RUNNING

    def enter(self, code: Code, name: str, params: bytearray) -> None:
        """Begin ``name`` with its parameters in place."""
        layout = code.layout(name)
        self.params = params
        self.regs = layout.slots.initial.copy()
        self.regs[FIRST_SPECIAL : FIRST_SPECIAL + len(SPECIALS)] = self.specials
        for variable, offset in layout.param_offsets.items():
            self.regs[layout.slots.frame_symbols[variable]] = offset
        base = (self.local_top + 15) // 16 * 16
        for variable, offset in layout.local_offsets.items():
            self.regs[layout.slots.frame_symbols[variable]] = base + offset
        self.local_top = base + layout.local_bytes
        self.local.extend(bytes(max(0, self.local_top - len(self.local))))
        self.pc = layout.base


@dataclass(eq=False)
class Block:
    """``arrivals``: lanes that announced themselves at a barrier without waiting, by number.
    ``mbarriers``: barriers in shared memory by address."""

    memory: GlobalMemory
    shared: bytearray
    tensor_maps: list[TensorMap]
    arrivals: Counter[int] = field(default_factory=Counter)
    mbarriers: dict[int, Any] = field(default_factory=dict)


class Event(NamedTuple):
    """A warp execution of a memory access or of a block barrier (``touched`` empty).

    ``touched``: space, lane, address and bytes of every access of an active lane. Matrix
    fragments (``wmma``, ``ldmatrix``) are no events.
    """

    block: int
    warp: int
    function: str
    index: int
    opcode: str
    touched: list[tuple[str, int, int, int]]


class _Launch:
    def __init__(
        self, code: Code, max_steps: int, on_event: Callable[[Event], None] | None
    ) -> None:
        self.code = code
        self.on_event = on_event
        self.block = self.warp = 0
        self.steps_left = max_steps
        size = len(code.steps)
        self.executions = [0] * size
        self.lanes = [0] * size
        self.sectors = [0] * size
        self.transactions = [0] * size

    # --- one warp ---------------------------------------------------------------

    def run_warp(self, warp: list[Thread], patient: bool) -> None:
        """Lockstep until no thread of the warp can go on.

        While others wait for a phase of a memory barrier, nobody goes past them if ``patient``:
        they would meet again there.
        """
        while True:
            self.release(warp)
            behind = [t.pc for t in warp if t.state == AT_PHASE and patient]
            barred = min(behind, default=NO_LIMIT)
            ready = [t for t in warp if t.state == RUNNING and t.pc < barred]
            if not ready:
                for t in warp if not behind else ():
                    if t.state == AT_COLLECTIVE:
                        line = self.code.steps[t.pc].line
                        raise InterpreterError(f"line {line}: lanes wait for lanes that never come")
                return
            depth = max(len(t.frames) for t in ready)
            deepest = [t for t in ready if len(t.frames) == depth]
            pc = min(t.pc for t in deepest)
            group = [t for t in deepest if t.pc == pc]
            others = [t.pc for t in deepest if t.pc != pc]
            self.run_group(group, pc, min([*others, barred]))

    def run_group(self, group: list[Thread], pc: int, limit: int) -> None:
        """Run ``group`` until it branches, waits, or reaches ``limit``, where others stand."""
        while True:
            step = self.code.step(pc)
            self.steps_left -= 1
            if self.steps_left < 0:
                raise InterpreterError(f"line {step.line}: more warp instructions than allowed")
            if step.kind == COLLECTIVE:
                for t in group:
                    t.state = AT_COLLECTIVE
                    t.pc = pc
                return
            active = group
            if step.guard >= 0:
                guard, flip = step.guard, step.flip
                active = [t for t in group if t.regs[guard] ^ flip]
            self.executions[pc] += 1
            self.lanes[pc] += len(active)
            try:
                if step.kind == PLAIN:
                    run = step.run
                    for t in active:
                        run(t.regs)
                elif step.kind == ACCESS:
                    self.access(pc, step, active)
                else:
                    self.jump(pc, step, group, active)
                    return
            except InterpreterError as fault:
                raise InterpreterError(f"line {step.line} ({step.opcode}): {fault}") from fault
            pc += 1
            if pc == limit:
                break
        for t in group:
            t.pc = pc

    def access(self, pc: int, step: Step, active: list[Thread]) -> None:
        in_global: list[tuple[int, int]] = []
        in_shared: list[tuple[int, int, int]] = []
        touched: list[tuple[str, int, int, int]] = []
        bulk = 0
        for t in active:
            for space, address, size in step.run(t):
                touched.append((space, t.lane, address, size))
                if space == "global":
                    in_global.append((address, size))
                elif space == "shared":
                    in_shared.append((t.lane, address, size))
                elif space == "bulk":  # moved by the copy engine, 128 bytes at a time
                    bulk += (size + 127) // 128
        self.sectors[pc] += sectors(in_global)
        self.transactions[pc] += shared_transactions(in_shared) + bulk
        self.tell(pc, step, touched)

    def tell(self, pc: int, step: Step, touched: list[tuple[str, int, int, int]]) -> None:
        """Pass an event on to who wants to know."""
        if self.on_event:
            function, index = self.code.place(pc)
            self.on_event(Event(self.block, self.warp, function, index, step.opcode, touched))

    def jump(self, pc: int, step: Step, group: list[Thread], active: list[Thread]) -> None:
        """Everything that changes the program counter or the state, lane by lane."""
        for t in group:
            t.pc = pc + 1
        if step.kind == BARRIER:
            self.tell(pc, step, [])
        for t in active:
            if step.kind == BRANCH:
                t.pc = step.run(t)
            elif step.kind == CALL:
                step.run(t)
            elif step.kind == WAIT:
                t.state = AT_PHASE
                t.pc = pc
                self.wake(t)
            elif step.kind == BARRIER and step.waits:
                t.state = AT_BARRIER
                t.pc = pc  # moves on when the barrier opens
            elif step.kind == BARRIER:
                t.block.arrivals[step.barrier_number(t)] += 1
            elif step.kind == RETURN:
                leave(t, whole_thread=step.opcode == "exit")

    def release(self, warp: list[Thread]) -> None:
        """Run every collective whose named lanes have all arrived (or left for good)."""
        points: dict[tuple[int, int], list[Thread]] = {}
        for t in warp:
            if t.state == AT_COLLECTIVE:
                points.setdefault((len(t.frames), t.pc), []).append(t)
        for (_, pc), arrived in points.items():
            step = self.code.step(pc)
            active = [t for t in arrived if step.guard < 0 or t.regs[step.guard] ^ step.flip]
            absent = sum(1 << t.lane for t in warp if t.state != DONE and t not in arrived)
            if step.members and any(step.members(t) & absent for t in active):
                continue
            if active:
                self.together(pc, step, active)
            self.executions[pc] += 1
            self.lanes[pc] += len(active)
            for t in arrived:
                t.state = RUNNING
                t.pc = pc + 1

    def together(self, pc: int, step: Step, active: list[Thread]) -> None:
        try:
            counted = step.run(active)
        except InterpreterError as fault:
            raise InterpreterError(f"line {step.line} ({step.opcode}): {fault}") from fault
        self.sectors[pc] += counted[0]
        self.transactions[pc] += counted[1]

    def wake(self, t: Thread) -> bool:
        """Let a thread go on whose memory barrier has completed the phase it waits for."""
        step = self.code.steps[t.pc]
        if not step.run(t):
            return False
        t.regs[step.reduction_slot] = 1
        t.state = RUNNING
        t.pc += 1
        return True

    # --- one block --------------------------------------------------------------

    def run_block(self, threads: list[Thread]) -> None:
        warps = [threads[at : at + WARP] for at in range(0, len(threads), WARP)]
        patient, before = True, -1
        while True:
            for self.warp, warp in enumerate(warps):
                self.run_warp(warp, patient)
            if all(t.state == DONE for t in threads):
                return
            woken = [t for t in threads if t.state == AT_PHASE and self.wake(t)]
            moved = bool(woken) or self.open_barriers(threads)
            patient, before, stands = moved, self.steps_left, before == self.steps_left
            if not moved and stands:
                raise InterpreterError("threads wait at a barrier that never opens")

    def open_barriers(self, threads: list[Thread]) -> bool:
        """Release every barrier that all its threads have reached."""
        living = [t for t in threads if t.state != DONE]
        waiting: dict[int, list[Thread]] = {}
        for t in (t for t in living if t.state == AT_BARRIER):
            waiting.setdefault(self.code.steps[t.pc].barrier_number(t), []).append(t)
        opened = False
        for number, group in waiting.items():
            expected = self.code.steps[group[0].pc].barrier_count(group[0]) or len(living)
            arrivals = group[0].block.arrivals
            if len(group) + arrivals[number] < expected:
                continue
            arrivals[number] = 0
            opened = True
            reduce_barrier(self.code, group)
            for t in group:
                t.state = RUNNING
                t.pc += 1
        return opened


def reduce_barrier(code: Code, group: list[Thread]) -> None:
    """bar.red: every thread gets the count, the and or the or of all predicates."""
    reducing = [t for t in group if code.steps[t.pc].reduction]
    votes = [code.steps[t.pc].vote(t) for t in reducing]
    for t in reducing:
        step = code.steps[t.pc]
        result = {"popc": sum(votes), "and": int(all(votes)), "or": int(any(votes))}
        t.regs[step.reduction_slot] = result[step.reduction]


def leave(t: Thread, *, whole_thread: bool) -> None:
    """Return from a device function, or end the thread."""
    if whole_thread or not t.frames:
        t.state = DONE
        return
    frame = t.frames.pop()
    for offset, to, size in frame.results:
        frame.params[to : to + size] = t.params[offset : offset + size]
    t.regs, t.params, t.local_top, t.pc = (
        frame.regs, frame.params, frame.local_top, frame.return_to,
    )  # fmt: skip


def call(t: Thread, code: Code, name: str, arguments: list[int], results: list[int]) -> None:
    """Enter device function ``name``; offsets in the caller's parameters tell where values lie."""
    layout = code.layout(name)
    params = bytearray(layout.param_bytes)
    function = layout.function
    for variable, at in zip(function.parameters, arguments, strict=True):
        to = layout.param_offsets[variable.name]
        params[to : to + variable.size] = t.params[at : at + variable.size]
    copies = [
        (layout.param_offsets[variable.name], at, variable.size)
        for variable, at in zip(function.returns, results, strict=True)
    ]
    t.frames.append(Frame(t.pc, t.regs, t.params, t.local_top, copies))
    t.enter(code, name, params)


def _special_values(
    grid: tuple[int, int, int], block: tuple[int, int, int], at: tuple[int, int, int],
    linear: int, shared_bytes: int, dynamic_bytes: int,
) -> list[int]:  # fmt: skip
    """In the order of SPECIALS. Clocks and ids of SMs read 0."""
    thread = (
        linear % block[0],
        linear // block[0] % block[1],
        linear // (block[0] * block[1]),
    )
    lane = linear % WARP
    equal = 1 << lane
    full = 0xFFFFFFFF
    warps = (block[0] * block[1] * block[2] + WARP - 1) // WARP
    by_name = {"%laneid": lane, "%warpid": linear // WARP, "%nwarpid": warps, "%nsmid": 1,
               "%lanemask_eq": equal, "%lanemask_lt": equal - 1, "%lanemask_le": 2 * equal - 1,
               "%lanemask_gt": full & ~(2 * equal - 1), "%lanemask_ge": full & ~(equal - 1),
               "%dynamic_smem_size": dynamic_bytes, "%total_smem_size": shared_bytes}  # fmt: skip
    for name, triple in (("tid", thread), ("ntid", block), ("ctaid", at), ("nctaid", grid)):
        by_name.update({f"%{name}.{axis}": v for axis, v in zip("xyz", triple, strict=True)})
    return [by_name.get(name, 0) for name in SPECIALS]


def _triple(shape: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*shape, 1, 1)[:3]
    return x, y, z


def _argument_bytes(
    name: str, value: object, addresses: Mapping[str, int], textures: list[Texture],
    tensor_maps: list[TensorMap],
) -> bytes:  # fmt: skip
    if isinstance(value, np.ndarray):
        return addresses[name].to_bytes(8, "little")
    if isinstance(value, Texture):
        textures.append(value)
        return (TEXTURE_BASE + 256 * (len(textures) - 1)).to_bytes(8, "little")
    if isinstance(value, TensorMap):  # the 128 bytes hold its number
        tensor_maps.append(replace(value, address=addresses[value.address]))
        return (len(tensor_maps) - 1).to_bytes(128, "little")
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"argument {name}: {type(value)} (numpy array or scalar, bytes or Texture)")


def run(
    ptx_text: str,
    entry: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: Mapping[str, object],
    dynamic_shared_bytes: int = 0,
    *,
    max_steps: int = 50_000_000,
    on_block: Callable[[tuple[int, int, int]], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> ReferenceResult:
    """Execute ``entry`` over the whole grid.

    ``args``: name -> value in the order of the kernel's parameters; numpy arrays are buffers
    (copied; addresses by ``memory.buffer_addresses``), numpy scalars and bytes go by value,
    ``Texture`` is a texture object, ``TensorMap`` a tensor map. ``max_steps`` bounds the warp
    instructions executed.
    ``on_block`` is told the coordinates of every block before it runs, ``on_event`` every
    access and barrier.
    Raises ``InterpreterError`` for unknown PTX, wild addresses, deadlock and too many steps.
    """
    grid, block = _triple(grid), _triple(block)
    textures: list[Texture] = []
    tensor_maps: list[TensorMap] = []
    addresses = buffer_addresses(args)
    assert not addresses or min(addresses.values()) == BUFFER_BASE
    memory = GlobalMemory()
    buffers = {n: bytearray(v.tobytes()) for n, v in args.items() if isinstance(v, np.ndarray)}
    for name, data in buffers.items():
        memory.add(addresses[name], data)
    code = Code(parse(ptx_text), entry, textures, dynamic_shared_bytes, call)
    for address, data in code.module_data:
        memory.add(address, data)
    packed = [_argument_bytes(n, v, addresses, textures, tensor_maps) for n, v in args.items()]
    template = code.entry_parameters(packed)

    launch = _Launch(code, max_steps, on_event)
    for linear_block in range(grid[0] * grid[1] * grid[2]):
        at = (
            linear_block % grid[0],
            linear_block // grid[0] % grid[1],
            linear_block // (grid[0] * grid[1]),
        )
        if on_block:
            on_block(at)
        launch.block = linear_block
        here = Block(memory, bytearray(code.shared_bytes), tensor_maps)
        threads = []
        for linear in range(block[0] * block[1] * block[2]):
            specials = _special_values(
                grid, block, at, linear, code.shared_bytes, dynamic_shared_bytes
            )
            thread = Thread(here, linear, specials)
            thread.enter(code, entry, bytearray(template))
            threads.append(thread)
        launch.run_block(threads)

    results = {
        name: np.frombuffer(bytes(buffers[name]), value.dtype).reshape(value.shape)
        for name, value in args.items()
        if isinstance(value, np.ndarray)
    }
    return ReferenceResult(results, _report(launch, entry))


def _report(launch: _Launch, entry: str) -> list[PerInstruction]:
    rows: dict[str, list[PerInstruction]] = {entry: []}
    for name, function in launch.code.program.functions.items():
        base = launch.code.bases[name]
        found = [
            PerInstruction(
                name, i.index, i.line, i.source_line, i.opcode,
                launch.executions[base + i.index], launch.lanes[base + i.index],
                launch.sectors[base + i.index], launch.transactions[base + i.index],
            )
            for i in function.instructions
        ]  # fmt: skip
        if name == entry or any(row.warp_executions for row in found):
            rows[name] = found
    return [row for function_rows in rows.values() for row in function_rows]
