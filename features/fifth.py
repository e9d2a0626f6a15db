"""The shape of a tcgen05.mma: its name tells k, a 32-bit instruction descriptor m and n.

Source: PTX ISA 9.0, TensorCore 5th Generation Family Instructions, Instruction descriptor.
"""

from __future__ import annotations

from wattcast.features.attached import attached
from wattcast.features.dataflow import definitions
from wattcast.features.ptx.ir import Body, Immediate, Instruction, Register

DEPTHS = {
    "kind::f16": 16, "kind::tf32": 8, "kind::f8f6f4": 32, "kind::i8": 32, "kind::mxf8f6f4": 32,
    "kind::mxf4": 64, "kind::mxf4nvf4": 64,
}  # fmt: skip
"""k of dense products by kind (PTX ISA, tcgen05.mma, supported matrix shapes)."""


def descriptor_shape(descriptor: int) -> tuple[int, int]:
    """m and n: in units of 16 from bit 24 on, in units of 8 from bit 17 on."""
    return (descriptor >> 24 & 0x1F) << 4, (descriptor >> 17 & 0x3F) << 3


def product_shape(body: Body, one: Instruction) -> tuple[int, int, int] | None:
    """m, n and k of a tcgen05.mma whose descriptor the text tells; ``None`` else."""
    kind = next((part for part in one.modifiers if part in DEPTHS), None)
    if kind is None or len(one.operands) < 4:
        return None
    found = one.operands[3]
    for _ in range(4):  # through moves
        if isinstance(found, Immediate):
            m, n = descriptor_shape(int(found.value))
            depth = DEPTHS[kind] * (2 if "sp" in one.modifiers else 1)
            return (m, n, depth) if m and n else None
        made = _made(body).get(found.name, []) if isinstance(found, Register) else []
        if len(made) != 1 or made[0].base != "mov" or made[0].predicate is not None:
            return None
        found = made[0].operands[1]
    return None


@attached
def _made(body: Body) -> dict[str, list[Instruction]]:
    return definitions(body.instructions)
