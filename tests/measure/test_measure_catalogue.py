"""The catalogue: ids, time, memory, and application kernels that the analysis understands."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from studies.measuring_kernels import compile_source, sources, without_comments
from tests.features.whole_runs import run_whole
from tests.measure.measuring import board_of, module
from tests.measure.simulated import SimulatedGpu, SimulatedRunner, Truth
from tests.needs import needs_nvrtc, needs_ptxas
from tests.reference.machine import run as interpret
from wattcast.features.analysis import analyse
from wattcast.features.cuda.isolation import find_ptxas
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.measure.catalogue import APPLICATIONS, applications, micro, worked_out, workload_of
from wattcast.measure.driver import fillings
from wattcast.measure.micro import MODULES, body, modules, ptx_text
from wattcast.measure.protocol import Settings
from wattcast.measure.run import plan, planned_seconds
from wattcast.measure.workload import Board, Buffer, Pattern, Workload, executed
from wattcast.models.time.bottleneck import dram_bytes

H200, OLD, KEPLER, TURING = map(board_of, ("h200-sxm5", "gtx-980", "tesla-k20", "t4"))

GPU = load_gpu("h200-sxm5")

ALL = applications(H200)

SMALLEST = ALL[: len(APPLICATIONS)]

MINE = [path for path in sources() if path.stem not in MODULES]


@pytest.mark.parametrize("board", [H200, OLD, KEPLER, TURING])
def test_ids_are_unique_and_launches_fit(board: Board) -> None:
    made = [*micro(board), *applications(board)]
    assert len({one.id for one in made}) == len(made)
    for one in made:
        assert math.prod(one.block) <= 1024
        assert math.prod(one.block) <= board.max_threads_per_sm
        assert one.grid[0] < 2**31
        assert max(one.grid[1:]) < 65536
        assert one.buffer_bytes <= board.memory_bytes // 2


def test_ids_of_the_same_purpose_are_the_same_on_every_board() -> None:
    mine, other = ({one.id for one in micro(board)} for board in (H200, OLD))
    assert len(mine & other) > 0.95 * len(mine)
    assert {one.id for one in applications(H200)} >= {one.id for one in applications(OLD)}


def test_the_microbenchmarks_are_planned_within_fifteen_minutes() -> None:
    planned, notes = plan(micro(H200), (9, 0), H200.memory_bytes, get_args(Pattern))
    assert not notes
    assert len(planned) >= 150
    assert planned_seconds(planned, Settings()) <= 15 * 60


@pytest.mark.parametrize("gpu", ["h200-sxm5", "tesla-k20", "t4"])
def test_streams_over_device_memory_move_the_bytes_they_declare(gpu: str) -> None:
    profile = load_gpu(gpu)
    board = SimulatedRunner(SimulatedGpu(Truth(profile))).device().board
    streams = [one for one in micro(board) if one.id.startswith(("bandwidth.dram", "energy.dram"))]
    assert len(streams) == 6
    for one in streams:
        assert one.probe is not None
        declared = (one.probe.operations if one.probe.kind == "bandwidth"
                    else 16.0 * one.mix["ld.global.cg.v4.f32"] * 32)  # fmt: skip
        found = dram_bytes(executed(one, profile).activity)
        assert found == pytest.approx(declared, rel=0.03), one.id


def test_a_board_without_matrix_units_goes_without_their_kernels() -> None:
    planned, notes = plan([*micro(OLD), *applications(OLD)], (5, 2), OLD.memory_bytes)
    assert not any("mma" in one.key or "matrix" in one.key for one in planned)
    assert any("needs compute capability 7.0" in note for note in notes)


def test_kepler_goes_without_half_precision_and_matrix_units_alone() -> None:
    every = [*micro(KEPLER), *applications(KEPLER)]
    planned, notes = plan(every, KEPLER.compute_capability, KEPLER.memory_bytes)
    left_out = {one.id for one in every} - {one.workload.id for one in planned}
    assert len(notes) == len(left_out)
    assert all("f16" in name or "mma" in name or "matrix" in name for name in left_out)
    assert len(planned) > 0.85 * len(every)


@needs_ptxas
@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_hopper_and_blackwell_take_every_module(path: Path, tmp_path: Path) -> None:
    ptxas = find_ptxas()
    assert ptxas is not None
    for target in ("sm_90", "sm_120"):
        made = tmp_path / f"{target}.cubin"
        # -O0: whether it is taken, not how well it is compiled.
        command = [ptxas, "-O0", f"-arch={target}", path.with_suffix(".ptx"), "-o", made]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert made.stat().st_size > 0


def test_every_kernel_of_the_sources_has_several_launches() -> None:
    entries = {
        function.name
        for path in MINE
        for function in module(path.with_suffix(".ptx").read_text(encoding="utf-8")).kernels
    }
    assert entries == set(APPLICATIONS)
    assert len(APPLICATIONS) >= 60
    assert all(len(set(one.launches)) >= 3 for one in APPLICATIONS.values())


def test_entries_of_the_catalogue_are_arithmetic_and_nothing_else() -> None:
    names = {"n": 10, "t": 4}
    for text, value in (("n", 10), ("-(-n//t)", 3), ("2*n*n-n/t", 197.5), ("f64", "f64")):
        assert worked_out(text, names) == value
    for text in ("m", "n.real", "open(n)", "'n'", "n if t else 1", "[n]", "n@t"):
        with pytest.raises((ValueError, KeyError)):
            worked_out(text, names)


@pytest.mark.parametrize("one", SMALLEST, ids=lambda one: one.id)
def test_an_application_is_understood(one: Workload) -> None:
    analysis = analyse(
        module(one.ptx), one.kernel, one.launch(), GPU, analysis="auto", effort=200_000_000
    )
    symbols = {d.code for d in analysis.diagnostics}
    assert not symbols & {"unknown_opcode", "argument_assumed"}
    assert not analysis.trips_assumed
    parameters = analysis.function.parameters
    assert len(parameters) == len(one.arguments)
    for parameter, given in zip(parameters, one.arguments, strict=True):
        wide = isinstance(given, Buffer) or given.element in ("u64", "f64")
        assert parameter.bytes == (8 if wide else 4)


# --- Microbenchmarks execute what their description states; committed PTX is what sources give

TINY = Board(
    sm_count=1,
    compute_capability=(9, 0),
    l2_bytes=2**18,
    memory_bytes=2**33,
    max_threads_per_sm=2048,
    core_mhz=1e-3,  # so slow that every loop turns but a few times
)

PASCAL = [
    one
    for one in micro(TINY.model_copy(update={"compute_capability": (6, 1)}))
    if "_nc" in one.kernel
]
"""What a board has of its own whose L1 holds only what ``ld.global.nc`` reads."""

MICRO = [*micro(TINY), *PASCAL]


@pytest.mark.parametrize("one", MICRO, ids=lambda one: one.id)
def test_a_microbenchmark_executes_exactly_its_mix(one: Workload) -> None:
    # No cap worth the name: a busy machine must not cut an execution short.
    analysis = analyse(
        module(one.ptx), one.kernel, one.launch(), GPU, analysis="executed", effort=None
    )
    found: dict[str, float] = {}
    counts = analysis.executed.functions[one.kernel].warp_executions
    for instruction, number in zip(analysis.function.body.instructions, counts, strict=True):
        found[instruction.opcode] = found.get(instruction.opcode, 0.0) + float(number)
    assert found == pytest.approx(one.mix)
    assert analysis.executed.sampling.completed
    codes = {d.code for d in (*analysis.diagnostics, *analysis.executed.diagnostics)}
    assert not codes & {"argument_assumed", "unknown_opcode", "unsupported", "execution_cut_short"}


def test_every_kernel_is_measured() -> None:
    assert {one.kernel for one in MICRO} == set(modules())


def test_operations_of_a_probe_are_in_the_mix() -> None:
    for one in MICRO:
        probe = one.probe
        assert probe is not None
        threads = math.prod(one.grid) * math.prod(one.block)
        if probe.kind == "throughput" and not probe.target.startswith(("wmma", "mma.")):
            opcode = next(iter(body(one.kernel)))
            assert 0 <= one.mix[opcode] * 32 - probe.operations <= 16 * threads


@needs_nvrtc
@pytest.mark.parametrize("path", sources(), ids=lambda path: path.stem)
def test_committed_ptx_is_what_the_source_gives(path: Path) -> None:
    committed = path.with_suffix(".ptx").read_text(encoding="utf-8")
    assert without_comments(committed) == without_comments(compile_source(path))


@pytest.mark.parametrize(
    ("name", "needed"),
    [("micro", (3, 5)), ("micro_half", (5, 3)), ("micro_tensor", (7, 0)), ("micro_mma", (8, 0))],
)
def test_the_target_of_the_ptx_is_the_capability_the_catalogue_asks_for(
    name: str, needed: tuple[int, int]
) -> None:
    assert module(ptx_text(name)).target == f"sm_{needed[0]}{needed[1]}"
    asked = {one.minimum_capability for one in MICRO if modules()[one.kernel] == name}
    assert asked == {needed}


# --- Application kernels stay inside their buffers and compute what they are named for

Array = npt.NDArray[Any]

TYPES = {"u8": "u1", "u32": "u4", "u64": "u8", "f16": "f2", "f32": "f4", "f64": "f8"}

SIZES = {
    2**20: 4096, 2**18: 4096, 2**16: 1024, 2**14: 512, 2**13: 256, 1024: 64, 512: 64, 2048: 128,
    256: 2, 128: 32, 64: 16, 4096: 128,
}  # fmt: skip
"""Small stand-ins for the sizes of the first launches."""

ROWS = {  # kernels whose size is a number of blocks or of rows
    "triangular_solve": 2, "cholesky_batched": 2, "fft_radix2": 2, "walsh_hadamard": 2,
    "needleman_tile": 2, "binomial_tree": 2, "bitonic_sort": 2, "softmax": 2, "layer_norm": 2,
    "gemm_matrix_2x2": 128,
}  # fmt: skip


def run(
    shape: Workload, *, products: bool = False
) -> tuple[list[Any], list[Array | None], set[str]]:
    """Arguments before, buffers after, and codes of diagnostics of a launch run whole."""
    before: list[Any] = []
    arguments: dict[str, int | float] = {}
    buffers: dict[int, Array] = {}
    ptx, kernel = shape.ptx, shape.kernel
    for at, given in enumerate(shape.arguments):
        if isinstance(given, Buffer):
            # Far apart, so that whatever runs over an end hits nothing.
            base = (at + 1) << 32
            data = np.zeros(given.elements, TYPES[given.element])
            for offset, part in fillings(given, "uniform", base, at):
                start = offset // data.itemsize
                data[start : start + len(part)] = part
            buffers[base] = data
            arguments[str(at)] = base
            before.append(data.copy())
        else:
            arguments[str(at)] = given.value
            before.append(given.value)
    launch = Launch(shape.grid, shape.block, shape.dynamic_shared_bytes, arguments)
    result, contents = run_whole(module(ptx).kernel(kernel), module(ptx), launch, buffers)
    if products and "mma." in ptx:  # the engine does not follow what matrix units give
        names = [parameter.name for parameter in module(ptx).kernel(kernel).parameters]
        block, dynamic = shape.block, shape.dynamic_shared_bytes
        held = [one if isinstance(one, np.ndarray) else np.int32(one) for one in before]
        values = dict(zip(names, held, strict=True))
        found = interpret(ptx, kernel, shape.grid, block, values, dynamic).memory
        return before, [found.get(name) for name in names], {d.code for d in result.diagnostics}
    after = [
        contents[(at + 1) << 32].view(TYPES[given.element]) if isinstance(given, Buffer) else None
        for at, given in enumerate(shape.arguments)
    ]
    return before, after, {d.code for d in result.diagnostics}


def square(data: Array) -> Array:
    edge = round(len(data) ** 0.5)
    return data.reshape(edge, edge)


def layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    rows = x.reshape(-1, 1024)
    deviation = np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    return np.asarray((rows - rows.mean(1, keepdims=True)) / deviation * gain + bias)


def softmax(rows: Array) -> Array:
    weights = np.exp(rows - rows.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def triangular(a: Array, b: Array) -> Array:
    lower = np.tril(a.reshape(-1, 64, 64)) + 2 * np.eye(64)
    return np.linalg.solve(lower, b.reshape(-1, 64, 1))


def cholesky(a: Array) -> Array:
    m = a.reshape(-1, 32, 32).transpose(0, 2, 1)
    lower = np.tril(m, -1)
    diagonal = m[:, range(32), range(32)][:, :, None] * np.eye(32) + 64 * np.eye(32)
    return np.linalg.cholesky(lower + lower.transpose(0, 2, 1) + diagonal)


def spmv(lengths: Array, cols: Array, values: Array, x: Array, width: int) -> Array:
    entries = (values * x[cols]).reshape(-1, width)
    return np.asarray(np.where(np.arange(width) < lengths[:, None], entries, 0).sum(1))


def fourier(data: Array) -> Array:
    points = data.reshape(-1, 1024, 2)
    found = np.fft.fft(points[..., 0] + 1j * points[..., 1])
    return np.stack([found.real, found.imag], -1)


def ranks(keys: Array, shift: int) -> Array:
    digits = ((keys >> shift) & 15).reshape(-1, 32)
    return np.stack([(digits[:, :k] == digits[:, k : k + 1]).sum(1) for k in range(32)], 1)


def walsh(x: Array) -> Array:
    matrix = np.ones((1, 1))
    for _ in range(10):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return x.reshape(-1, 1024) @ matrix


def cosine(image: Array) -> Array:
    k = np.arange(8)
    basis = np.cos((2 * k[None] + 1) * k[:, None] * np.pi / 16) * 0.5
    basis[0] = 0.35355339
    edge = len(image) // 8
    tiles = image.reshape(edge, 8, edge, 8).transpose(0, 2, 1, 3)
    return (basis @ tiles @ basis.T).transpose(0, 2, 1, 3).reshape(image.shape)


def attention(q: Array, k: Array, v: Array) -> Array:
    return softmax(q.reshape(-1, 32) @ k.reshape(-1, 32).T * 0.17677670) @ v.reshape(-1, 32)


def scores(q: Array, k: Array) -> Array:
    return np.asarray(0.125 * q.reshape(-1, 64).astype("f4") @ k.reshape(-1, 64).T.astype("f4"))


def running(x: Array, block: int) -> Array:
    return np.cumsum(x.reshape(-1, block), 1)


def product(a: Array, b: Array, *_: Any) -> Array:
    return np.asarray(square(a).astype("f8") @ square(b).astype("f8"))


EXPECTED: dict[str, tuple[int, Callable[..., Any]]] = {
    **{f"gemm_{kind}": (2, product) for kind in
       ("naive", "tiled", "tiled_f64", "register", "matrix", "matrix_2x2")},
    "gemv_warp": (2, lambda a, x, *_: square(a) @ x),
    "gemv_transposed": (2, lambda a, x, *_: square(a).T @ x),
    "axpy": (2, lambda x, y, z, a, n: a * x + y),
    "triad_f64": (2, lambda x, y, z, a, n: x + a * y),
    "rank_one": (3, lambda a, x, y, *_: square(a) + np.outer(x, y)),
    "triangular_solve": (2, lambda a, b, _: triangular(a, b)),
    "transpose_naive": (1, lambda a, *_: square(a).T),
    "transpose_tiled": (1, lambda a, *_: square(a).T),
    "spmv_csr_scalar": (4, lambda r, c, v, x, y, d, n: spmv(r, c, v, x, d)),
    "spmv_csr_vector": (4, lambda r, c, v, x, y, d, n: spmv(r, c, v, x, d)),
    "spmv_ell": (3, lambda c, v, x, y, d, n: (v * x[c]).reshape(d, n).sum(0)),
    "spmv_coo": (4, lambda r, c, v, x, y, n: np.bincount(r, v * x[c], len(y))),
    "fft_radix2": (1, lambda a, _: fourier(a)),
    "walsh_hadamard": (1, lambda a, _: walsh(a)),
    "dct_8x8": (1, lambda a, *_: cosine(square(a))),
    "floyd_warshall_step": (
        1, lambda a, o, k, n: np.minimum(square(a), np.add.outer(square(a)[:, k], square(a)[k]))),
    "bitonic_sort": (1, lambda k, _: np.sort(k.reshape(-1, 1024), 1)),
    "radix_rank": (1, lambda k, o, shift, n: ranks(k, shift)),
    "scan_block": (1, lambda x, _: running(x, 256)),
    "scan_warps": (1, lambda x, _: running(x, 256)),
    "dot_shuffle": (2, lambda a, b, *_: np.array([a @ b])),
    "histogram_shared": (1, lambda x, *_: np.bincount(x % 256, minlength=256)),
    "histogram_global": (1, lambda x, *_: np.bincount(x % 4096, minlength=4096)),
    "grey": (1, lambda c, *_: 0.299 * (c & 255) + 0.587 * (c >> 8 & 255) + 0.114 * (c >> 16 & 255)),
    "kmeans_sum": (2, lambda p, c, *_: np.bincount(c, p, 1024)),
    "softmax": (1, lambda x, *_: softmax(x.reshape(-1, 1024))),
    "layer_norm": (3, lambda x, g, b, *_: layer_norm(x, g, b)),
    "gelu": (1, lambda x, *_: 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x**3)))),
    "swiglu": (2, lambda g, x, *_: g / (1 + np.exp(-g)) * x),
    "embedding": (2, lambda t, table, *_: table.reshape(-1, 256)[t]),
    "attention_scores": (2, lambda q, k, *_: scores(q, k)),
    "attention_scores_matrix": (2, lambda q, k, *_: scores(q, k)),
    "attention_tile": (3, lambda q, k, v, *_: attention(q, k, v)),
    "max_pool": (1, lambda x, o, n: x.reshape(n, 2, n, 2).max((1, 3))),
}  # fmt: skip
"""Number of the argument that holds the result, and what it should hold."""


@pytest.mark.parametrize("kernel", APPLICATIONS)
def test_an_application_stays_in_its_buffers_and_is_right(kernel: str) -> None:
    one = APPLICATIONS[kernel]
    assert not isinstance(one.launches, str)
    size, threads = one.launches[0]
    before, after, codes = run(
        workload_of(kernel, ROWS.get(kernel, SIZES[size]), threads), products=True
    )
    assert not codes
    if kernel == "cholesky_batched":
        found = after[1]
        assert found is not None
        lower = np.tril(found.reshape(-1, 32, 32).transpose(0, 2, 1))
        np.testing.assert_allclose(lower, cholesky(before[0]), atol=1e-4)
        return
    if kernel in EXPECTED:
        at, reference = EXPECTED[kernel]
        found = after[at]
        assert found is not None
        wanted = np.asarray(reference(*before)).reshape(-1)
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)
    else:
        assert any(
            isinstance(old, np.ndarray) and new is not None and not np.array_equal(old, new)
            for old, new in zip(before, after, strict=True)
        ), "nothing was written"


def smallest() -> list[Workload]:
    """Of every microbenchmark kernel the configuration with the least threads and data."""
    board = Board(
        sm_count=2, compute_capability=(9, 0), l2_bytes=2**18, memory_bytes=2**22,
        max_threads_per_sm=2048, core_mhz=1e-3,
    )  # fmt: skip
    found: dict[str, Workload] = {}
    for one in sorted(micro(board), key=lambda one: -math.prod(one.block) * one.grid[0]):
        found[one.kernel] = one
    return list(found.values())


@pytest.mark.parametrize("one", smallest(), ids=lambda one: one.kernel)
def test_a_microbenchmark_stays_in_its_buffers(one: Workload) -> None:
    before, after, codes = run(one)
    assert not codes
    if one.kernel.startswith("chase"):
        ring, reached = one.arguments[1], after[0]
        assert isinstance(ring, Buffer)
        assert ring.stride_bytes is not None
        assert reached is not None
        assert reached[0] % ring.stride_bytes == 0
        assert reached[0] < ring.bytes
    elif before and "mma." not in one.ptx:
        assert any(
            isinstance(old, np.ndarray) and not np.array_equal(old, new)
            for old, new in zip(before, after, strict=True)
            if new is not None
        ), "nothing was written"
