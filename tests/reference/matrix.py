"""Tensor-core instructions: ldmatrix, stmatrix, mma.m16n8k*, wmma.

``mma`` and ``ldmatrix`` follow the fragment layouts of the PTX ISA. The layout of ``wmma``
fragments is unspecified by PTX; here element ``j`` of lane ``l`` is matrix element
``(l * elements + j) mod (rows * columns)`` in row-major order. A sum of products is exact and
rounded once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tests.reference.access import address_of, locate, opcode_words
from tests.reference.counters import conflict_degree, sectors
from tests.reference.numbers import decode, encode, signed
from tests.reference.parse import Instruction, InterpreterError
from tests.reference.slots import Slots

Lanes = list[Any]
Result = tuple[int, int]
Matrix = list[list[float]]
ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s8": 8, "u8": 8,
                "s32": 32, "e4m3": 8, "e5m2": 8, "e3m2": 8, "e2m3": 8, "e2m1": 8, "s4": 4, "u4": 4,
                "b1": 1}  # fmt: skip


def compile_matrix(ins: Instruction, slots: Slots) -> Callable[[Lanes], Result]:
    words = opcode_words(ins.opcode)
    if words[0] in ("ldmatrix", "stmatrix"):
        return _row_matrices(ins, slots, words)
    if words[0] == "mma":
        return _mma(ins, slots, words)
    if words[1] == "mma":
        return _wmma(ins, slots, words)
    return _wmma_memory(ins, slots, words)


def _whole_warp(lanes: Lanes, ins: Instruction) -> None:
    if len(lanes) != 32:
        raise InterpreterError(f"line {ins.line}: {ins.opcode} by {len(lanes)} lanes of a warp")


def element(bits: int, kind: str) -> float:
    if kind[0] == "s":
        return signed(bits, ELEMENT_BITS[kind])
    if kind == "packed e2m1":
        return decode(bits, "e2m1")
    if kind == "e2m1":  # in the middle of its byte
        return decode(bits >> 2 & 15, kind)
    if kind in ("e2m3", "e3m2"):  # the upper two bits of the byte are padding
        return decode(bits & 63, kind)
    return bits if kind[0] == "u" or kind == "b1" else decode(bits, kind)


def unpack(words: list[int], kind: str) -> list[float]:
    """Elements held in 32-bit (f64: 64-bit) registers, lowest bits first."""
    width = ELEMENT_BITS[kind]
    per_word = max(1, 32 // width)
    mask = (1 << width) - 1
    return [element(word >> (width * i) & mask, kind) for word in words for i in range(per_word)]


def pack(values: list[float], kind: str) -> list[int]:
    width = ELEMENT_BITS[kind]
    per_word = max(1, 32 // width)
    bits = [int(v) & 0xFFFFFFFF if kind == "s32" else encode(v, kind) for v in values]
    return [
        sum(b << (width * i) for i, b in enumerate(bits[at : at + per_word]))
        for at in range(0, len(bits), per_word)
    ]


def multiply(a: Matrix, b: Matrix, c: Matrix, kind: str) -> Matrix:
    """a b + c, every element summed exactly and rounded once to ``kind``."""
    columns = list(zip(*b, strict=True))

    def total(row: list[float], column: tuple[float, ...], start: float) -> float:
        if kind == "s32":
            return int(start) + sum(int(x) * int(y) for x, y in zip(row, column, strict=True))
        return math.fsum([start, *(x * y for x, y in zip(row, column, strict=True))])

    return [
        [total(row, column, start) for column, start in zip(columns, starts, strict=True)]
        for row, starts in zip(a, c, strict=True)
    ]


def _row_matrices(ins: Instruction, slots: Slots, words: list[str]) -> Callable[[Lanes], Result]:
    """ldmatrix / stmatrix: lane 8 i + row holds the address of a row of the i-th 8 x 8 matrix."""
    padded = next((w for w in words if w.startswith(("b4x16", "b6x16"))), "")
    if not ("m8n8" in words and words[-1] == "b16") and not ("m8n16" in words and padded):
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    load = words[0] == "ldmatrix"
    listed, memory = ins.operands if load else reversed(ins.operands)
    parts = listed.parts if listed.kind == "list" else [listed]
    registers = [slots.dest(o) if load else slots.source(o, "b32") for o in parts]
    base, offset = address_of(memory, slots)
    space = "shared" if "shared" in words else "generic"
    transposed = "trans" in words

    def run(lanes: Lanes) -> Result:
        _whole_warp(lanes, ins)
        transactions = 0
        for i, register in enumerate(registers):
            rows = [lanes[8 * i + k].regs[base] + offset for k in range(8)]
            places = [locate(lanes[0], space, row, 16) for row in rows]
            transactions += conflict_degree((place[3], 16) for place in places)
            for t in lanes:
                first = (t.lane // 4, t.lane % 4 * 2)
                cells = [first, (first[0], first[1] + 1)]
                for half, cell in enumerate(cells):
                    row, column = reversed(cell) if transposed else cell
                    _, storage, at, _ = places[row]
                    spot = slice(at + 2 * column, at + 2 * column + 2)
                    if padded:  # a byte for each of 16 elements that lie side by side
                        whole = int.from_bytes(storage[at : at + 16], "little")
                        width = int(padded[1])
                        pair = [whole >> width * (2 * column + i) & (1 << width) - 1
                                for i in range(2)]  # fmt: skip
                        keep = t.regs[register] & 0xFFFF if half else 0
                        t.regs[register] = (pair[0] | pair[1] << 8) << 16 * half | keep
                    elif load:
                        bits = int.from_bytes(storage[spot], "little")
                        keep = t.regs[register] & 0xFFFF if half else 0
                        t.regs[register] = bits << 16 * half | keep
                    else:
                        storage[spot] = (t.regs[register] >> 16 * half & 0xFFFF).to_bytes(
                            2, "little"
                        )
        return 0, transactions

    return run


def _mma(ins: Instruction, slots: Slots, words: list[str]) -> Callable[[Lanes], Result]:
    shape = next(w for w in words if re.fullmatch(r"m\d+n\d+k\d+", w))
    rows, columns, depth = (int(x) for x in re.findall(r"\d+", shape))
    d_kind, a_kind, b_kind, c_kind = [w for w in words if w in ELEMENT_BITS][:4]
    whole = ins.opcode.split(".")
    if (rows, columns) != (16, 8) or {"sp", "block_scale", "xor"} & {*words, *whole}:
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    outs = [slots.dest(o) for o in ins.operands[0].parts]
    a_regs, b_regs, c_regs = (
        [slots.source(o, "b64" if kind == "f64" else "b32") for o in operand.parts]
        for operand, kind in zip(ins.operands[1:4], (a_kind, b_kind, c_kind), strict=True)
    )
    in_word = max(1, 32 // ELEMENT_BITS[a_kind])

    def a_cell(lane: int, i: int) -> tuple[int, int]:
        word, j = divmod(i, in_word)
        return lane // 4 + 8 * (word & 1), lane % 4 * in_word + j + (word >> 1) * 4 * in_word

    def b_cell(lane: int, i: int) -> tuple[int, int]:
        word, j = divmod(i, in_word)
        return lane % 4 * in_word + j + word * 4 * in_word, lane // 4

    def c_cell(lane: int, i: int) -> tuple[int, int]:
        return lane // 4 + 8 * (i >> 1), lane % 4 * 2 + (i & 1)

    def gather(
        lanes: Lanes, regs: list[int], kind: str, cell: Callable[[int, int], tuple[int, int]],
        height: int, width: int,
    ) -> Matrix:  # fmt: skip
        matrix: Matrix = [[0.0] * width for _ in range(height)]
        for t in lanes:
            for i, value in enumerate(unpack([t.regs[r] for r in regs], kind)):
                row, column = cell(t.lane, i)
                matrix[row][column] = value
        return matrix

    def run(lanes: Lanes) -> Result:
        _whole_warp(lanes, ins)
        a = gather(lanes, a_regs, a_kind, a_cell, rows, depth)
        b = gather(lanes, b_regs, b_kind, b_cell, depth, columns)
        c = gather(lanes, c_regs, c_kind, c_cell, rows, columns)
        result = multiply(a, b, c, d_kind)
        for t in lanes:
            cells = [c_cell(t.lane, i) for i in range(4)]
            values = pack([result[row][column] for row, column in cells], d_kind)
            for out, bits in zip(outs, values, strict=True):
                t.regs[out] = bits
        return 0, 0

    return run


def _wmma_shape(words: list[str]) -> tuple[int, int, int]:
    shape = next(w for w in words if re.fullmatch(r"m\d+n\d+k\d+", w))
    rows, columns, depth = (int(x) for x in re.findall(r"\d+", shape))
    return rows, columns, depth


def _wmma_memory(ins: Instruction, slots: Slots, words: list[str]) -> Callable[[Lanes], Result]:
    """wmma.load.{a,b,c} and wmma.store.d."""
    load, name = words[1] == "load", words[2]
    rows, columns, depth = _wmma_shape(words)
    height, width = {"a": (rows, depth), "b": (depth, columns)}.get(name, (rows, columns))
    by_row, kind = "row" in words, words[-1]
    listed, memory = ins.operands[:2] if load else reversed(ins.operands[:2])
    registers = [slots.dest(o) if load else slots.source(o, "b32") for o in listed.parts]
    base, offset = address_of(memory, slots)
    default = width if by_row else height
    stride = slots.source(ins.operands[2], "u32") if len(ins.operands) > 2 else None
    space = next((w for w in words if w in ("global", "shared")), "generic")
    bits, size = ELEMENT_BITS[kind], ELEMENT_BITS[kind] // 8
    per_word = max(1, 32 // bits)

    def run(lanes: Lanes) -> Result:
        _whole_warp(lanes, ins)
        touched: dict[str, set[tuple[int, int]]] = {"global": set(), "shared": set()}
        for t in lanes:
            pitch = t.regs[stride] if stride is not None else default
            start = t.regs[base] + offset
            for i in range(len(registers) * per_word):
                cell = (t.lane * len(registers) * per_word + i) % (height * width)
                row, column = divmod(cell, width)
                place = row * pitch + column if by_row else column * pitch + row
                where, storage, at, address = locate(t, space, start + place * size, size)
                touched[where].add((address, size))
                register, shift = registers[i // per_word], i % per_word * bits
                if load:
                    value = int.from_bytes(storage[at : at + size], "little") << shift
                    t.regs[register] = value | (t.regs[register] if shift else 0)
                else:
                    value = t.regs[register] >> shift & ((1 << bits) - 1)
                    storage[at : at + size] = value.to_bytes(size, "little")
        return sectors(touched["global"]), conflict_degree(touched["shared"])

    return run


def _wmma(ins: Instruction, slots: Slots, words: list[str]) -> Callable[[Lanes], Result]:
    rows, columns, depth = _wmma_shape(words)
    kinds = [w for w in words if w in ELEMENT_BITS]
    d_kind, c_kind = kinds[0], kinds[-1]
    a_kind, b_kind = (kinds[1], kinds[2]) if len(kinds) == 4 else ("f16", "f16")
    outs = [slots.dest(o) for o in ins.operands[0].parts]
    a_regs, b_regs, c_regs = (
        [slots.source(o, "b32") for o in operand.parts] for operand in ins.operands[1:4]
    )

    def gather(lanes: Lanes, regs: list[int], kind: str, height: int, width: int) -> Matrix:
        flat = [0.0] * (height * width)
        for t in lanes:
            values = unpack([t.regs[r] for r in regs], kind)
            for i, value in enumerate(values):
                flat[(t.lane * len(values) + i) % len(flat)] = value
        return [flat[row * width : (row + 1) * width] for row in range(height)]

    def run(lanes: Lanes) -> Result:
        _whole_warp(lanes, ins)
        a = gather(lanes, a_regs, a_kind, rows, depth)
        b = gather(lanes, b_regs, b_kind, depth, columns)
        c = gather(lanes, c_regs, c_kind, rows, columns)
        flat = [value for row in multiply(a, b, c, d_kind) for value in row]
        each = len(flat) // 32
        for t in lanes:
            values = pack(flat[t.lane * each : (t.lane + 1) * each], d_kind)
            for out, bits in zip(outs, values, strict=True):
                t.regs[out] = bits
        return 0, 0

    return run
