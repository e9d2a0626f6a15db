"""The one block that finds itself last: ``atomicInc(&count, n) == gridDim - 1``.

Blocks count themselves in memory, and whoever reads the last number goes on alone, mostly through
a flag in shared memory (CUDA samples, threadFenceReduction). Which block that is nobody knows, but
it is one: it is taken to be the last of the grid.
"""

from __future__ import annotations

from wattcast.features.dataflow import reads, writes
from wattcast.features.ptx.ir import (
    Body,
    Immediate,
    Instruction,
    Operand,
    Special,
    place_of,
)

_COUNTS = frozenset({"inc", "add"})
_STEPS = frozenset({"add", "sub", "mov", "cvt", "mul", "mad", "selp"})


def elected(body: Body) -> dict[int, tuple[int, int]]:
    """Positions of instructions whose result tells the elected block: its value there, elsewhere.

    Comparisons of a counted number with one made of ``%nctaid``, and loads of the flag in shared
    memory that such a comparison alone sets. Registers written twice are not followed.
    """
    if not any(one.opcode.startswith("atom") for one in body.instructions):
        return {}  # nobody counts blocks
    made: dict[str, Instruction | None] = {}
    for one in body.instructions:
        for name in writes(one):
            made[name] = None if name in made else one
    found: dict[int, tuple[int, int]] = {}
    told: dict[str, tuple[int, int]] = {}
    flags: dict[tuple[str, int], list[tuple[int, int] | None]] = {}
    for one in body.instructions:
        if one.base == "setp" and _elects(one, made):
            found[one.position] = (1, 0) if ".eq" in one.opcode else (0, 1)
            told.update(dict.fromkeys(writes(one), found[one.position]))
        elif one.base == "selp" and len(one.operands) == 4:
            yes, no, chosen = one.operands[1:]
            known = told.get(reads(one)[-1]) if reads(one) else None
            del chosen
            if known and isinstance(yes, Immediate) and isinstance(no, Immediate):
                values = (int(yes.value), int(no.value))
                own = values if known == (1, 0) else values[::-1]
                told.update(dict.fromkeys(writes(one), own))
        elif one.opcode.startswith("st.shared") and len(one.operands) == 2:
            place = place_of(one.operands[0])
            if place is not None:
                names = reads(one)
                flags.setdefault(place, []).append(told.get(names[-1]) if names else None)
    for one in body.instructions:
        if one.opcode.startswith("ld.shared") and len(one.operands) == 2:
            place = place_of(one.operands[1])
            stored = flags.get(place, []) if place is not None else []
            if len(stored) == 1 and stored[0] is not None:
                found[one.position] = stored[0]
    return found


def _elects(one: Instruction, made: dict[str, Instruction | None]) -> bool:
    """Whether a comparison for (in)equality is of a counted number with the size of the grid."""
    if one.modifiers[:1] not in (("eq",), ("ne",)) or len(one.operands) != 3:
        return False
    counted, sized = (_sources(one, made, side) for side in (1, 2))
    if "nctaid" in counted:
        counted, sized = sized, counted
    return "atom" in counted and "nctaid" in sized and "atom" not in sized


def _sources(one: Instruction, made: dict[str, Instruction | None], side: int) -> set[str]:
    """What an operand is computed from, as far as that matters here."""
    found: set[str] = set()
    waiting: list[Operand | str] = [one.operands[side]]
    seen: set[str] = set()
    while waiting and len(seen) < 16:
        top = waiting.pop()
        if isinstance(top, Special) and top.name.startswith("%nctaid"):
            found.add("nctaid")
        name = top if isinstance(top, str) else getattr(top, "name", None)
        maker = made.get(name) if isinstance(name, str) else None
        if maker is None or name in seen:
            continue
        seen.add(str(name))
        if maker.base == "atom" and ".shared" not in maker.opcode:
            if _COUNTS & set(maker.modifiers):
                found.add("atom")
        elif maker.base in _STEPS:
            waiting += maker.operands[1:]
    return found
