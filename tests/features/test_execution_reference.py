"""The vectorised engine against the scalar reference interpreter, which shares no code with it.

Every fixture kernel, on its oldest and its newest target, at its three shapes: executed counts,
sectors and shared transactions of every instruction are equal, and so is memory where neither
matrix units nor textures give what is stored (floats but for how products are rounded). Where
arithmetic that decides no count is left out, as in every answer, all counts stay the same."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.features.execution_kernels import BASE, kernel, run
from tests.features.whole_runs import run_whole
from tests.fixtures.kernels.data import FixtureKernel, Shape, materialise, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS, TENSOR_KERNELS
from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.tables import rows, table
from tests.reference.fixtures import ptx_text, reference_arguments, run_fixture
from tests.reference.machine import Event
from tests.reference.machine import run as interpret
from tests.reference.machine import run as run_reference
from tests.reference.memory import TEXTURE_BASE, TensorMap, buffer_addresses
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.counts import Atomics, AtomicUse
from wattcast.features.execution import ExecutionResult, bulk, steady, tally
from wattcast.features.execution.alu import arithmetic
from wattcast.features.execution.floating import comparison
from wattcast.features.execution.values import TYPES
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Function
from wattcast.features.wide_loads import joined_loads
from wattcast.models.clocks import default_clocks
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import combined_seconds, resource_seconds

CASES = [
    pytest.param(kernel, target, id=f"{kernel.name}-{target}")
    for kernel in KERNELS
    for target in sorted({targets(kernel.source)[0], targets(kernel.source)[-1]})
] + [
    pytest.param(kernel, target, id=f"{kernel.name}-{target}", marks=pytest.mark.slow)
    for kernel in TENSOR_KERNELS
    for target in targets(kernel.source)
]

TENSOR = {kernel.name for kernel in TENSOR_KERNELS}
"""Their copies give what the engine does not follow."""

NOT_FOLLOWED = {"mma", "wmma", "ldmatrix", "tex"}


def opcodes(function: Function) -> set[str]:
    return {one.base for one in function.body.instructions} if not function.declaration else set()


def run_exact(
    kernel: FixtureKernel, shape: Shape, target: str, *, every_value: bool = True
) -> tuple[ExecutionResult, dict[str, np.ndarray]]:
    """The launch on the engine, and its buffers afterwards by name."""
    made = materialise(kernel.name, shape)
    places = buffer_addresses(made)
    arguments: dict[str, int | float] = {}
    textures = 0
    by_value: dict[str, bytes] = {}
    module = read_module(ptx_path(kernel.source, target).read_text())
    function = module.kernel(kernel.entry)
    for index, (name, value) in enumerate(made.items()):
        if isinstance(value, np.ndarray):
            arguments[str(index)] = places[name]
        elif isinstance(value, tuple):
            arguments[str(index)] = TEXTURE_BASE + 256 * textures
            textures += 1
        elif isinstance(value, bytes):
            by_value[str(index)] = value
        else:
            arguments[str(index)] = value.item()
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    held = {places[name]: made[name] for name in places}
    result, contents = run_whole(
        function, module, launch, held, by_value=by_value, every_value=every_value
    )
    after = {
        name: contents[place].view(made[name].dtype).reshape(made[name].shape)
        for name, place in places.items()
    }
    return result, after


def plain(value: Any) -> Any:
    """A result as plain data, but for its effort: what decides no count is not charged."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name != "effort"}
    return value


@pytest.mark.parametrize(("kernel", "target"), CASES)
def test_counts_and_memory_equal_the_reference(kernel: FixtureKernel, target: str) -> None:
    module = read_module(ptx_path(kernel.source, target).read_text())
    followed = kernel.name not in TENSOR and not any(
        one in NOT_FOLLOWED for each in module.functions for one in opcodes(each)
    )
    joined = {each.name: joined_loads(each.body).bytes for each in module.functions if each.body}
    for number, shape in enumerate(kernel.shapes):
        if any(isinstance(value, TensorMap) for value in shape.arguments.values()):
            continue  # what a map holds is not known to the engine
        wanted = run_fixture(kernel, shape, target)
        result, after = run_exact(kernel, shape, target)
        counts_alone, _ = run_exact(kernel, shape, target, every_value=False)
        alone, every = plain(counts_alone), plain(result)
        if not followed:  # divisions by sums of products that nobody computes: zeros, a long way
            for each in (*alone["functions"].values(), *every["functions"].values()):
                del each["constant_transactions"]
        assert alone == every
        assert result.sampling.completed
        assert result.diagnostics == ()
        for one in wanted.per_instruction:
            counts = result.functions[one.function]
            place = one.index
            found = (
                counts.warp_executions[place],
                counts.active_lanes[place],
                counts.sectors[place],
                counts.shared_transactions[place],
            )
            expected = (
                one.warp_executions, one.active_lanes, one.sectors, one.shared_transactions,
            )  # fmt: skip
            if joined[one.function][place]:  # one load of ptxas (test_wide_loads.py)
                found, expected = found[:3], expected[:3]
            if one.opcode.startswith("tex"):  # the reference counts no sectors of texels
                found, expected = found[:2], expected[:2]
            where = f"shape {number}, {one.function}, {one.opcode} in line {one.line}"
            if kernel.order_dependent:
                continue
            assert found == expected, where
        for name, memory in after.items() if followed else ():
            np.testing.assert_allclose(
                memory, wanted.memory[name].reshape(memory.shape), 1e-3, 1e-5,
                err_msg=f"shape {number}, buffer {name}",
            )  # fmt: skip


# --- Asynchronous copies, memory barriers and matrix units: counts as the scalar reference
# interpreter has them, which shares no code with the engine


@cache
def answer(name: str, gpu: str = "h100-sxm5") -> KernelAnalysis:
    """The large launch of a kernel, its pointers and tensor maps not told."""
    (found,) = (each for each in TENSOR_KERNELS if each.name == name)
    shape = found.large
    given = {
        str(index): value.item()
        for index, value in enumerate(shape.arguments.values())
        if isinstance(value, np.generic)
    }
    module = read_module(ptx_path(found.source, targets(found.source)[-1]).read_text())
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, given)
    return analyse(module, found.entry, launch, load_gpu(gpu))


def test_a_gemm_of_tensor_copies_has_the_work_and_the_bytes_of_its_formula() -> None:
    found = answer("wgmma_gemm")
    m = n = k = 4096
    (work,) = found.extras.tensor
    assert (work.kind, work.sparse, work.multiply_adds) == ("f16", False, m * n * k)
    blocks, rounds = (m // 64) * (n // 64), k // 64
    assert found.activity.global_load_sectors == blocks * rounds * (64 + 64) * 64 * 2 / 32
    assert found.activity.footprint_bytes == pytest.approx(
        2 * (m * k + n * k) + 4 * m * n, rel=0.01
    )
    # Written by the copies, read by the products: A by rows, B once for all four warps.
    boxes, products = blocks * rounds * 2 * 64, blocks * rounds * 4 * (16 + 16)
    assert found.activity.shared_transactions == boxes + products
    codes = [each.code for each in found.activity_diagnostics]
    assert codes.count("tensor_map_assumed") == 2  # once for each map
    assert "unsupported_instruction" not in codes


def test_bulk_copies_to_global_memory_are_stores() -> None:
    found = answer("bulk_copy").activity
    pieces = 64 * 1024
    assert found.global_store_requests == pieces
    assert found.global_store_sectors == pieces * 256 * 4 / 32
    assert found.footprint_bytes == 2 * pieces * 256 * 4


FIFTH = stored_ptx("tcgen05_pair")
"""A block of 128 x 128 of a product, two steps of k = 16 a round, B copied to both blocks of a
cluster; assembled by ptxas 12.9."""


def test_products_of_the_fifth_generation_count_their_work_and_operands() -> None:
    blocks, rounds = 64, 10
    launch = Launch.of(blocks, 128, 0, {"rounds": rounds})
    found = analyse(read_module(FIFTH), "k", launch, load_gpu("b200"))
    (work,) = found.extras.tensor
    m, n, k = 128, 256, 16
    assert work.multiply_adds == blocks * rounds * 2 * m * n * k
    assert work.kind == "f16"
    boxes = 40960 / 2 / 32  # two copies share what is announced
    assert found.activity.global_load_sectors == blocks * rounds * 2 * boxes
    # A and B from shared memory, then A from tensor memory; the second copy comes to two blocks.
    products = (m + n) * 32 / 128 + n * 32 / 128
    copies = (1 + 2) * 40960 / 2 / 128
    reads = blocks * 4  # of the address in tensor memory, by four warps
    assert found.activity.shared_transactions == blocks * rounds * (products + copies) + reads
    assert [trip.count for trip in found.trip_counts] == [rounds, 1, 1]  # of the waits: one
    codes = {each.code for each in found.activity_diagnostics}
    assert codes == {"argument_assumed", "tensor_map_assumed"}
    inside = found.executed.functions["k"]
    commit = next(i for i in found.function.body.instructions if "commit" in i.opcode)
    assert inside.warp_executions[commit.position] == blocks * rounds


def test_blocks_of_a_cluster_know_their_rank() -> None:
    body = """mov.u32 %r6, %cluster_ctarank; mov.u32 %r7, %cluster_nctarank;
        mad.lo.u32 %r6, %r6, 16, %r7; mov.u32 %r7, %clusterid.x; mad.lo.u32 %r6, %r7, 256, %r6;
        st.global.u32 [%rd3], %r6; ret;"""
    _, alone = run(body, grid=6)
    assert alone[::32].tolist() == [256 * block + 1 for block in range(6)]
    text = kernel(body).replace(")\n{", ")\n.reqnctapercluster 3\n{")
    module, out = read_module(text), np.zeros(6 * 32, dtype=np.uint32)
    launch = Launch.of(6, 32, 0, {"out": BASE, "n": 0})
    _, contents = run_whole(module.kernel("k"), module, launch, {BASE: out})
    after = contents[BASE].view(np.uint32)[::32].tolist()
    assert after == [256 * (block // 3) + 16 * (block % 3) + 3 for block in range(6)]


@pytest.mark.parametrize(
    ("name", "exposed", "pipelined", "between"),
    [
        # Each round waits for what the one before has asked for, behind two thirds of its text.
        ("gemm_mma_2", 0, 128, 0.68),
        ("gemm_mma_4", 0, 128 / 3, 0.68 / 3),
        ("staged_sum_2", 0, 1024, 0.69),
        ("staged_sum_4", 0, 1024 / 3, 0.65 / 3),
        # Queries, then keys and values in the round that asks for them, after all of the last.
        ("attention", 1, 128, 0.94),
        ("wgmma_gemm", 0, 64 / 2, 0),  # of three stages one is in use
        ("bulk_copy", 0, 64 / 3, 0),  # shared memory holds four pieces, two of them results
    ],
)
def test_a_wait_for_a_copy_knows_how_many_rounds_ahead_it_was_asked_for(
    name: str, exposed: float, pipelined: float, between: float
) -> None:
    found = answer(name, "h100-sxm5" if name in ("wgmma_gemm", "bulk_copy") else "a100-sxm4-40gb")
    copies = found.extras.copies
    assert (copies.exposed, copies.pipelined) == pytest.approx((exposed, pipelined), rel=0.01)
    assert copies.between == pytest.approx(between, abs=0.01)


def seconds(name: str) -> dict[str, float]:
    """What each resource needs, and ``all`` of them together."""
    found = answer(name, "a100-sxm4-40gb")
    more, clocks = beside(found.extras), default_clocks(found.gpu)
    parts = resource_seconds(found.activity, found.gpu, clocks, more=more)
    return {**parts, "all": combined_seconds(parts)}


def test_more_stages_shorten_a_pipeline_that_waits_and_no_other() -> None:
    waits = [seconds(f"staged_sum_{stages}") for stages in (2, 4)]
    assert waits[0]["latency"] == pytest.approx(waits[0]["all"], rel=0.03)
    assert waits[1]["all"] < 0.6 * waits[0]["all"]
    # What little the second waits is time in which both blocks of an SM wait at once.
    full = [seconds(f"gemm_mma_{stages}") for stages in (2, 4)]
    assert full[1]["all"] == pytest.approx(full[0]["all"], rel=0.1)
    assert full[0]["latency"] < 0.5 * full[0]["all"]


def test_hopper_multiplies_from_registers_at_less_than_its_peak() -> None:
    for name, share in (("gemm_mma_4", 0.629), ("wgmma_gemm", 1.0)):
        found = answer(name)
        more, clocks = beside(found.extras), default_clocks(found.gpu)
        fed = replace(more, feed_passes=0.0)
        parts = resource_seconds(found.activity, found.gpu, clocks, more=fed)
        rate = found.gpu.capability.tensor_fma_per_clock * found.gpu.sm_count * clocks.core_hz
        peak = 4096**3 / rate * found.activity.sm_imbalance
        assert parts["tensor"] == pytest.approx(peak / share)
    # The 64 x 64 tiles of wgmma_gemm read so much of shared memory that this takes longer.
    parts = resource_seconds(found.activity, found.gpu, clocks, more=more)
    assert parts["tensor"] > 1.5 * peak
    assert parts["shared"] < 0.1 * parts["tensor"]


@pytest.mark.parametrize("name", ["bulk_copy", "wgmma_gemm"])
def test_symbols_know_that_a_wait_ends_and_who_is_elected(name: str) -> None:
    executed = answer(name)
    worked_out = analyse(
        executed.module, executed.function, executed.launch, executed.gpu, analysis="symbolic"
    )
    ran = executed.executed.functions[name].warp_executions
    np.testing.assert_allclose(worked_out.symbolic.functions[name].warp_executions, ran, rtol=1e-9)
    assert not worked_out.trips_assumed
    assert executed.activity_how == "executed"  # what copies move is not worked out


def test_products_and_matrices_not_followed_are_counted_where_nothing_rests_on_them() -> None:
    body = """mov.u32 %r6, 0; mov.f32 %f1, 0f00000000; and.b32 %r7, %r2, 31; shl.b32 %r7, %r7, 4;
        mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32
            {%f1, %f2, %f3, %f4}, {%r6, %r6, %r6, %r6}, {%r6, %r6, %r6, %r6},
            {%f1, %f2, %f3, %f4}, %r6, 0x0;
        mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0
            {%f1, %f2, %f3, %f4}, {%r6, %r6, %r6, %r6}, {%r6, %r6}, {%f1, %f2, %f3, %f4},
            {%r6}, {0, 0}, {%r6}, {0, 0};
        ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r8, %r9, %r10, %r11}, [%r7];
        st.global.f32 [%rd3], %f1; ret;"""
    text = kernel(body, declarations=".shared .align 16 .b8 tile[512];")
    found = analyse(
        read_module(text), "k", Launch.of(4, 64, 0, {"n": 1}), load_gpu("b200"), analysis="executed"
    )
    warps = 4 * 2
    assert [(work.kind, work.sparse, work.multiply_adds) for work in found.extras.tensor] == [
        ("f16", True, warps * 16 * 8 * 32), ("f4", False, warps * 16 * 8 * 64),
    ]  # fmt: skip
    assert found.activity.shared_transactions == warps * 4  # 32 rows of 16 bytes, eight at a time
    assert "unsupported_instruction" not in {each.code for each in found.activity_diagnostics}
    # Where the value is wanted, the warning says that it is not followed; it is still counted.
    wanted = body.replace("st.global.f32 [%rd3], %f1;", "setp.gt.u32 %p1, %r8, 0; "
                          "@%p1 bra $end; st.global.f32 [%rd3], %f1; $end:")  # fmt: skip
    result, _ = run(wanted, exact=False, declarations=".shared .align 16 .b8 tile[512];")
    told = [each.detail for each in result.diagnostics if each.code == "unsupported_instruction"]
    assert len(told) == 1
    assert told[0].startswith("ldmatrix.sync.aligned.m16n16")
    assert result.functions["k"].shared_transactions.sum() == 4


PHASES = table("bodies", "phases")

STARTS = "mov.u32 %r6, phases; mov.u32 %r10, words; shl.b32 %r7, %r2, 2; add.u32 %r7, %r7, %r10;\n"

SHARED = ".shared .align 8 .b8 phases[16]; .shared .align 256 .b8 words[256];"


@pytest.mark.parametrize("name", PHASES)
def test_waits_at_memory_barriers_are_counted_as_by_the_reference(name: str) -> None:
    body = STARTS + PHASES[name]
    result, _ = run(body, grid=2, block=64, declarations=SHARED)
    text = kernel(body, declarations=SHARED)
    wanted = interpret(text, "k", (2,), (64,), {"out": np.zeros(128, "u4"), "n": np.uint32(0)})
    assert result.diagnostics == ()
    found = result.functions["k"]
    for one in wanted.per_instruction:
        counts = found.warp_executions[one.index], found.active_lanes[one.index]
        assert counts == (one.warp_executions, one.active_lanes), one.opcode


def test_copies_larger_than_shared_memory_end() -> None:
    body = STARTS + """mov.u32 %r8, -16; mad.wide.u32 %rd4, %r5, 65536, %rd1;
        mbarrier.init.shared.b64 [%r6], 1;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r10], [%rd4], %r8, [%r6];
        ret;"""  # fmt: skip
    with patch.object(bulk, "MOST_LISTED", 1 << 10):
        result, _ = run(body, grid=9, block=64, exact=False, declarations=SHARED)
    held = 512 // 32  # of what is copied shared memory holds no more than it has
    assert result.memory.load_sectors == 9 * 64 * held
    (stream,) = result.memory.streams
    assert stream.unique_load_sectors == pytest.approx(9 * 64 * held, rel=0.05)


# --- Atomics that meet at one address: worked out by hand, and against the scalar reference
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


# --- Divergence, barriers, calls and talk between lanes, on PTX written by hand
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


# --- Floating-point semantics, to the precision of the types
def apply(opcode: str, *values: object) -> np.generic:
    """One instruction on one thread."""
    base, *modifiers = opcode.split(".")
    operation = arithmetic(base, tuple(modifiers))
    assert operation is not None
    with np.errstate(all="ignore"):
        sources = [np.array([v]).astype(t) for v, t in zip(values, operation.sources, strict=True)]
        found = operation.function(*sources)
    assert found.dtype is operation.result
    return found[0]


@pytest.mark.parametrize(
    ("name", "less", "equal", "greater", "unordered"),
    rows("floats", "comparisons"),
)
def test_comparisons_of_floats(
    name: str, less: bool, equal: bool, greater: bool, unordered: bool
) -> None:
    function, dtype = comparison(name, "f32")
    left = np.array([1, 2, 3, np.nan], dtype=dtype)
    right = np.array([2, 2, 2, 2], dtype=dtype)
    assert function(left, right).tolist() == [less, equal, greater, unordered]


def test_saturation_and_nan() -> None:
    assert apply("add.sat.f32", 0.75, 0.75) == 1.0
    assert apply("mul.sat.f32", -1.0, 0.5) == 0.0
    assert apply("min.f32", np.nan, 2.0) == 2.0
    assert np.isnan(apply("min.NaN.f32", np.nan, 2.0))
    assert apply("cvt.rn.f16x2.f32", 1.0, 2.0) == 0x3C004000
    assert TYPES["f16x2"].itemsize == 4
