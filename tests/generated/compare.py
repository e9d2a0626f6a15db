"""Runs a generated kernel on both interpreters and tells every difference."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.features.whole_runs import run_whole
from tests.generated.programs import Generated
from tests.reference.machine import ReferenceResult, run
from tests.reference.memory import buffer_addresses
from tests.reference.parse import InterpreterError
from wattcast.features.execution import ExecutionResult
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module

MOST_STEPS = 30_000
"""Warp instructions of the reference; programs that need more are left out, it is slow."""
HARMLESS = {"irreducible_loop", "endless_loop"}
"""Diagnostics that say nothing against the result of an exact run."""
COUNTS = ("warp_executions", "active_lanes", "sectors", "shared_transactions")


def reference(program: Generated) -> ReferenceResult | None:
    """None if it takes too long."""
    try:
        return run(
            program.ptx, "k", program.grid, program.block, program.arguments(),
            program.dynamic_shared_bytes, max_steps=MOST_STEPS,
        )  # fmt: skip
    except InterpreterError as error:
        if "more warp instructions" in str(error):
            return None
        raise


def run_engine(
    program: Generated,
) -> tuple[ExecutionResult, dict[int, Any], Module, Launch]:
    """What the engine says and leaves in memory; the module and launch it was given."""
    arguments = program.arguments()
    addresses = buffer_addresses(arguments)
    values: dict[str, Any] = {}
    for position, (name, value) in enumerate(arguments.items()):
        values[str(position)] = addresses[name] if name in addresses else value.item()
    module = read_module(program.ptx)
    launch = Launch(program.grid, program.block, program.dynamic_shared_bytes, values)
    held = {addresses[name]: arguments[name] for name in addresses}
    return *run_whole(module.kernel("k"), module, launch, held), module, launch


def differences(program: Generated, expected: ReferenceResult) -> list[str]:
    """What the executed analysis says otherwise than the reference; empty if nothing."""
    result, contents, _, _ = run_engine(program)
    found = [
        f"diagnostic {d.code}: {d.detail} (line {d.line})"
        for d in result.diagnostics
        if d.code not in HARMLESS
    ]
    arguments = program.arguments()
    for name, address in buffer_addresses(arguments).items():
        wanted = expected.memory[name]
        got = contents[address].view(wanted.dtype)[: wanted.size].reshape(wanted.shape)
        same = (got == wanted) | ((got != got) & (wanted != wanted))
        if wanted.dtype.kind == "f":  # fused products are rounded twice
            same |= np.isclose(got, wanted, rtol=1e-3, atol=1e-5)
        for place in np.argwhere(~same)[:3]:
            at = tuple(int(i) for i in place)
            found.append(f"{name}{list(at)} is {got[at]!r}, reference {wanted[at]!r}")
    for row in expected.per_instruction:
        counts = result.functions.get(row.function)
        for count in COUNTS:
            told = getattr(counts, count)[row.index] if counts else 0.0
            if told != getattr(row, count):
                found.append(
                    f"{row.function} line {row.line} {row.opcode}: {count} is {told:g}, "
                    f"reference {getattr(row, count)}"
                )
    return found
