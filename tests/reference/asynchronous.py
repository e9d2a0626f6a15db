"""Memory barriers in shared memory, bulk and tensor copies, wgmma: what Hopper added.

Asynchronous work is done at once: nothing may look at its result before the wait anyway. A wait
is a step of its own: who comes too early stays there until the phase is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.reference.access import Access, Touch, address_of, locate, opcode_words
from tests.reference.matrix import ELEMENT_BITS, Lanes, Matrix, Result, element, multiply, pack
from tests.reference.matrix import unpack as elements_of
from tests.reference.memory import TensorMap
from tests.reference.parse import Instruction, InterpreterError, Operand
from tests.reference.slots import Slots


@dataclass
class Mbarrier:
    """Arrivals wanted and to come, bytes to come, and phases completed so far."""

    wanted: int
    pending: int
    transfer: int = 0
    phase: int = 0

    def advance(self) -> None:
        """Begin the next phase where nothing is to come."""
        if self.pending == 0 and self.transfer == 0:
            self.phase += 1
            self.pending = self.wanted
        elif self.pending < 0:
            raise InterpreterError("more arrivals at a memory barrier than it waits for")


def _barrier(thread: Any, address: int) -> Mbarrier:
    """The barrier at an address in shared memory, generic or not."""
    _, _, at, _ = locate(thread, "shared" if address < 1 << 32 else "generic", address, 8)
    found: Mbarrier | None = thread.block.mbarriers.get(at)
    if found is None:
        raise InterpreterError(f"no memory barrier at {at}")
    return found


def _swizzled(address: int, span: int) -> int:
    """Bits 4 to 6 of an address XORed with those from 7 on, as many as ``span`` bytes need."""
    return address ^ (address >> 7 & span // 16 - 1) << 4 if span > 16 else address


def compile_mbarrier(ins: Instruction, slots: Slots) -> Access | None:
    """mbarrier but its waits; arrivals by cp.async."""
    words = opcode_words(ins.opcode)
    operands = list(ins.operands)
    if words[0] == "cp":
        base, offset = address_of(operands[0], slots)
        joins = "noinc" in words

        def copied(t: Any) -> tuple[Touch, ...]:
            barrier = _barrier(t, t.regs[base] + offset)
            barrier.pending -= joins
            barrier.advance()
            return ()

        return copied
    state = Slots.SINK
    if operands[0].kind != "memory":
        state = slots.dest(operands.pop(0))
    base, offset = address_of(operands.pop(0), slots)
    count = slots.source(operands[0], "u32") if operands else slots.constant(1)
    kind = words[1]

    def act(t: Any) -> tuple[Touch, ...]:
        address = t.regs[base] + offset
        if kind == "init":
            _, _, at, _ = locate(t, "shared" if address < 1 << 32 else "generic", address, 8)
            t.block.mbarriers[at] = Mbarrier(t.regs[count], t.regs[count])
            return ()
        barrier = _barrier(t, address)
        t.regs[state] = barrier.phase
        if kind in ("expect_tx", "complete_tx") or "expect_tx" in words:
            barrier.transfer += t.regs[count] * (-1 if kind == "complete_tx" else 1)
        if kind in ("arrive", "arrive_drop"):
            by = 1 if "expect_tx" in words else t.regs[count]
            barrier.wanted -= by * (kind == "arrive_drop")
            barrier.pending -= by
        if kind != "expect_tx":
            barrier.advance()
        return ()

    if kind not in ("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx"):
        return None
    return (lambda t: ()) if kind == "inval" else act


def compile_wait(ins: Instruction, slots: Slots) -> tuple[Callable[[Any], bool], int] | None:
    """mbarrier.try_wait and test_wait: is a thread's phase complete, and where to say so."""
    words = opcode_words(ins.opcode)
    if words[0] != "mbarrier" or words[1] not in ("try_wait", "test_wait"):
        return None
    out = slots.dest(ins.operands[0])
    base, offset = address_of(ins.operands[1], slots)
    wanted = slots.source(ins.operands[2], "u32")
    parity = "parity" in words

    def complete(t: Any) -> bool:
        phase = _barrier(t, t.regs[base] + offset).phase
        return phase & 1 != t.regs[wanted] if parity else phase != t.regs[wanted]

    return complete, out


# --- copies ---------------------------------------------------------------------------------------


def compile_bulk(ins: Instruction, slots: Slots) -> Access | None:
    """cp.async.bulk between global and shared memory, of bytes in a row or of a tensor's box."""
    words = opcode_words(ins.opcode)
    if not ins.opcode.startswith("cp.async.bulk."):
        return None
    spaces = [w for w in words if w in ("global", "shared")]
    load = spaces == ["shared", "global"]
    if len(spaces) != 2 or spaces[0] == spaces[1]:
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    target, source = ins.operands[:2]
    shared_base, shared_offset = address_of(target if load else source, slots)
    memory = source if load else target
    rows: Callable[[Any], Iterator[tuple[int, int, int]]]
    if "tensor" in words:
        rows = _box(memory, slots)
    else:
        base, offset = address_of(memory, slots)
        size = slots.source(ins.operands[2], "u32")

        def rows(t: Any) -> Iterator[tuple[int, int, int]]:
            yield t.regs[base] + offset, 0, t.regs[size]

    barrier = None
    if load:
        barrier = address_of(ins.operands[2 if "tensor" in words else 3], slots)

    def copy(t: Any) -> tuple[Touch, ...]:
        start = t.regs[shared_base] + shared_offset
        span = getattr(rows, "span", lambda t: 16)(t)
        touched: list[Touch] = []
        moved = 0
        for address, within, length in rows(t):
            _, storage, _, first = locate(
                t, "shared" if start < 1 << 32 else "generic", start + within, 1
            )
            inside, at = None, 0
            if address >= 0 and length:
                _, inside, at, _ = locate(t, "global", address, 1)
                touched.append(("global", address, length))
            step = (1 if first % 16 else 16) if span > 16 else max(length, 1)
            for piece in range(0, length, step):
                long = min(step, length - piece)
                to = _swizzled(first + piece, span)
                if inside is None:
                    if load:
                        storage[to : to + long] = bytes(long)
                elif load:
                    storage[to : to + long] = inside[at + piece : at + piece + long]
                else:
                    inside[at + piece : at + piece + long] = storage[to : to + long]
            moved += length
        if barrier is not None:
            held = _barrier(t, t.regs[barrier[0]] + barrier[1])
            held.transfer -= moved
            held.advance()
        return (*touched, ("bulk", start, moved))

    return copy


def _box(memory: Operand, slots: Slots) -> Callable[[Any], Iterator[tuple[int, int, int]]]:
    """Rows of a box: address in global memory (-1: outside the tensor), offset in shared memory
    and bytes. Boxes that reach over the end of a row are given in two pieces."""
    described = slots.source(memory.parts[0], "u64")
    listed = memory.parts[1]
    places = [slots.source(o, "u32") for o in (listed.parts or [listed])]

    def the_map(t: Any) -> TensorMap:
        address = t.regs[described]
        _, storage, at, _ = locate(t, "param" if address < 1 << 32 else "generic", address, 8)
        handle = int.from_bytes(storage[at : at + 8], "little")
        found: TensorMap = t.block.tensor_maps[handle]
        return found

    def rows(t: Any) -> Iterator[tuple[int, int, int]]:
        m = the_map(t)
        first = [(t.regs[slot] ^ 1 << 31) - (1 << 31) for slot in places]
        counts = [1]
        for length in m.box[1:]:
            counts.append(counts[-1] * length)
        for row in range(counts[-1]):
            at = [first[0]]
            at += [first[k] + row // counts[k - 1] % m.box[k] for k in range(1, len(m.box))]
            offset = row * m.box[0] * m.element_bytes
            inside = all(0 <= x < end for x, end in zip(at[1:], m.dims[1:], strict=True))
            low, high = max(0, at[0]), min(m.dims[0], at[0] + m.box[0])
            if not inside or low >= high:
                yield -1, offset, m.box[0] * m.element_bytes
                continue
            address = m.address + low * m.element_bytes
            address += sum(x * stride for x, stride in zip(at[1:], m.strides, strict=True))
            for begin, end, where in ((at[0], low, -1), (low, high, address),
                                      (high, at[0] + m.box[0], -1)):  # fmt: skip
                if begin < end:
                    within = (begin - at[0]) * m.element_bytes
                    yield where, offset + within, (end - begin) * m.element_bytes

    rows.span = lambda t: the_map(t).swizzle or 16  # type: ignore[attr-defined]
    return rows


# --- wgmma ----------------------------------------------------------------------------------------


def matrix_cell(descriptor: int, line: int, k: int, size: int, by_k: bool) -> int:
    """Byte address of element ``k`` of a row of A (column of B) that a descriptor tells of.

    PTX ISA 9.0, Asynchronous Warpgroup Level Matrix Shared Memory Layout, and the canonical
    layouts in units of 16 bytes that CUTLASS lists (cute/arch/mma_sm90_desc.hpp).
    """
    start, leading, stride = (descriptor >> shift & 0x3FFF for shift in (0, 16, 32))
    span = {0: 16, 1: 128, 2: 64, 3: 32}[descriptor >> 62 & 3]
    group, inner = divmod(line, 8)
    if by_k and span == 16:
        unit, rest = divmod(k * size, 16)
        at = group * stride * 16 + inner * 16 + unit * leading * 16 + rest
    elif by_k:
        at = group * stride * 16 + inner * span + k * size
    else:
        unit, rest = divmod(line * size, span)
        first, second = (stride, leading) if span == 16 else (leading, stride)
        at = unit * first * 16 + k // 8 * second * 16 + k % 8 * span + rest
    return _swizzled(start * 16 + at, span)


def compile_wgmma(ins: Instruction, slots: Slots) -> Callable[[Lanes], Result]:
    """One warp's share of wgmma.mma_async: 16 of the 64 rows."""
    words = opcode_words(ins.opcode)
    shape = next(w for w in words if w.startswith("m64n"))
    width, depth = (int(x) for x in shape[4:].split("k"))
    d_kind, a_kind, _ = words[-3:]
    if a_kind not in ELEMENT_BITS or ELEMENT_BITS[a_kind] < 8:
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    size = ELEMENT_BITS[a_kind] // 8
    if "sp" in words:
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    operands = ins.operands
    outs = [slots.dest(o) for o in ins.operands[0].parts]
    from_registers = ins.operands[1].kind == "list"
    a_regs = [slots.source(o, "b32") for o in ins.operands[1].parts]
    a_slot = -1 if from_registers else slots.source(ins.operands[1], "b64")
    b_slot = slots.source(ins.operands[2], "b64")
    keeps, flip = slots.predicate(operands[3])
    factors = [int(o.text, 0) for o in operands[4:]]
    sign = 1
    for factor in factors[:2]:
        sign *= factor
    crossed = [False, *(f != 0 for f in factors[2:])] if from_registers else factors[2:] or [0, 0]
    per_word = 4 // size

    def cells(lane: int) -> list[tuple[int, int]]:
        return [
            (lane // 4 + 8 * (i >> 1 & 1), (i >> 2) * 8 + lane % 4 * 2 + (i & 1))
            for i in range(width // 2)
        ]

    def read(t: Any, descriptor: int, line: int, k: int, across: bool) -> float:
        at = matrix_cell(descriptor, line, k, size, not across)
        _, storage, start, _ = locate(t, "shared", at, size)
        return element(int.from_bytes(storage[start : start + size], "little"), a_kind)

    def run(lanes: Lanes) -> Result:
        if len(lanes) != 32:
            raise InterpreterError("a wgmma by some lanes of a warp")
        leader = lanes[0]
        warp = leader.warp % 4
        if from_registers:
            a: Matrix = [[0.0] * depth for _ in range(16)]
            for t in lanes:
                for i, value in enumerate(elements_of([t.regs[r] for r in a_regs], a_kind)):
                    word, j = divmod(i, per_word)
                    column = t.lane % 4 * per_word + j + (word >> 1) * 4 * per_word
                    a[t.lane // 4 + 8 * (word & 1)][column] = value
        else:
            a = [
                [read(leader, leader.regs[a_slot], 16 * warp + row, k, bool(crossed[0]))
                 for k in range(depth)] for row in range(16)
            ]  # fmt: skip
        b = [
            [read(leader, leader.regs[b_slot], n, k, bool(crossed[1])) for n in range(width)]
            for k in range(depth)
        ]
        c: Matrix = [[0.0] * width for _ in range(16)]
        if leader.regs[keeps] ^ flip:
            for t in lanes:
                values = elements_of([t.regs[r] for r in outs], d_kind)
                for (row, column), value in zip(cells(t.lane), values, strict=True):
                    c[row][column] = value
        signed = [[sign * x for x in row] for row in a]
        result = multiply(signed, b, c, d_kind)
        for t in lanes:
            bits = pack([result[row][column] for row, column in cells(t.lane)], d_kind)
            for out, value in zip(outs, bits, strict=True):
                t.regs[out] = value
        # Shared memory gives 128 bytes at a time: each warp's rows of A, and B once for the four.
        own = 0 if from_registers else 16 * depth * size // 128
        return 0, own + (width * depth * size // 128 if warp == 0 else 0)

    return run
