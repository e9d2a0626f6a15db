"""Loads, stores, atomics, cp.async and texture reads of one thread.

Each compiled access is a function of a thread that does its work and returns what it touched:
tuples ``(space, address, bytes)``, the address within shared or local memory, or global.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.reference.floats import larger, smaller
from tests.reference.integers import reader
from tests.reference.memory import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    TEXTURE_BASE,
    WINDOW_BYTES,
    GlobalMemory,
    Texture,
)
from tests.reference.numbers import decode, encode
from tests.reference.parse import Instruction, InterpreterError, Operand, type_bytes
from tests.reference.slots import Slots

Touch = tuple[str, int, int]
Access = Callable[[Any], tuple[Touch, ...]]
SPACES = ("global", "shared", "local", "param", "const")


def opcode_words(opcode: str) -> list[str]:
    """``ld.shared::cta.u32`` -> ``["ld", "shared", "u32"]``."""
    return [word.partition("::")[0] for word in opcode.split(".")]


def address_of(operand: Operand, slots: Slots) -> tuple[int, int]:
    """Slot of the base and the constant offset of ``[base+offset]``."""
    (base,) = operand.parts
    return slots.source(base, "u64"), operand.offset + base.offset * (
        base.kind == "symbol" and base.text in slots.frame_symbols
    )


def locate(thread: Any, space: str, address: int, size: int) -> tuple[str, bytearray, int, int]:
    """``(space, storage, offset, address in the space)``; space ``generic`` is resolved."""
    if space == "generic":
        window = address // WINDOW_BYTES * WINDOW_BYTES
        space = {SHARED_WINDOW: "shared", LOCAL_WINDOW: "local"}.get(window, "global")
        if space != "global":
            address -= window
    if space in ("global", "const"):
        memory: GlobalMemory = thread.block.memory
        storage, offset = memory.find(address, size)
        return space, storage, offset, address
    storage = {"shared": thread.block.shared, "local": thread.local}.get(space, thread.params)
    if address < 0 or address + size > len(storage):
        raise InterpreterError(
            f"access of {size} bytes at {address} in {space} memory of {len(storage)} bytes"
        )
    if space == "shared" and address % size:
        raise InterpreterError(f"misaligned shared access of {size} bytes at {address}")
    return space, storage, address, address


def compile_access(ins: Instruction, slots: Slots, textures: list[Texture]) -> Access | None:
    """The instruction as a function of one thread; None if it touches no memory."""
    words = opcode_words(ins.opcode)
    if words[0] in ("ld", "ldu"):
        return _load(ins, slots, words)
    if words[0] == "st":
        return _store(ins, slots, words)
    if words[0] in ("atom", "red"):
        return _atomic(ins, slots, words)
    if ins.opcode.startswith("cp.async") and "global" in words and "bulk" not in words:
        return _async_copy(ins, slots)
    if words[0] == "tex":
        return _texture(ins, slots, words, textures)
    return None


def _shape(words: list[str]) -> tuple[str, str, int]:
    """Space, element type and its bytes."""
    space = next((w for w in words if w in SPACES), "generic")
    return space, words[-1], type_bytes(words[-1])


def _load(ins: Instruction, slots: Slots, words: list[str]) -> Access:
    space, kind, size = _shape(words)
    target, source = ins.operands[:2]
    outs = [(slots.dest(o), slots.width(o, 8 * size))
            for o in (target.parts if target.kind == "list" else [target])]  # fmt: skip
    base, offset = address_of(source, slots)
    total = size * len(outs)
    value = reader(kind) if kind[0] == "s" else None

    def load(t: Any) -> tuple[Touch, ...]:
        where, storage, at, address = locate(t, space, t.regs[base] + offset, total)
        for out, width in outs:
            bits = int.from_bytes(storage[at : at + size], "little")
            t.regs[out] = value(bits) & ((1 << width) - 1) if value else bits
            at += size
        return ((where, address, total),)

    return load


def _store(ins: Instruction, slots: Slots, words: list[str]) -> Access:
    space, kind, size = _shape(words)
    target, source = ins.operands[:2]
    parts = [slots.source(o, kind) for o in (source.parts if source.kind == "list" else [source])]
    base, offset = address_of(target, slots)
    total, mask = size * len(parts), (1 << 8 * size) - 1

    def store(t: Any) -> tuple[Touch, ...]:
        where, storage, at, address = locate(t, space, t.regs[base] + offset, total)
        for part in parts:
            storage[at : at + size] = (t.regs[part] & mask).to_bytes(size, "little")
            at += size
        return ((where, address, total),)

    return store


def combine(operation: str, kind: str, old: int, b: int, c: int) -> int:
    """The new bits an atomic leaves behind. For cas, ``b`` is compared with and ``c`` stored."""
    if operation == "exch":
        return b
    if operation == "cas":
        return c if old == b else old
    if kind[0] == "f" or kind.startswith("bf"):
        x, y = decode(old, kind), decode(b, kind)
        return encode({"add": x + y, "min": smaller(x, y), "max": larger(x, y)}[operation], kind)
    value = reader(kind)
    x, y = value(old), value(b)
    if operation == "inc":
        return 0 if x >= y else x + 1
    if operation == "dec":
        return y if x == 0 or x > y else x - 1
    result = {"add": x + y, "min": min(x, y), "max": max(x, y), "and": x & y, "or": x | y,
              "xor": x ^ y}[operation]  # fmt: skip
    return result & ((1 << int(kind[1:])) - 1)


def _atomic(ins: Instruction, slots: Slots, words: list[str]) -> Access:
    space, kind, size = _shape(words)
    operands = list(ins.operands)
    out = slots.dest(operands.pop(0)) if words[0] == "atom" else Slots.SINK
    base, offset = address_of(operands[0], slots)
    sources = [slots.source(o, kind) for o in operands[1:]]
    b, c = sources[0], sources[-1]
    names = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")
    operation = next(w for w in words if w in names)

    def atomic(t: Any) -> tuple[Touch, ...]:
        r = t.regs
        where, storage, at, address = locate(t, space, r[base] + offset, size)
        old = int.from_bytes(storage[at : at + size], "little")
        new = combine(operation, kind, old, r[b], r[c])
        storage[at : at + size] = new.to_bytes(size, "little")
        r[out] = old
        return ((where, address, size),)

    return atomic


def _async_copy(ins: Instruction, slots: Slots) -> Access:
    target, offset_to = address_of(ins.operands[0], slots)
    source, offset_from = address_of(ins.operands[1], slots)
    size = int(ins.operands[2].text, 0)
    # Fewer source bytes than copied: the rest is zeros. A fourth operand may also be a policy.
    given = slots.source(ins.operands[3], "u32") if len(ins.operands) == 4 else None
    if "cache_hint" in ins.opcode:
        given = None

    def copy(t: Any) -> tuple[Touch, ...]:
        count = min(size, t.regs[given]) if given is not None else size
        _, shared, to, at = locate(t, "shared", t.regs[target] + offset_to, size)
        shared[to : to + size] = bytes(size)
        touches: list[Touch] = [("shared", at, size)]
        if count:
            address = t.regs[source] + offset_from
            _, storage, start, _ = locate(t, "global", address, count)
            shared[to : to + count] = storage[start : start + count]
            touches.append(("global", address, count))
        return tuple(touches)

    return copy


def _texture(ins: Instruction, slots: Slots, words: list[str], textures: list[Texture]) -> Access:
    dimension = {"1d": 1, "2d": 2}.get(words[1])
    if dimension is None or "level" in words or "grad" in words:
        raise InterpreterError(f"line {ins.line}: {ins.opcode} is not supported")
    out_kind, coordinate_kind = words[-2:]
    outs = [slots.dest(o) for o in ins.operands[0].parts]
    handle = slots.source(ins.operands[1].parts[0], "u64")
    coordinates = ins.operands[1].parts[1]
    listed = coordinates.parts if coordinates.kind == "list" else [coordinates]
    sources = [slots.source(o, coordinate_kind) for o in listed][:dimension]

    def fetch(t: Any) -> tuple[Touch, ...]:
        texels = textures[(t.regs[handle] - TEXTURE_BASE) // 256].texels
        at = []
        for slot, length in zip(reversed(sources), texels.shape[2 - dimension :], strict=False):
            bits = t.regs[slot]
            if coordinate_kind == "f32":
                place = math.floor(decode(bits, "f32"))
            else:
                place = reader(coordinate_kind)(bits)
            at.append(max(0, min(length - 1, place)))
        if dimension == 1:
            at.insert(0, 0)
        value = texels[tuple(at)]
        channels = [value, 0, 0, 1]
        for out, channel in zip(outs, channels, strict=False):
            if out_kind == "f32":
                t.regs[out] = encode(float(channel), "f32")
            else:
                t.regs[out] = int(channel) & 0xFFFFFFFF
        return (("texture", 0, 0),)

    return fetch
