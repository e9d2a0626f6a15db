"""Divergence, barriers, calls and talk between lanes, on PTX written by hand."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.features.execution_kernels import run
from tests.fixtures.tables import table
from wattcast.features.execution import steady

IN_PROGRESS = table("bodies", "in_progress")


@pytest.mark.parametrize("body", IN_PROGRESS.values(), ids=IN_PROGRESS)
def test_loops_in_progress_are_not_settled_early(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = """.func f(.reg .u32 %a) { .reg .pred %q; .reg .b32 %b; mov.u32 %b, %a;
        $one: sub.s32 %b, %b, 1; setp.gt.s32 %q, %b, 0; @%q bra $one;
        $two: add.s32 %b, %b, 1; setp.lt.s32 %q, %b, %a; @%q bra $two;
        ret; }
    """
    kept, _ = run(body, before=before)
    monkeypatch.setattr(steady, "MOST_HELD", 0)
    settled, _ = run(body, before=before)
    assert settled.loops == kept.loops
    assert max(loop.mean for loop in kept.loops) > 2


@pytest.mark.parametrize("again", ["setp.lt.u32 %p1, %r6, 0;", "setp.lt.u32 %p1, %r6, 5;"])
def test_memory_for_loops_does_not_grow_with_their_number(
    again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady, "MOST_HELD", 4)
    monkeypatch.setattr(steady, "WATCHED_BYTES", 2**20)
    body = "\n".join(
        f"mov.u32 %r6, 0; $l{i}: add.u32 %r6, %r6, 1; {again} @%p1 bra $l{i};" for i in range(200)
    )
    tracemalloc.start()
    run(body, grid=32, block=256, exact=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.6 * 200 * 8 * 256 * 32  # of a number per thread and loop
