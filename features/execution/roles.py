"""How a kernel uses what it loads and what it is given: floats, indices, pointers.

Flow-insensitive over one function. It decides only what *invented* data look like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from wattcast.features.attached import attached
from wattcast.features.dataflow import closure, computed_from, reads, writes, written
from wattcast.features.ptx import ir

_ADDRESS_STEPS = frozenset({
    "add", "sub", "mul", "mad", "shl", "shr", "or", "and", "bfi", "bfe", "cvt", "mov", "selp",
    "min", "max", "cvta", "mul24", "mad24", "prmt", "lop3",
})  # fmt: skip
_POINTER_STEPS = frozenset({"add", "sub", "mov", "cvta", "selp", "mad"})
_MOVES = frozenset({"mov", "ld", "st", "selp", "shfl", "atom", "ldu", "cvta", "call"})
_FLOATS = frozenset({"f16", "f32", "f64", "bf16", "tf32"})
_PACKED = frozenset({"f16x2", "bf16x2"})


_ALONE = frozenset({ir.Immediate, ir.Special, ir.Symbol, ir.Address, ir.Opaque})


def registers(operands: Iterable[ir.Operand]) -> list[str]:
    """Names of the registers in operands, nested ones included; not those of addresses."""
    found = []
    for operand in operands:
        if type(operand) is ir.Register:
            found.append(operand.name)
        elif type(operand) not in _ALONE:
            found += [part.name for part in ir.parts(operand) if isinstance(part, ir.Register)]
    return found


_NOT_FROM_MEMORY = ("ld.param", "div.", "mbarrier.", "elect.", "mapa.", "activemask")


_STORES = ("st.", "stmatrix.", "wmma.store.")

_STORED_TO_TELL = ("st.param", "st.async", "st.bulk")
"""Stores of which more than the address decides what is counted."""


def that_count(
    bodies: Sequence[ir.Body], is_plain: Callable[[ir.Instruction], bool]
) -> tuple[list[frozenset[str]], list[frozenset[str]], bool]:
    """Registers of each function whose values decide a count: of themselves, and with those that
    decide it through memory; and whether contents of memory do.

    What steers or addresses is counted; so is everything that goes into an instruction that is
    not plain (``program.is_plain``). Stored values only where a value that counts is loaded.
    """
    found = [_that_count(body, is_plain, contents=False) for body in bodies]
    if not any(
        not is_plain(one)
        and not one.opcode.startswith(_NOT_FROM_MEMORY)
        and not names.isdisjoint(writes(one))
        for body, names in zip(bodies, found, strict=True)
        for one in body.instructions
    ):
        return found, found, False
    return found, [_that_count(body, is_plain, contents=True) for body in bodies], True


def _that_count(
    body: ir.Body, is_plain: Callable[[ir.Instruction], bool], *, contents: bool
) -> frozenset[str]:
    found: set[str] = set()
    for one in body.instructions:
        if one.predicate is not None:
            found.add(one.predicate)
        stores = one.opcode.startswith(_STORES) and not one.opcode.startswith(_STORED_TO_TELL)
        if stores and not contents:
            place = one.operands[0] if one.operands else None
            if isinstance(place, ir.Address):
                found.update({place.base.name} if isinstance(place.base, ir.Register) else ())
                if one.base == "wmma":
                    found.update(registers(one.operands[2:]))  # its stride
                continue
        if not is_plain(one):
            found.update(reads(one))
    return frozenset(computed_from(found, written(body)))


class Usage:
    """What registers of one function are used for.

    ``roles``: register -> ``float``, ``half2``, ``index`` or ``pointer``. ``pointers`` are all
    registers an address is computed from by adding.
    """

    def __init__(self, body: ir.Body) -> None:
        floats: set[str] = set()
        packed: set[str] = set()
        bases: set[str] = set()
        any_step: dict[str, list[str]] = {}
        added: dict[str, list[str]] = {}
        moved: dict[str, list[str]] = {}
        loaded: dict[str, str] = {}
        for one in body.instructions:
            parts = one.opcode.split(".")
            base, kind = parts[0], parts[-1]
            operands = one.operands
            for operand in operands:
                if isinstance(operand, ir.Address) and isinstance(operand.base, ir.Register):
                    bases.add(operand.base.name)
            if base in ("ld", "ldu") and operands:
                for name in registers(operands[:1]):
                    loaded[name] = kind
                continue
            names = registers(operands[1:])
            if base not in _MOVES:
                if kind in _FLOATS:
                    floats.update(names)
                elif kind in _PACKED:
                    packed.update(names)
            elif base == "mov":
                for target in registers(operands[:1]):
                    moved.setdefault(target, []).extend(names)
            if base in _ADDRESS_STEPS:
                for target in registers(operands[:1]):
                    any_step.setdefault(target, []).extend(names)
                    if base in _POINTER_STEPS:
                        last = names[-1:] if base == "mad" else names
                        added.setdefault(target, []).extend(last)
        declared = {d.name for d in body.registers if d.type in _FLOATS}
        floats |= {n for n in moved if n.rstrip("0123456789") in declared}
        self.pointers = closure(bases, lambda name: added.get(name, ()))
        index = closure(bases, lambda name: any_step.get(name, ()))
        floats = closure(floats, lambda name: moved.get(name, ()))
        self.roles: dict[str, str] = {}
        for name, kind in loaded.items():
            if name in self.pointers and kind.endswith("64"):
                self.roles[name] = "pointer"
            elif name in index:
                self.roles[name] = "index"
            elif name in packed:
                self.roles[name] = "half2"
            elif name in floats:
                self.roles[name] = "float"
        self.sources = any_step


@attached
def usage(body: ir.Body) -> Usage:
    """``Usage`` of a body, made once."""
    return Usage(body)
