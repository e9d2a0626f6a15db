"""Operators of neural networks by their shapes: what a call computes, moves and how it fills a GPU.

A call is named values: an operator, its shape, the formats of its numbers. ``quantities`` works out
operations and bytes, ``features`` the vector of schema ``operator1``: columns in, columns out, so
that a million measured calls and a single request pass through the same lines.

    gemm           C[rows, columns] = A[rows, depth] x B[depth, columns], ``batch`` of them
    attention      ``new`` tokens a sequence attend to themselves and to ``cached`` ones before
    moe            ``tokens``, each through ``topk`` of ``experts`` gated products of a layer
    quantize       a bfloat16 matrix to fp8
    linear_attention  gated delta rule or Mamba 2: ``stage`` convolution or recurrence
    stream         memory-bound passes over ``read_bytes`` and ``write_bytes``

Meanings follow the collector that measured them (github.com/ai-dynamo/aiconfigurator, collector/).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wattcast.features.gpus import GpuProfile
from wattcast.features.gpus.sections import PeakName
from wattcast.features.memory import SECTOR_BYTES
from wattcast.features.schemas.tables import SchemaFile, parse_file, text_of

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

OPERATORS = ("gemm", "prefill", "decode", "moe", "quantize", "gdn", "mamba2", "stream")
"""What models tell apart; attention is ``prefill`` or ``decode``, its two kernels."""

FORMATS = {
    "bfloat16": (16.0, 16.0),
    "fp8": (8.0, 8.0),
    "fp8_block": (8.0, 8.25),
    "nvfp4": (4.0, 4.5),
    "w4a8_mxfp4_mxfp8": (8.0, 4.25),
    "w4a16_mxfp4": (16.0, 4.25),
    "int4_wo": (16.0, 4.125),
}
"""Bits that the matrix units multiply, and bits a stored weight takes with its scales: one float32
for 128 values along two axes (fp8_block counts a quarter bit for scales of activations too), an
fp8 for 16 (nvfp4), 8 bits for 32 (mxfp4), 16 bits for 128 (int4_wo)."""

DISTRIBUTIONS = {"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
"""Tokens over experts: evenly, or by a power law of that exponent (collector/helper.py)."""


class Board(NamedTuple):
    """What features and peaks take from a GPU."""

    bandwidth: float
    sm_count: int
    l2_bytes: float
    tdp_watts: float
    tensor: dict[int, float]
    """FLOP/s of dense products by bits of their operands (16, 8, 4)."""
    l2_bandwidth: float
    """Bytes a second: a sector a clock and SM, at the clock predictions use."""

    @property
    def sm_gigahertz(self) -> float:
        """SMs times that clock."""
        return self.l2_bandwidth / SECTOR_BYTES / 1e9


_PEAKS: dict[int, tuple[PeakName, ...]] = {
    16: ("tensor_bf16", "tensor_fp16"),
    8: ("tensor_fp8",),
    4: ("tensor_fp4",),
}


def board_of(gpu: GpuProfile) -> Board:
    """Peaks as printed, else from multiply-adds an SM does in a clock; formats that the matrix
    units do not know are computed as the next wider one."""
    rates = dict[int, float]()
    for bits, names in _PEAKS.items():
        printed = [gpu.printed[name].value * 1e12 for name in names if name in gpu.printed]
        rate = max(printed) if printed else gpu.peak(names[-1])
        rates[bits] = max(rate, rates.get(2 * bits, 0.0))
    if not rates[16]:
        rates = {bits: max(rate, gpu.peak("fp32")) for bits, rate in rates.items()}
    l2 = SECTOR_BYTES * gpu.sm_count * gpu.core_mhz * 1e6
    return Board(
        gpu.bandwidth_bytes_per_second, gpu.sm_count, gpu.l2_bytes, gpu.tdp_watts, rates, l2
    )


class Quantities(NamedTuple):
    """Of calls ``[n]``: operations, bytes that have to move, and the products they consist of."""

    flops: Floats
    weight_bytes: Floats
    """Of weights or of the key-value cache: read once."""
    moved_bytes: Floats
    """Of activations: read and written."""
    problems: Floats
    rows: Floats
    columns: Floats
    depth: Floats
    hit_share: Floats
    row_tiles: Floats
    """Tiles of 16, 64 and 128 rows over all problems, ``[3, n]``."""
    largest: Floats
    """Rows of the largest problem."""

    @property
    def bytes(self) -> Floats:
        """All that has to move once."""
        return self.weight_bytes + self.moved_bytes


TILES = (16, 64, 128)
_TILE_ROWS = np.array(TILES)[:, None]


def quantities(operator: str, call: Columns) -> Quantities:
    """Of calls of one operator. Values as ``predictor.messages.operators`` bounds them."""
    return _RULES[operator](call)


def _uniform(
    flops: Floats, weights: Floats, moved: Floats,
    problems: Floats, rows: Floats, columns: Floats, depth: Floats,
) -> Quantities:  # fmt: skip
    tiles = problems * np.ceil(rows / _TILE_ROWS)
    one = np.ones_like(flops)
    return Quantities(flops, weights, moved, problems, rows, columns, depth, one, tiles, rows)


def _gemm(call: Columns) -> Quantities:
    rows, columns, depth, batch = call["rows"], call["columns"], call["depth"], call["batch"]
    return _uniform(
        2.0 * batch * rows * columns * depth,
        batch * columns * depth * call["weight_bits"] / 8,
        2.0 * batch * (rows * depth + rows * columns),
        batch, rows, columns, depth,
    )  # fmt: skip


def attended(new: Floats, cached: Floats, window: Floats, causal: Floats) -> Floats:
    """Pairs of a query and a key in one sequence and head. A window of 0 is none."""
    reach = np.where(window > 0, window, np.inf)
    # Causal: query i sees min(cached + i, reach) keys; the first ``short`` see fewer than reach.
    short = np.clip(reach - cached, 0.0, new)
    seen = (
        short * cached
        + short * (short + 1) / 2
        + np.where(new > short, (new - short) * np.where(np.isinf(reach), 0.0, reach), 0.0)
    )
    return np.where(causal > 0, seen, new * np.minimum(cached + new, reach))


def _attention(call: Columns) -> Quantities:
    batch, new, cached = call["batch"], call["new"], call["cached"]
    heads, kv_heads, size = call["heads"], call["kv_heads"], call["head_size"]
    pairs = attended(new, cached, call["window"], call["causal"])
    reach = np.where(call["window"] > 0, call["window"], np.inf)
    kept = np.minimum(cached + new, reach + new - 1)
    group = heads / kv_heads
    decode = new <= 1
    return _uniform(
        4.0 * batch * heads * size * pairs,
        2.0 * batch * kept * kv_heads * size * call["weight_bits"] / 8,
        4.0 * batch * new * (heads + kv_heads) * size,
        batch * np.where(decode, kv_heads, heads), np.where(decode, group, new), size, pairs / new,
    )  # fmt: skip


def _moe(call: Columns) -> Quantities:
    tokens, hidden, matrices = call["tokens"], call["hidden"], 2.0 + call["gated"]
    inner = call["inner"] / call["tensor_parallel"]
    names = ("experts", "expert_parallel", "distribution", "tokens", "topk")
    keys = [*zip(*(call[name].tolist() for name in names), strict=True)]
    known = dict[tuple[float, ...], list[float]]()
    for (experts, ranks, exponent), alike in groupby(sorted({*keys}), lambda key: key[:3]):
        while part := [*islice(alike, max(MOST_CELLS // int(experts), 1))]:
            *_, tokens_, topk = np.array(part).T
            found = expert_load(tokens_, topk, experts, ranks, exponent)
            known |= zip(part, found.T.tolist(), strict=True)
    loads = np.array([known[key] for key in keys])
    routed, hit, largest = loads[:, 0], loads[:, 1], loads[:, 2]
    return Quantities(
        flops=2.0 * routed * hidden * inner * matrices,
        weight_bytes=hit * hidden * inner * matrices * call["weight_bits"] / 8,
        moved_bytes=4.0 * tokens * hidden + 2.0 * routed * (2 * hidden + inner * matrices),
        problems=hit,
        rows=routed / np.maximum(hit, 1e-9),
        columns=inner * (matrices - 1),
        depth=hidden,
        hit_share=hit * call["expert_parallel"] / call["experts"],
        row_tiles=loads[:, 3:].T,
        largest=largest,
    )


MOST_CELLS = 16_384
"""Calls times experts that are dealt out together: tables then stay in the processor's cache."""


def expert_load(
    tokens: ArrayLike, topk: ArrayLike, experts: float, ranks: float, exponent: float
) -> Floats:
    """Routed rows, experts hit, rows of the fullest, and tiles of ``TILES`` rows of one GPU,
    ``[6, n]``.

    As the collector deals tokens out (collector/helper.py, ``balanced_logits`` and
    ``power_law_logits_v3``): rank 0 when balanced, the fullest rank under a power law. Its random
    draws are replaced by the quantiles of the law, dealt to the ranks by four fixed shuffles.
    """
    count, local = int(experts), max(int(experts / ranks), 1)
    most = np.asarray(tokens, dtype=np.float64)[..., None, None]
    wanted = most * np.asarray(topk)[..., None, None]
    if exponent == 0:  # fewer than experts are spread over distinct ones, evenly over the ranks
        own = wanted * local / count
        hit = np.where(wanted < count, np.maximum(np.rint(own), 1.0), local)
        each = np.where(wanted < count, np.maximum(own, 1.0) / hit, wanted / count)
        return _load(np.where(np.arange(local) < hit, each, 0.0))
    low = np.where(wanted > count, 1.0, 0.01)
    high = np.where(wanted > count, most * 0.8, 2.0)
    power = 1.0 - exponent
    first, last = low**power, np.maximum(high, low * 1.001) ** power
    law = ((last - first) * (_shuffles(count) + 0.5) / count + first) ** (1 / power)
    law = np.rint(law * (wanted / law.sum(axis=-1, keepdims=True)))
    spill = np.maximum(law - most, 0.0).sum(axis=-1, keepdims=True)
    law = np.minimum(law, most)
    room = most - law
    law += room * spill / np.maximum(room.sum(axis=-1, keepdims=True), 1.0)
    dealt = law[..., : local * (count // local)].reshape(*law.shape[:-1], -1, local)
    fullest = dealt.sum(axis=-1).argmax(axis=-1)[..., None, None]
    return _load(np.take_along_axis(dealt, fullest, axis=-2)[..., 0, :])


@lru_cache(maxsize=64)
def _shuffles(count: int) -> Floats:
    draw = np.random.default_rng(count)
    return np.stack([draw.permutation(count).astype(float) for _ in range(4)])


def _load(ranks: Floats) -> Floats:
    """Of rows ``[n, shuffles, experts]`` of a rank, the mean over shuffles."""
    whole = np.floor(ranks + 0.5)
    tiles = [np.ceil(whole / rows).sum(axis=-1) for rows in TILES]
    each = [ranks.sum(axis=-1), (ranks >= 0.5).sum(axis=-1), ranks.max(axis=-1), *tiles]
    return np.asarray(np.mean(each, axis=-1), dtype=np.float64)


def _quantize(call: Columns) -> Quantities:
    cells = call["rows"] * call["columns"]
    return _stream_of(cells, 2.0 * cells, cells, call["rows"], call["columns"])


def _stream(call: Columns) -> Quantities:
    read, write = call["read_bytes"], call["write_bytes"]
    rows = np.ceil((read + write) / (3.0 * 4096))
    return _stream_of((read + write) / 3.0, read, write, rows, np.full_like(read, 4096.0))


def _stream_of(
    operations: Floats, read: Floats, write: Floats, rows: Floats, columns: Floats
) -> Quantities:
    one = np.ones_like(read)
    return _uniform(operations, np.zeros_like(read), read + write, one, rows, columns, one)


def _linear(call: Columns) -> Quantities:
    batch, length = call["batch"], call["new"]
    heads, keys = call["heads"], call["key_heads"]
    key, value, taps = call["key_size"], call["head_size"], 4.0
    tokens = batch * length
    channels = heads * value + 2.0 * keys * key
    convolution = call["stage"] == 0
    # Recurrence: chunks of 64 tokens multiply keys, values and states; decode touches the state.
    state = batch * heads * key * value * 4.0
    work = tokens * heads * (6.0 * key * value + np.minimum(length, 64.0) * 2.0 * (key + value))
    return _uniform(
        np.where(convolution, 2.0 * tokens * channels * taps, work),
        np.where(convolution, batch * channels * taps * 2.0, 2.0 * state),
        np.where(convolution, 4.0 * tokens * channels,
                 2.0 * tokens * (2 * keys * key + 2 * heads * value)),
        batch * np.where(convolution, channels / 128, heads), length, value, key,
    )  # fmt: skip


_RULES = {
    "gemm": _gemm, "prefill": _attention, "decode": _attention, "moe": _moe,
    "quantize": _quantize, "stream": _stream, "gdn": _linear, "mamba2": _linear,
}  # fmt: skip


# --- schema operator1 --------------------------------------------------------------------------

TILE_SHAPES = ((16, 128), (64, 128), (128, 128), (128, 256))
_TILES_OF_BOTH = np.array(TILE_SHAPES, dtype=np.float64).T[..., None]

CALL_FEATURES = (
    "rows", "columns", "depth", "batch", "new", "cached", "heads", "kv_heads", "head_size",
    "window", "tokens", "hidden", "inner", "topk", "experts", "tensor_parallel",
    "expert_parallel", "distribution", "gated", "stage",
)  # fmt: skip
"""Values of a call that models see as given; those an operator has not are missing."""
TILES_OF_EXPERTS = ("tokens_per_expert", "row_tile", "tuned")
"""What tells the tiles of vLLM's experts (``expert_tiles``)."""
FEATURE_NAMES = (
    "operator", "framework", "math_bits", "weight_bits", "block_scaled", *CALL_FEATURES,
    "flops", "weight_bytes", "moved_bytes", "roofline_seconds", "compute_over_memory",
    "intensity", "weight_bytes_over_l2", "bytes_over_l2", "problems_per_sm", "problem_rows",
    "problem_columns", "problem_depth", "hit_share", "largest_rows", "inner_alignment",
    *TILES_OF_EXPERTS,
    *(f"{name}_{rows}x{columns}" for rows, columns in TILE_SHAPES
      for name in ("waves", "last_wave", "filled")),
    "serial_depth", "tensor_flops_per_second", "bandwidth", "sm_count", "l2_bytes", "tdp_watts",
)  # fmt: skip
"""Columns of the schema, in order; magnitudes are logarithms to base 2."""
_AT = {name: at for at, name in enumerate(FEATURE_NAMES)}
_PLAIN = ("operator", "framework", "math_bits", "weight_bits", "block_scaled", "distribution",
          "gated", "stage", "topk", "hit_share", "row_tile", "tuned", "last_wave", "filled",
          "sm_count", "tdp_watts")  # fmt: skip
_MAGNITUDES = np.array(
    [at for name, at in _AT.items() if not name.startswith(_PLAIN)], dtype=np.intp
)


def roofline_seconds(found: Quantities, math_bits: Floats, board: Board) -> tuple[Floats, Floats]:
    """Seconds of arithmetic at the format's peak, and of all bytes at peak bandwidth, ``[n]``."""
    narrow = np.where(math_bits >= 8, board.tensor[8], board.tensor[4])
    rate = np.where(math_bits >= 16, board.tensor[16], narrow)
    return found.flops / rate, found.bytes / board.bandwidth


def cached_seconds(moved_bytes: Floats, compute: Floats, board: Board) -> Floats:
    """Seconds ``[n]`` of arithmetic, then of all bytes through L2 or of those that half of L2 does
    not hold from memory: calls repeat, and what one reads another wrote."""
    beyond = np.maximum(moved_bytes - board.l2_bytes / 2, 0.0)
    return compute + np.maximum(moved_bytes / board.l2_bandwidth, beyond / board.bandwidth)


MOST_ALIGNED = 16


def inner_alignment(call: Columns) -> Floats:
    """Greatest power of two up to ``MOST_ALIGNED`` that divides the inner size of experts' shares.

    Triton compiles a kernel anew for extents that 16 divides, and loads several values at once only
    there (triton-lang/triton, ``tt.divisibility``): vLLM's experts of 88 take 2.2 times as long for
    an operation as those of 96 (bfloat16, ``moe_h200-sxm5.parquet``). A value of the call, so that
    neighbours in the sweep are asked as aligned as it is."""
    shares = np.floor_divide(call["inner"], call["tensor_parallel"]).astype(np.int64)
    return np.asarray(np.gcd(shares, MOST_ALIGNED), dtype=np.float64)


def tuned_tiles(gpu: str, call: Columns) -> Floats:
    """Whether vLLM ships tiles for experts of these shapes that were tuned on a board, 1 or 0
    (``tuned_experts.toml``). A value of the call, as ``inner_alignment`` is."""
    experts = np.floor_divide(call["experts"], call["expert_parallel"])
    inner = np.floor_divide(call["inner"], call["tensor_parallel"])
    shapes = zip(call["weight_bits"].tolist(), experts.tolist(), inner.tolist(), strict=True)
    known = _tuned_shapes().get(gpu, set())
    return np.array([shape in known for shape in shapes], dtype=np.float64)


@lru_cache(maxsize=1)
def _tuned_shapes() -> dict[str, set[tuple[float, ...]]]:
    """Bits of a weight, experts and inner size on a GPU, by board."""
    text = Path(__file__).with_name("tuned_experts.toml").read_text(encoding="utf-8")
    return {gpu: {*map(tuple, shapes)} for gpu, shapes in tomllib.loads(text).items()}


def expert_tiles(call: Columns) -> dict[str, Floats]:
    """Tokens for each expert on the GPU, and the rows of a tile of vLLM's kernel: by the rule of
    version 0.14 (``get_default_config`` of vllm/model_executor/layers/fused_moe/fused_moe.py) 16
    for as many tokens as experts and 64 beyond, 0 where tuned ones are shipped."""
    tokens = call["tokens"] * call["expert_parallel"] / call["experts"]
    rows = np.where(call["tuned"] > 0, 0.0, np.where(tokens <= 1.0, 16.0, 64.0))
    return {"tokens_per_expert": tokens, "row_tile": rows, "tuned": call["tuned"]}


def features(operator: str, call: Columns, board: Board) -> tuple[NDArray[np.float32], Quantities]:
    """Vectors ``[n, len(FEATURE_NAMES)]`` of calls of one operator on one board."""
    found = quantities(operator, call)
    compute, memory = roofline_seconds(found, call["math_bits"], board)
    moved = found.bytes
    rows, columns = _TILES_OF_BOTH
    tiles = found.row_tiles[[0, 1, 2, 2]] * np.ceil(found.columns / columns)
    waves = tiles / board.sm_count
    serial = np.maximum(np.ceil(waves[2]), 1.0) * found.depth
    values: dict[str, ArrayLike] = {
        "operator": OPERATORS.index(operator),
        "framework": call["framework"],
        "math_bits": call["math_bits"],
        "weight_bits": call["weight_bits"],
        "block_scaled": call["block_scaled"],
        "flops": found.flops,
        "weight_bytes": found.weight_bytes,
        "moved_bytes": found.moved_bytes,
        "roofline_seconds": np.maximum(compute, memory) * 1e6,
        "compute_over_memory": compute / memory,
        "intensity": found.flops / moved,
        "weight_bytes_over_l2": found.weight_bytes / board.l2_bytes,
        "bytes_over_l2": moved / board.l2_bytes,
        "problems_per_sm": found.problems / board.sm_count,
        "problem_rows": found.rows,
        "problem_columns": found.columns,
        "problem_depth": found.depth,
        "hit_share": found.hit_share,
        "largest_rows": found.largest,
        "serial_depth": serial,
        "tensor_flops_per_second": found.flops / np.maximum(compute, 1e-30) / 1e12,
        "bandwidth": board.bandwidth / 1e12,
        "sm_count": board.sm_count,
        "l2_bytes": board.l2_bytes,
        "tdp_watts": board.tdp_watts,
        **{name: call[name] for name in (*CALL_FEATURES, "inner_alignment") if name in call},
    }
    if "tuned" in call:
        values |= expert_tiles(call)
    table = np.full((len(FEATURE_NAMES), len(moved)), np.nan)
    for name, value in values.items():
        table[_AT[name]] = value
    first, last = _AT["waves_16x128"], _AT["serial_depth"]
    table[first:last:3] = waves
    table[first + 1 : last : 3] = waves / np.maximum(np.ceil(waves), 1.0)
    table[first + 2 : last : 3] = (
        found.problems * found.rows * found.columns / np.maximum(tiles * rows * columns, 1.0)
    )
    table[_MAGNITUDES] = np.log2(np.maximum(table[_MAGNITUDES], 2.0**-40))
    return np.ascontiguousarray(table.T, dtype=np.float32), found


SCHEMA_ID = "operator1"


@lru_cache(maxsize=1)
def operator_schema() -> SchemaFile:
    """``operator1`` as the package defines it."""
    return parse_file(text_of(SCHEMA_ID))
