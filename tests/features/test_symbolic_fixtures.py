"""The symbolic analysis against execution, on every fixture kernel.

Execution is itself proven against the scalar reference (``test_execution_reference.py``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.execution import launch_of
from tests.app.same_answers import body
from tests.features.execution_kernels import BASE, kernel
from tests.features.symbolic_programs import affine_programs, count_errors, known, loop_errors
from tests.features.test_execution_reference import run_exact
from tests.features.test_symbolic_values import MANY, SHARED
from tests.fixtures.kernels.data import Buffer, FixtureKernel, Shape, materialise, ptx_path, targets
from tests.fixtures.kernels.manifest import KERNELS
from tests.reference.memory import buffer_addresses
from wattcast.features.analysis import KernelAnalysis, analyse
from wattcast.features.errors import AnalysisError, LaunchError
from wattcast.features.gpus import load_gpu
from wattcast.features.isa import classify
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.features.symbolic import SymbolicResult, analyse_symbolically
from wattcast.features.symbolic import analyse as symbols
from wattcast.features.symbolic import analyse_together as together
from wattcast.features.symbolic.forms import Box
from wattcast.predictor.messages import LaunchRequest

NEAR = 0.02
"""Counts per class may differ from executed ones by this share."""


def symbolic(kernel: FixtureKernel, shape: Shape, target: str) -> SymbolicResult:
    """The symbolic analysis of a fixture's launch, with the arguments a caller can give."""
    made = materialise(kernel.name, shape)
    places = buffer_addresses(made)
    arguments: dict[str, int | float] = {}
    for index, (name, value) in enumerate(made.items()):
        if isinstance(value, np.ndarray):
            arguments[str(index)] = places[name]
        elif isinstance(value, np.generic):
            arguments[str(index)] = value.item()
    module = read_module(ptx_path(kernel.source, target).read_text())
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    return analyse_symbolically(module, module.kernel(kernel.entry), launch)


def verdict(kernel: FixtureKernel, shape: Shape, target: str) -> str:
    """``good``: counts of all classes as executed; ``marked``: where not, it is said."""
    said = symbolic(kernel, shape, target)
    executed, _ = run_exact(kernel, shape, target)
    if not kernel.order_dependent:
        assert not loop_errors(said, executed, kernel.entry)
        assert not count_errors(said, executed)
    module = read_module(ptx_path(kernel.source, target).read_text())
    sums: dict[str, np.ndarray] = {}
    for name, real in executed.functions.items():
        function = module.function(name)
        assert function is not None
        ours = said.functions.get(name)
        for one in function.body.instructions:
            row = sums.setdefault(classify(one.opcode).opcode_class, np.zeros(4))
            row[:2] += real.warp_executions[one.position], real.active_lanes[one.position]
            if ours is not None:
                row[2:] += ours.warp_executions[one.position], ours.active_lanes[one.position]
    good = all(
        abs(row[2:] - row[:2]).max() <= NEAR * max(1.0, row[:2].max()) for row in sums.values()
    )
    if good:
        return "good"
    return "wrong" if known(said) else "marked"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_is_called_known_is_as_executed(kernel: FixtureKernel) -> None:
    """Loops called constant or inferred, counts not marked, sectors and conflicts of accesses
    called affine: never wrong on the newest target (the table's test does the oldest)."""
    for shape in kernel.shapes:
        assert verdict(kernel, shape, targets(kernel.source)[-1]) != "wrong"


@pytest.mark.slow
def test_most_launches_are_known() -> None:
    """Counts per class within 2 % for at least 90 % of (fixture, shape) pairs that do not say
    that they depend on data; and most pairs do not say so."""
    verdicts = [
        verdict(kernel, shape, targets(kernel.source)[0])
        for kernel in KERNELS
        for shape in kernel.shapes
    ]
    good, marked = verdicts.count("good"), verdicts.count("marked")
    assert good >= 0.9 * (len(verdicts) - marked)
    assert good >= 0.65 * len(verdicts)


@pytest.mark.slow
def test_where_nothing_is_run_an_execution_counts_the_same() -> None:
    """Every quantity of ``activity1``, for each fixture that ``auto`` does not run."""
    gpu, answered = load_gpu("tesla-v100"), []
    for one in KERNELS:
        module = read_module(ptx_path(one.source, targets(one.source)[-1]).read_text())
        function, launch = module.kernel(one.entry), launch_of(one.large)
        found = analyse(module, function, launch, gpu)
        if found.activity_how == "executed":
            continue
        answered.append(one.name)
        ran = analyse(module, function, launch, gpu, analysis="executed")
        for name, ours in found.activity.values().items():
            theirs = ran.activity.values()[name]
            assert ours == pytest.approx(theirs, rel=NEAR, abs=2.0), (one.name, name)
        l1_cycles = ran.extras.l1_cycles_per_sector
        assert found.extras.l1_cycles_per_sector == pytest.approx(l1_cycles, rel=NEAR), kernel
    assert len(answered) >= 22, answered


# --- Reuse worked out from the forms of addresses: against counting by hand, and against
# execution

GPU = load_gpu("tesla-v100")

WITHIN = 1.3


def touched(start: int, width: int, dims: list[tuple[int, int]]) -> np.ndarray[Any, Any]:
    """Every byte that a box touches."""
    places = np.arange(width)
    for stride, count in dims:
        places = (places[:, None] + stride * np.arange(count)).ravel()
    return np.unique(places + start)


DIMS = st.lists(
    st.tuples(st.sampled_from([4, 8, 16, 32, 64, 128, 512, 4096]), st.integers(1, 12)),
    max_size=3, unique_by=lambda dim: dim[0],
)  # fmt: skip


@given(DIMS, st.sampled_from([4, 8, 16]), st.sampled_from([32, 128]))
def test_units_of_a_box_are_those_of_its_bytes(
    dims: list[tuple[int, int]], width: int, unit: int
) -> None:
    box = Box(0, width, dims)
    true = np.unique(touched(0, width, dims) // unit).size
    # Strides that fall between those before them are told in closed form to some part.
    assert 0.5 * true <= box.units(unit) <= 2.0 * true
    if len(dims) < 2:
        assert box.units(unit) == true


@given(st.integers(1, 64), st.integers(1, 16), st.integers(-8, 8), st.integers(-3, 3))
def test_what_a_moved_tile_has_in_common(wide: int, high: int, right: int, down: int) -> None:
    row = 4096
    box = Box(1 << 20, 4, [(32, wide), (row, high)])
    here = touched(1 << 20, 4, [(32, wide), (row, high)]) // 32
    there = here + right + down * row // 32
    true = np.intersect1d(here, there).size / np.unique(here).size
    assert box.common(32 * right + row * down, 32) == pytest.approx(true, abs=0.01)


def analysed(kernel: FixtureKernel, mode: Any) -> KernelAnalysis:
    target = "sm_70" if "sm_70" in targets(kernel.source) else targets(kernel.source)[0]
    arguments: dict[str, Any] = {}
    for index, value in enumerate(kernel.large.arguments.values()):
        if isinstance(value, Buffer):
            arguments[str(index)] = PointerHint(int(np.prod(value.shape)))
        elif isinstance(value, np.generic):
            arguments[str(index)] = value.item()
    shape = kernel.large
    launch = Launch.of(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    module = read_module(ptx_path(kernel.source, target).read_text())
    return analyse(module, kernel.entry, launch, GPU, analysis=mode)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_traffic_worked_out_is_that_executed(kernel: FixtureKernel) -> None:
    """Within 1.3 where symbols prove every address, trip and branch; else they refuse."""
    worked_out, executed = analysed(kernel, "symbolic"), analysed(kernel, "executed")
    try:
        ours = worked_out.activity.values()
    except AnalysisError as error:
        refusal = error.detail
    else:
        refusal = ""
    if refusal:
        assert re.fullmatch(r".* not proven.*: analysis auto or executed answers", refusal)
        return
    theirs = executed.activity.values()
    for name in ("l2_sectors", "dram_read_sectors", "dram_write_sectors"):
        assert ours[name] <= WITHIN * theirs[name] + 1e-3 * theirs["l2_sectors"], name
        assert theirs[name] <= WITHIN * ours[name] + 1e-3 * ours["l2_sectors"], name


BLOCKS = [(2, 32, 1), (4, 16, 1), (1, 64, 1), (2, 2, 32), (1, 1, 64), (32, 8, 1), (3, 50, 1)]


@pytest.mark.parametrize("size", [(8192, 8192, 1), (512, 512, 256)], ids=str)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("mode", ["symbolic", "executed"])
def test_an_array_beyond_l2_passes_memory_once_by_blocks_of_any_shape(
    mode: Any, block: tuple[int, int, int], size: tuple[int, int, int]
) -> None:
    """256 MB read and 256 MB written. Blocks narrower than a sector share it with the next ones;
    those of 3 elements leave parts of lines behind."""
    elements = int(np.prod(size))
    values = dict(enumerate([PointerHint(elements), PointerHint(elements), *size]))
    grid = tuple(-(-long // threads) for long, threads in zip(size, block, strict=True))
    launch = Launch.of(grid, block, 0, {str(index): value for index, value in values.items()})
    module = read_module(ptx_path("grid3d", "sm_70").read_text())
    found = analyse(module, "grid3d", launch, GPU, analysis=mode).activity
    whole = elements * 4 / 32
    assert found.footprint_bytes == pytest.approx(2 * 4 * elements, rel=0.06)
    assert 0.99 * whole <= found.dram_read_sectors <= 1.1 * whole
    assert 0.99 * whole <= found.dram_write_sectors <= 1.1 * whole


def test_a_word_for_each_warp_moves_with_its_block() -> None:
    """``best[8 * blockIdx + threadIdx / 32]``: eight words a block."""
    body = """shr.u32 %r8, %r2, 5; mad.lo.u32 %r8, %r3, 8, %r8; mul.wide.u32 %rd5, %r8, 4;
        add.u64 %rd6, %rd1, %rd5; ld.global.u32 %r9, [%rd6]; st.global.u32 [%rd3], %r9; ret;"""
    launch = Launch.of(400, 256, 0, {"out": PointerHint(400 * 256)})
    ours, theirs = (
        analyse(read_module(kernel(body)), None, launch, GPU, analysis=mode).counts.traffic(None)
        for mode in ("symbolic", "executed")
    )
    assert ours.footprint_sectors == pytest.approx(theirs.footprint_sectors)


@pytest.mark.parametrize("name", ["wmma_matmul", "wmma_shared"])
def test_tiles_of_matrices_touch_the_sectors_of_their_lines(name: str) -> None:
    """16 lines of 16 half numbers are 16 sectors, whichever lanes hold them."""
    (kernel,) = (kernel for kernel in KERNELS if kernel.name == name)
    said, executed = analysed(kernel, "symbolic").symbolic, analysed(kernel, "executed")
    assert all(access.affine for access in said.accesses)
    ours, theirs = said.functions[kernel.entry], executed.executed.functions[kernel.entry]
    for each in ("sectors", "shared_transactions"):
        assert getattr(ours, each).sum() == pytest.approx(getattr(theirs, each).sum()), each


def test_blocks_in_a_line_that_make_rows_of_tiles_share_them() -> None:
    """``row = warp / tiles; column = warp % tiles``, N = 4096: 32 blocks make a row of tiles. A
    wave of blocks goes through K in step: all of B once a wave, of A the rows it works on."""
    (kernel,) = (kernel for kernel in KERNELS if kernel.name == "wmma_matmul")
    size = 4096
    given: dict[str, Any] = {str(each): PointerHint(size * size) for each in range(3)}
    given |= {str(each): size for each in range(3, 6)}
    launch = Launch.of((size // 16) ** 2 // 8, 256, 0, given)
    module = read_module(ptx_path(kernel.source, "sm_70").read_text())
    found = analyse(module, kernel.entry, launch, GPU, analysis="executed").activity
    matrix = size * size * 2 / 32
    wave = GPU.sm_count * found.resident_blocks_per_sm
    assert found.dram_read_sectors == pytest.approx(matrix * (launch.blocks / wave + 1), rel=0.2)


def test_a_matrix_product_reads_its_factors_about_once() -> None:
    """N = 1024: three matrices of 4 MB, of which L2 holds what a wave of blocks works on."""
    (naive,) = (kernel for kernel in KERNELS if kernel.name == "matmul_naive")
    size = naive.large.grid[0] * naive.large.block[0]
    for mode in ("symbolic", "executed"):
        found = analysed(naive, mode).activity
        compulsory = 2 * size * size * 4 / 32
        assert compulsory <= found.dram_read_sectors <= 4 * compulsory, mode
        assert found.dram_write_sectors == pytest.approx(compulsory / 2, rel=0.01)


@pytest.mark.parametrize("mode", ["symbolic", "executed"])
@pytest.mark.parametrize(("entry", "extra"), [("transpose_direct", 0.6), ("transpose_padded", 0)])
def test_a_transposition_writes_pieces_of_a_tile(mode: Any, entry: str, extra: float) -> None:
    """Blocks beside each other read on from each other, and write tiles of 32 far apart: of two
    ways one goes by pieces of 128 bytes. Lanes down a column have a header for each sector, as long
    as one, where whole lines have one for four."""
    n = 32768
    hints = {"0": PointerHint(n * n), "1": PointerHint(n * n), "2": n, "3": n}
    launch = Launch.of((n // 32, n // 32), (32, 8), 0, dict(hints))
    module = read_module(ptx_path("transpose", "sm_70").read_text())
    found = analyse(module, entry, launch, GPU, analysis=mode)
    assert found.extras.pieces == pytest.approx(0.5 / 4, rel=0.1)
    stored = found.activity.global_store_sectors
    assert found.extras.store_headers == pytest.approx(extra * stored)


def test_a_launch_of_too_many_values_is_not_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public kernel of nested loops (vol2col) filled 24 GB with values of its contexts."""
    launch = Launch.of((32, 32), (32, 8), 0, {"2": 1024, "3": 1024})
    text = ptx_path("transpose", "sm_70").read_text()
    usual = analyse(read_module(text), "transpose_direct", launch, GPU, analysis="symbolic")
    assert usual.activity.global_store_sectors == 1024 * 1024
    monkeypatch.setattr("wattcast.features.symbolic.evaluate.MOST_WORKED_OUT", 10_000)
    few = analyse(read_module(text), "transpose_direct", launch, GPU, analysis="symbolic")
    with pytest.raises(AnalysisError, match="too many values"):
        _ = few.activity


def test_blocks_that_go_on_where_others_end_write_all_of_a_buffer() -> None:
    """Rows of 100,000 numbers, each by 512 blocks of 64 that take three or four turns: whoever
    meets few of them must not take their runs for parts of records with gaps in between."""
    body = """
    mov.u32 %r6, %ctaid.y; mul.lo.u32 %r6, %r6, 100000;
    LOOP: setp.ge.u32 %p1, %r5, 100000; @%p1 bra DONE;
    add.u32 %r7, %r6, %r5; mul.wide.u32 %rd4, %r7, 4; add.u64 %rd5, %rd1, %rd4;
    st.global.u32 [%rd5], %r5; add.u32 %r5, %r5, 32768; bra LOOP;
    DONE: ret;
    """
    hints = {"0": PointerHint(10_000_000), "1": 0}
    launch = Launch.of((512, 100), 64, 0, dict(hints))
    found = analyse(read_module(kernel(body)), "k", launch, GPU, analysis="executed").activity
    assert found.footprint_bytes == pytest.approx(4e7, rel=0.01)


# --- Launches walked as one are told what each is told alone, to the last bit


def bits(value: Any) -> Any:
    """A result as plain data that is equal only where every bit is."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value):
        return [bits(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, dict):
        return [(key, bits(inner)) for key, inner in value.items()]
    if isinstance(value, tuple):
        return [bits(inner) for inner in value]
    return type(value).__name__, repr(value)


def check(module: Module, name: str, launches: Sequence[Launch]) -> None:
    function = module.kernel(name)
    found = {id(launch): each for launch, each in together(module, function, launches)}
    for launch in launches:
        alone: SymbolicResult = analyse_symbolically(module, function, launch)
        assert bits(found[id(launch)]) == bits(alone), launch


def variants(launch: Launch) -> Iterator[Launch]:
    """Launches that differ from one in what may part them: blocks, threads, sizes given or not."""
    yield launch
    wide, *others = launch.grid
    for more in (1, 2, 2 * wide):
        yield replace(launch, grid=(wide + more, *others))
    for more in (1, 64):
        longer = {n: v + more if type(v) is int else v for n, v in launch.arguments.items()}
        yield replace(launch, arguments=longer)
    yield replace(launch, arguments={})
    narrow, *rest = launch.block
    yield replace(launch, block=(max(1, narrow // 2), *rest))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_fixtures(kernel: Any) -> None:
    asked = [body(kernel, shape) for shape in kernel.shapes[:1]]
    requests = [LaunchRequest.model_validate(each["launch"]) for each in asked]
    launches = [one for request in requests for one in variants(request.launch())]
    check(read_module(asked[0]["ptx"]), kernel.entry, launches)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=affine_programs(),
    launches=st.lists(
        st.tuples(st.integers(1, 90), st.sampled_from([32, 48, 65]), st.integers(0, 140)),
        min_size=2, max_size=6,
    ),
)  # fmt: skip
def test_generated_programs(text: str, launches: list[tuple[int, int, int]]) -> None:
    made = kernel(text, declarations=SHARED).replace(".reg .b32 %r<32>;", MANY)
    asked = [Launch.of(grid, block, 0, {"out": BASE, "n": n}) for grid, block, n in launches]
    check(read_module(made), "k", asked)


def test_launches_that_behave_alike_are_walked_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guarded kernel whose last block is cut, whatever the size."""
    text = kernel("setp.ge.s32 %p1, %r5, %r1;\n@%p1 bra $end;\nst.global.u32 [%rd1], %r5;\n$end:")
    module, walked = read_module(text), symbols._walked
    sizes: list[int] = []

    def counted(module: Module, group: Any, *more: Any) -> Any:
        sizes.append(len(group))
        return walked(module, group, *more)

    monkeypatch.setattr(symbols, "_walked", counted)
    launches = [Launch.of(100 + n, 64, 0, {"out": BASE, "n": 6390 + 64 * n}) for n in range(40)]
    assert len(list(together(module, module.kernel("k"), launches))) == 40
    assert sizes == [40]


def test_one_that_cannot_be_analysed_is_left_out() -> None:
    module = read_module(kernel("st.global.u32 [%rd1], %r5;"))
    launches = [Launch.of(4, 64, 0, {"nothing": 1}), Launch.of(4, 64)]
    found = [launch for launch, _ in together(module, module.kernel("k"), launches)]
    assert found == launches[1:]
    with pytest.raises(LaunchError, match="no parameter"):
        analyse_symbolically(module, module.kernel("k"), launches[0])


def test_an_address_that_is_one_number_has_one_stride() -> None:
    """Nothing was told of it together, where it is an array over lanes, and 0 alone."""
    text = """    add.s32 %r43, %r2, %r2; and.b32 %r42, %r43, 15; mov.u32 %r41, 2;
$a1:
    setp.ge.s32 %p1, %r41, %r42; @%p1 bra $a2;
    mov.u32 %r47, %r2;
$a3:
    shr.u32 %r51, %r41, 1; setp.eq.s32 %p1, %r51, 1; @%p1 bra $a6;
    add.s32 %r55, %r41, %r1; and.b32 %r54, %r55, 127; shl.b32 %r54, %r54, 2;
    st.shared.u32 [%r54], 1;
$a6:
    add.s32 %r47, %r47, 1; setp.lt.s32 %p1, %r47, %r42; @%p1 bra $a3;
    add.s32 %r41, %r41, 1; bra $a1;
$a2:
"""
    made = kernel(text, declarations=SHARED).replace(".reg .b32 %r<32>;", MANY)
    check(read_module(made), "k", [Launch.of(1, 32, 0, {"out": BASE, "n": n}) for n in (0, 1)])
