"""Counts of the reference interpreter against numbers worked out by hand.

Sectors, bank conflicts and divergence of plain accesses are held by its comparison with the engine
(``tests/features/test_execution_reference.py``), whose rules ``test_memory.py`` and
``test_symbolic_facts.py`` hold to numbers worked out by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fixtures.kernels.manifest import KERNELS
from tests.fixtures.ptx_text import stored_ptx
from tests.reference.fixtures import ptx_text
from tests.reference.machine import PerInstruction, ReferenceResult, run


def of(result: ReferenceResult, start: str) -> list[PerInstruction]:
    """The executed instructions whose opcode begins with ``start``."""
    return [row for row in result.per_instruction
            if row.opcode.startswith(start) and row.warp_executions]  # fmt: skip


def total(rows: list[PerInstruction], field: str) -> int:
    return sum(getattr(row, field) for row in rows)


def fixture(name: str, grid: tuple[int, ...], block: tuple[int, ...], **arguments: Any) -> Any:
    """A fixture kernel on sm_70 (the first target with it) with arguments of one's own."""
    kernel = next(k for k in KERNELS if k.name == name)
    target = "sm_80" if name.startswith(("mma", "async")) else "sm_70"
    return run(ptx_text(kernel.source, target), kernel.entry, grid, block, arguments)


def test_an_asynchronous_copy_counts_on_both_sides() -> None:
    result = fixture(
        "async_copy", (1,), (64,), out=np.zeros(64, np.float32),
        **{"in": np.zeros((2, 64, 4), np.float32)}, tiles=np.int32(2),
    )  # fmt: skip
    copies = of(result, "cp.async.cg")
    # Two tiles, two warps, 512 bytes per warp: 16 sectors, a transaction per quarter warp.
    assert total(copies, "sectors") == 2 * 2 * 16
    assert total(copies, "shared_transactions") == 2 * 2 * 4


def test_ldmatrix_takes_one_transaction_per_matrix_unless_rows_collide() -> None:
    half = np.float16
    padded = fixture(
        "mma_inline", (1,), (32,), c=np.zeros((16, 8), np.float32), a=np.zeros((16, 16), half),
        b=np.zeros((16, 8), half), k=np.int32(16),
    )  # fmt: skip
    # Rows 48 bytes apart hit different banks: x4 and x2 matrices.
    assert [r.shared_transactions for r in of(padded, "ldmatrix")] == [4, 2]
    bits = np.uint16
    packed = fixture("mma_bf16", (1,), (32,), c=np.zeros((16, 8), np.float32),
                     a=np.zeros((16, 16), bits), b=np.zeros((16, 8), bits))  # fmt: skip
    # Rows 32 bytes apart: rows r and r + 4 share banks. Rows 16 bytes apart: none do.
    assert [r.shared_transactions for r in of(packed, "ldmatrix")] == [8, 2]


BRANCHES = stored_ptx("branches_and_a_call")


def test_lanes_meet_again_at_the_smallest_program_counter() -> None:
    result = run(BRANCHES, "branches", (1,), (40,), {"p": np.zeros(40, np.uint32)})
    assert result.memory["p"].tolist() == [0, 2, 4, 6, 8, *range(105, 140)]
    counts = {(r.opcode, r.line): (r.warp_executions, r.active_lanes)
              for r in result.per_instruction}  # fmt: skip
    by_opcode = {opcode: value for (opcode, _), value in counts.items()}
    # 40 threads are two warps; the second warp holds no small thread.
    assert by_opcode["mul.wide.u32"] == (2, 40)
    assert by_opcode["bra"] == (2, 5)
    assert by_opcode["bra.uni"] == (2, 35)
    assert by_opcode["call.uni"] == (1, 5)
    assert by_opcode["st.param.b32"] == (1, 5)
    functions = {r.function for r in result.per_instruction}
    assert functions == {"branches", "twice"}
    # Both stores run by both warps; the guard decides who is active, and what memory sees.
    stores = of(result, "st.global")
    assert [(s.warp_executions, s.active_lanes, s.sectors) for s in stores] == [
        (2, 40, 5), (2, 0, 0),
    ]  # fmt: skip


def test_a_collective_waits_for_the_lanes_it_names() -> None:
    # Lane 0 goes straight to the vote; the others take a way that lies behind it in the text.
    ptx = stored_ptx("vote_behind_its_lanes")
    result = run(ptx, "wait", (1,), (32,), {"p": np.zeros(32, np.uint32)})
    assert set(result.memory["p"].tolist()) == {0xFFE00000}
    (vote,) = of(result, "vote")
    assert (vote.warp_executions, vote.active_lanes) == (1, 32)
