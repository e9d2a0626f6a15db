"""The shape of a tcgen05.mma: its name tells k, a 32-bit instruction descriptor m and n.

Source: PTX ISA 9.0, TensorCore 5th Generation Family Instructions, Instruction descriptor.
"""

from __future__ import annotations

from wattcast.features.dataflow import written
from wattcast.features.ptx.ir import Body, Immediate, Instruction, Operand, Register, Vector

DEPTHS = {
    "kind::f16": 16, "kind::tf32": 8, "kind::f8f6f4": 32, "kind::i8": 32, "kind::mxf8f6f4": 32,
    "kind::mxf4": 64, "kind::mxf4nvf4": 64,
}  # fmt: skip
"""k of dense products by kind (PTX ISA, tcgen05.mma, supported matrix shapes)."""


def descriptor_shape(descriptor: int) -> tuple[int, int]:
    """m and n: in units of 16 from bit 24 on, in units of 8 from bit 17 on."""
    return (descriptor >> 24 & 0x1F) << 4, (descriptor >> 17 & 0x3F) << 3


def descriptor_place(modifiers: tuple[str, ...]) -> int:
    """Which operand is the instruction descriptor: that behind the metadata of sparse ones."""
    return 4 if "sp" in modifiers else 3


def product_shape(body: Body, one: Instruction) -> tuple[int, int, int] | None:
    """m, n and k of a tcgen05.mma whose descriptor the text tells; ``None`` else.

    Other bits of the descriptor may be computed (those that say where scales lie).
    """
    kind = next((part for part in one.modifiers if part in DEPTHS), None)
    place = descriptor_place(one.modifiers)
    if kind is None or len(one.operands) <= place:
        return None
    known, value = _bits(body, one.operands[place], 8)
    m, n = descriptor_shape(value)
    if (m, n) != descriptor_shape(value | ~known) or not (m and n):
        return None
    return m, n, DEPTHS[kind] * (2 if "sp" in one.modifiers else 1)


def _bits(body: Body, operand: Operand, depth: int) -> tuple[int, int]:
    """Which bits of an operand the text tells, and their values: through mov, and, or."""
    if isinstance(operand, Immediate):
        return -1, int(operand.value)
    made = written(body).get(operand.name, []) if isinstance(operand, Register) else []
    if len(made) != 1 or made[0].predicate is not None or not depth:
        return 0, 0
    parts = [_bits(body, each, depth - 1) for each in made[0].operands[1:]]
    if made[0].base == "mov" and isinstance(made[0].operands[1], Vector):
        halves = made[0].operands[1].elements
        if len(halves) != 2 or made[0].modifiers[-1] not in ("b32", "u32"):
            return 0, 0
        (known_low, low), (known_high, high) = (_bits(body, each, depth - 1) for each in halves)
        return known_low & 0xFFFF | known_high << 16, low & 0xFFFF | high << 16
    if made[0].base == "mov":
        return parts[0]
    if made[0].base in ("and", "or") and len(parts) == 2:
        (known, value), (other, more) = parts
        if made[0].base == "or":
            return known & other | known & value | other & more, value & known | more & other
        return known & other | known & ~value | other & ~more, value & more & known & other
    return 0, 0
