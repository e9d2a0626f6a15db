"""Shared memory a kernel declares: what it takes whatever the launch adds."""

from __future__ import annotations

from wattcast.features.effort import checkpoint
from wattcast.features.ptx.ir import (
    Address,
    Function,
    Group,
    Instruction,
    Module,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)


def static_shared_bytes(module: Module, function: Function) -> int:
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
    used: dict[tuple[str, str], Variable] = {}
    seen = {function.name}
    waiting = [function]
    while waiting:
        checkpoint()
        current = waiting.pop()
        body = current.body
        own = {item.name: item for item in body.variables if _is_static_shared(item)}
        used |= {(current.name, name): item for name, item in own.items()}
        names: set[str] = set()
        indirect = False
        for instruction in body.instructions:
            for operand in instruction.operands:
                _symbols(operand, names)
            indirect = indirect or _is_indirect_call(instruction)
        for name in names:
            if name in outside and name not in own:
                used["", name] = outside[name]
        reached = (
            [item for item in module.functions if not item.is_entry]
            if indirect
            else [found for name in names if (found := module.function(name)) is not None]
        )
        for callee in reached:
            if callee.name not in seen and not callee.declaration:
                seen.add(callee.name)
                waiting.append(callee)
    total = 0
    for item in sorted(used.values(), key=lambda item: -item.align):
        align = max(item.align, 1)
        total = -(-total // align) * align + item.bytes
    return total


def _is_static_shared(item: Variable) -> bool:
    return item.space == "shared" and not item.external and item.bytes > 0


def _is_indirect_call(instruction: Instruction) -> bool:
    if instruction.base != "call":
        return False
    target = next((item for item in instruction.operands if not isinstance(item, Group)), None)
    return isinstance(target, Register)


def _symbols(operand: Operand, found: set[str]) -> None:
    """Names of variables and functions in an operand (nesting is bounded by the reader)."""
    if isinstance(operand, Symbol):
        found.add(operand.name)
    elif isinstance(operand, Address):
        if isinstance(operand.base, Symbol):
            found.add(operand.base.name)
    elif isinstance(operand, (Vector, Group)):
        for element in operand.elements:
            _symbols(element, found)
    elif isinstance(operand, Pair):
        _symbols(operand.first, found)
        _symbols(operand.second, found)
