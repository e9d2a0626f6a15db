"""Atomics that meet at one address: worked out by hand, and against the scalar reference."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.features.execution_kernels import run
from tests.features.test_execution_reference import run_exact
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.fixtures import ptx_text, reference_arguments
from tests.reference.machine import Event
from tests.reference.machine import run as run_reference
from wattcast.features.counts import Atomics, AtomicUse
from wattcast.features.execution import tally


def atomics(body: str, **options: object) -> Atomics:
    options = {"exact": False, "grid": 5000, "block": 256} | options
    result, _ = run(body + "\nret;", **options)  # type: ignore[arg-type]
    return result.atomics


def one(body: str, **options: object) -> AtomicUse:
    (site,) = atomics(body, **options).uses
    return site


WARPS = 5000 * 8
THREADS = 5000 * 256


def test_one_counter_for_all_takes_every_operation_of_the_launch() -> None:
    site = one("red.global.add.u32 [%rd1], 1;")
    assert (site.requests, site.operations, site.passes) == (WARPS, THREADS, THREADS)
    assert (site.hottest_operations, site.hottest_requests) == (THREADS, WARPS)


def test_a_word_for_every_thread_is_hit_once() -> None:
    site = one("red.global.add.u32 [%rd3], 1;")
    assert (site.requests, site.operations, site.passes) == (WARPS, THREADS, WARPS)
    assert (site.hottest_operations, site.hottest_requests) == (1, 1)


def test_a_scatter_over_many_words_has_no_hot_one() -> None:
    # Neighbouring blocks meet somewhere in a million words, but nowhere more than by chance.
    body = """
        mul.lo.u32 %r8, %r5, 0x9E3779B1; xor.b32 %r9, %r8, 0x5bd1e995; mul.lo.u32 %r8, %r9, %r8;
        shr.u32 %r8, %r8, 12; mul.wide.u32 %rd5, %r8, 4; add.u64 %rd6, %rd1, %rd5;
        red.global.add.u32 [%rd6], 1;"""
    site = one(body)
    assert site.hottest_operations is not None
    assert site.hottest_operations < 300


def test_instructions_on_one_word_add_up() -> None:
    body = "red.global.add.u32 [%rd1], 1; red.global.max.u32 [%rd1], %r2;"
    facts = atomics(body)
    assert [site.hottest_operations for site in facts.uses] == [THREADS, THREADS]
    assert (facts.hottest_operations, facts.hottest_requests) == (2 * THREADS, 2 * WARPS)


def test_hot_words_are_kept_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_PENDING", 500)
    monkeypatch.setattr(tally, "MOST_ENTRIES", 1000)
    # Each block has 256 words for itself, and its first thread counts it.
    body = """
        red.global.add.u32 [%rd3+4096], 1; setp.eq.u32 %p1, %r2, 0; mov.u32 %r6, 0;
        mov.u64 %rd8, %rd3; $loop: selp.b64 %rd9, %rd1, %rd8, %p1; red.global.add.u32 [%rd9], 1;
        add.u64 %rd8, %rd8, 8388608; add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 9;
        @%p2 bra $loop;"""
    facts = atomics(body, extrapolate=False)
    assert facts.hottest_operations == pytest.approx(5000 * 9, rel=0.05)


def test_words_of_a_line_add_up() -> None:
    # Thread t adds to word t % 32: each word takes a 32nd, their line takes all.
    body = """
        and.b32 %r8, %r2, 31; mul.wide.u32 %rd5, %r8, 4; add.u64 %rd6, %rd1, %rd5;
        red.global.add.u32 [%rd6], 1;"""
    facts = atomics(body)
    assert (facts.hottest_operations, facts.line_operations) == (WARPS, THREADS)


def test_no_atomics_no_contention() -> None:
    assert atomics("st.global.u32 [%rd3], %r5;") == Atomics((), 0, 0)


LOOP = """
    mov.u32 %r6, 0; {before}
    $loop: {body} add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r1; @%p1 bra $loop;"""


@pytest.mark.parametrize(
    ("before", "body", "hottest"),
    [
        ("", "red.global.add.u32 [%rd1], 1;", 300 * 64 * 100),
        # All threads walk over the same words, or each over its own ones.
        ("mov.u64 %rd8, %rd1;", "red.global.add.u32 [%rd8], 1; add.u64 %rd8, %rd8, 4;", 64 * 100),
        ("mov.u64 %rd8, %rd3;", "red.global.add.u32 [%rd8], 1; add.u64 %rd8, %rd8, 65536;", 1),
    ],
)  # fmt: skip
def test_skipped_iterations_hit_what_they_would_have_hit(
    before: str, body: str, hottest: float
) -> None:
    loop = LOOP.format(before=before, body=body)
    quick = one(loop, n=300, grid=100, block=64)
    full = one(loop, n=300, grid=100, block=64, extrapolate=False, effort=None)
    assert (quick.passes, quick.operations) == (full.passes, full.operations)
    assert quick.hottest_operations == hottest
    assert full.hottest_operations == pytest.approx(hottest)


@pytest.mark.parametrize("name", ["histogram", "atomics", "match", "generic_pointer", "compact"])
def test_passes_and_the_hottest_word_equal_the_reference(name: str) -> None:
    fixture = next(k for k in KERNELS if k.name == name)
    for shape in fixture.shapes:
        passes: Counter[tuple[str, int, str]] = Counter()
        words: Counter[int] = Counter()

        def note(event: Event, passes=passes, words=words) -> None:
            if not event.opcode.startswith(("atom", "red")):
                return
            for space in ("global", "shared"):
                hit = Counter(address for s, _, address, _ in event.touched if s == space)
                passes[event.function, event.index, space] += max(hit.values(), default=0)
                if space == "global":
                    words.update(hit)

        run_reference(
            ptx_text(fixture.source, "sm_70"), fixture.entry, shape.grid, shape.block,
            reference_arguments(name, shape), shape.dynamic_shared_bytes, on_event=note,
        )  # fmt: skip
        result, _ = run_exact(fixture, shape, "sm_70")
        facts = result.atomics
        ours = {(site.function, site.position, site.space): site.passes for site in facts.uses}
        assert ours == {key: count for key, count in passes.items() if count}
        assert facts.hottest_operations == max(words.values(), default=0)
