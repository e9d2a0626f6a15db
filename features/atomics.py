"""The atomics of a launch, from either analysis: ``wattcast.features.activity.extras.Atomics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from wattcast.features.activity.extras import Atomics, AtomicUse
from wattcast.features.isa import classify
from wattcast.features.ptx.ir import Function, Instruction, Module

if TYPE_CHECKING:  # both are loaded when first used: they cost start-up time
    from wattcast.features.execution import ExecutionResult
    from wattcast.features.symbolic import SymbolicResult
    from wattcast.features.values import Node

_CHANGING = frozenset({"special", "unknown", "phi", "join", "exit"})
"""Values that are not the same in all threads and all iterations, or may not be."""


def executed_atomics(module: Module, result: ExecutionResult) -> Atomics:
    """The atomics that sampled blocks ran."""
    uses = []
    for one in result.atomics.sites:
        owner = module.function(one.function)
        place = owner.body.instructions[one.position].location if owner else None
        uses.append(
            AtomicUse(
                one.function, one.position, one.line, place.line if place else None, one.opcode,
                one.space, one.requests, one.operations, one.passes, one.hottest_operations,
                one.hottest_requests,
            )
        )  # fmt: skip
    facts = result.atomics
    return Atomics(tuple(uses), facts.hottest_operations, facts.hottest_requests)


def symbolic_atomics(module: Module, function: Function, result: SymbolicResult) -> Atomics:
    """Atomics whose addresses are known: one for all lanes of a warp, or one for each lane.

    Where every thread of the launch acts on one address, as on a counter, that is the hottest.
    """
    strides = {info.position: info.stride_bytes for info in result.accesses if info.affine}
    fixed = _fixed_addresses(module, function)
    uses: list[AtomicUse] = []
    hottest: dict[tuple[Node, int], tuple[float, float]] = {}
    unknown = False
    for name, counts in result.functions.items():
        owner = module.function(name)
        for one in owner.body.instructions if owner else ():
            if classify(one.opcode).category != "atomic":
                continue
            at, own = one.position, name == function.name
            lanes = float(counts.active_lanes[at])
            stride = strides.get(at) if own else None
            requests = float(counts.requests[at])
            if requests:
                address = fixed.get(at) if own else None
                uses.append(_use(name, one, "global", requests, lanes, stride, address is not None))
                if address is None:
                    unknown = True
                else:
                    before = hottest.get(address, (0.0, 0.0))
                    hottest[address] = before[0] + lanes, before[1] + requests
            shared = float(counts.shared_requests[at])
            if shared:
                uses.append(_use(name, one, "shared", shared, lanes, stride, False))
    if unknown:
        return Atomics(tuple(uses), None, None)
    return Atomics(tuple(uses), *max(hottest.values(), default=(0.0, 0.0)))


def _use(
    function: str, one: Instruction, space: Literal["global", "shared"], requests: float,
    lanes: float, stride: int | None, fixed: bool,
) -> AtomicUse:  # fmt: skip
    passes: float | None = None
    if fixed or stride == 0:
        passes = lanes
    elif stride is not None or lanes == requests:  # an address for each lane, or one lane only
        passes = requests
    return AtomicUse(
        function, one.position, one.line, one.location.line if one.location else None,
        one.opcode, space, requests, lanes, passes,
        lanes if fixed else None, requests if fixed else None,
    )  # fmt: skip


def _fixed_addresses(module: Module, function: Function) -> dict[int, tuple[Node, int]]:
    """Address (node and offset) of every access that goes to one place in the whole launch."""
    from wattcast.features.symbolic.build import scheme

    found = {}
    for access in (access for block in scheme(module, function).accesses for access in block):
        waiting, seen = [access.address], {access.address}
        while waiting and waiting[-1].op not in _CHANGING:
            for node in waiting.pop().args:
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
        if not waiting:
            found[access.position] = access.address, access.offset
    return found
