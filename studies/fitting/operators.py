"""Measured operators in, operator models out: reading the files, fitting, scoring, artifacts.

The files are those of ``../shared/data/operators`` (ai-dynamo/aiconfigurator, Apache-2.0): one row
is one call of a framework's kernel on one board, with the time of a call in a replayed CUDA graph
and, on two boards, the mean of NVML's power readings while it was replayed for up to a second.

What a row's shape does not tell is left in the errors: readings average over the last second, so
that calls after a pause (a board that waited for a compiler or for memory to be filled) read low by
up to half; weights that the collector leaves uninitialised draw less than random ones.
"""

from __future__ import annotations

import json
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.isotonic import isotonic_regression

from wattcast.features.gpus import load_gpu
from wattcast.features.operators import (
    DISTRIBUTIONS,
    FEATURE_NAMES,
    FORMATS,
    SCHEMA_ID,
    TILES_OF_EXPERTS,
    Board,
    Floats,
    board_of,
    features,
    inner_alignment,
    operator_schema,
    roofline_seconds,
    tuned_tiles,
)
from wattcast.models.cards import SchemaReference, Source, sha256_of
from wattcast.models.operators import (
    AXES,
    GROWS,
    IDLE_SHARE,
    POOLED,
    VOLTAGE,
    Against,
    Fitted,
    OperatorCard,
    OperatorFacts,
    OperatorIntervals,
    OperatorScores,
    OperatorTraining,
    Quantity,
    Sustained,
    log_base,
)
from wattcast.training.families import SEED, library_versions
from wattcast.training.provenance import (
    code_revision,
    feature_facts,
    summarise,
    today,
    write_artifact,
)

FILES = MappingProxyType({
    "gemm": "gemm", "prefill": "context_attention", "decode": "generation_attention",
    "moe": "moe", "quantize": "quantize", "gdn": "gdn", "mamba2": "mamba2",
})  # fmt: skip
"""Stem of an operator's files."""

BOARDS = ("h200-sxm5", "b200", "h100-sxm5", "l40s", "rtx-pro-6000-server", "a100-sxm4-80gb")
LONG_SECONDS = 1e-4
"""Calls from here on were replayed for a second (collector/helper.py); shorter ones for 0.3 s."""

LEVEL = 0.9
FOLDS = 3
WIDENING = 1.5
"""Width beyond the sweep over that inside, in logarithms: the convention of models/intervals.py."""

FRAMEWORKS = ("vllm", "trtllm")

HYPERPARAMETERS: Mapping[str, bool | int | float | str] = MappingProxyType({
    "n_estimators": 240, "max_depth": 7, "learning_rate": 0.1, "min_child_weight": 5,
    "subsample": 0.8, "colsample_bytree": 0.6, "tree_method": "hist", "max_bin": 256,
    "objective": "reg:squarederror", "seed": SEED,
})  # fmt: skip
POWER_HYPERPARAMETERS = MappingProxyType({**HYPERPARAMETERS, "min_child_weight": 100})
"""Readings scatter by a tenth and more where times scatter by a hundredth."""


DEEP = MappingProxyType({"max_depth": 8, "colsample_bytree": 0.9})
SMALL_BOARDS = ("l40s", "rtx-pro-6000-server")
SLOW = MappingProxyType({"max_depth": 8, "learning_rate": 0.06})
HUNDREDS = ("b200", "h200-sxm5")
DEEP_TIMES = {"gemm": ("b200", "h100-sxm5", *SMALL_BOARDS), "decode": (*HUNDREDS, *SMALL_BOARDS),
              "prefill": SMALL_BOARDS[1:]}  # fmt: skip
DEEPER: dict[tuple[str, str, Quantity], Mapping[str, float]]
DEEPER = {(name, board, "time"): DEEP for name, boards in DEEP_TIMES.items() for board in boards}
DEEPER |= {("prefill", board, "time"): SLOW for board in HUNDREDS}
"""What deeper trees are fitted to. For each fold a third of the other shape groups was left out of
a sample (20,000 rows, 120 trees): all three were better on each of these boards. Products: L40S
7.4 for 8.1 %, B200 6.4 for 7.4, H100 5.7 for 6.1, RTX PRO 6000 7.3 for 7.5; decode: L40S 8.5 for
9.4, RTX PRO 6000 7.5 for 8.7. Hardly or not: products of H200 (3.95 for 4.0) and A100 (5.1), decode
of A100 (8.0 for 8.1), prefill of H100 (one or two of three were worse). Depths of 9 and 10 were no
better for products of L40S and B200 (7.4 and 6.4 %). With relative errors (``RELATIVE_TIMES``;
40,000 rows, all trees) all three were better, too: decode of H200 3.3 for 3.6 and B200 5.9 for 7.9,
prefill of RTX PRO 6000 6.3 for 6.6; ``SLOW``, prefill of H200 5.4 for 5.8 and B200 4.2 for 4.6."""

Family = Literal["xgboost", "catboost"]
CATBOOST = MappingProxyType({
    "iterations": 240, "depth": 8, "learning_rate": 0.15, "random_seed": SEED, "thread_count": 1,
    "verbose": False, "allow_writing_files": False,
})  # fmt: skip
"""As many trees, about as deep; of its own the ones that took the least on A100's products."""


@dataclass(frozen=True)
class Rows:
    """Measured calls of one operator on one board."""

    operator: str
    gpu: str
    call: dict[str, Floats]
    groups: NDArray[np.str_]
    formats: tuple[str, ...]
    seconds: Floats
    watts: Floats
    """NaN where none were measured."""
    limit_watts: float
    kernel: Floats
    """Which of TensorRT-LLM's two kernels for experts in nvfp4 was measured, NaN elsewhere."""

    def __len__(self) -> int:
        return len(self.seconds)

    def taken(self, keep: NDArray[Any]) -> Rows:
        """Some of the rows."""
        call = {name: values[keep] for name, values in self.call.items()}
        return Rows(self.operator, self.gpu, call, self.groups[keep], self.formats,
                    self.seconds[keep], self.watts[keep], self.limit_watts,
                    self.kernel[keep])  # fmt: skip


def read_rows(folder: Path, operator: str, gpu: str) -> Rows | None:
    """Rows of one file, ``None`` where there is none. Of several kernels that one framework
    measured for one call the fastest counts, as its tuner would choose."""
    path = folder / f"{FILES[operator]}_{gpu}.parquet"
    if not path.exists():
        return None
    table = pd.read_parquet(path)
    read = _READERS.get(operator, _linear_columns)
    call, groups, formats = read(operator, table)
    call["framework"] = np.array([FRAMEWORKS.index(one) for one in table.framework], dtype=float)
    key = np.stack([*call.values()], axis=1)
    order = np.argsort(table.time_ms.to_numpy(), kind="stable")
    _, first = np.unique(key[order], axis=0, return_index=True)
    keep = np.sort(order[first])
    limit, kernel = table.power_limit_watts.max(), np.full(len(table), np.nan)
    if operator == "moe":
        call["tuned"] = tuned_tiles(gpu, call)
        both = (table.moe_dtype == "nvfp4") & (table.num_experts <= 256)
        kernel = table.kernel_source.where(both).map(TWO_KERNELS).to_numpy(float)
    found = Rows(operator, gpu, call, groups.to_numpy(dtype=str), formats,
                 table.time_ms.to_numpy(float) * 1e-3, table.power_watts.to_numpy(float),
                 float(limit) if limit == limit else 0.0, kernel)  # fmt: skip
    return found.taken(keep)


TWO_KERNELS = {"moe_torch_flow_cutlass": 0.0, "moe_torch_flow_min_latency": 1.0}
"""Kernels that TensorRT-LLM has for experts in nvfp4, up to 256 of them
(collector/trtllm/collect_moe.py). Of nine tenths of the calls the rows here have one alone."""

Read = tuple[dict[str, Floats], "pd.Series[str]", tuple[str, ...]]


def _formats(table: pd.DataFrame, column: str) -> tuple[dict[str, Floats], tuple[str, ...]]:
    names = table[column]
    bits = np.array([FORMATS[name] for name in names], dtype=float).reshape(-1, 2)
    scaled = names.isin(["fp8_block", "w4a8_mxfp4_mxfp8", "nvfp4"]).to_numpy(float)
    values = {"math_bits": bits[:, 0], "weight_bits": bits[:, 1], "block_scaled": scaled}
    return values, tuple(sorted(set(names)))


def _renamed(table: pd.DataFrame, **names: str) -> dict[str, Floats]:
    return {ours: table[theirs].to_numpy(float) for ours, theirs in names.items()}


def _group(table: pd.DataFrame, *columns: str) -> pd.Series[str]:
    rows = table[[*columns]].astype(str).to_numpy()
    return pd.Series(["/".join(row) for row in rows])


def _gemm_columns(operator: str, table: pd.DataFrame) -> Read:
    values, formats = _formats(table, "gemm_dtype")
    call = _renamed(table, rows="m", columns="n", depth="k")
    return {**call, "batch": np.ones(len(table)), **values}, _group(table, "n", "k"), formats


def _attention_columns(operator: str, table: pd.DataFrame) -> Read:
    values, _ = _formats(table, "attn_dtype")
    cache, formats = _formats(table, "kv_cache_dtype")
    call = _renamed(table, batch="batch_size", cached="step", heads="num_heads",
                    kv_heads="num_key_value_heads", head_size="head_dim", window="window_size",
                    new="isl")  # fmt: skip
    call["kv_heads"] = np.where(call["kv_heads"] == 0, call["heads"], call["kv_heads"])
    call |= {**values, "weight_bits": cache["weight_bits"], "causal": np.ones(len(table))}
    return call, _group(table, "num_heads", "num_key_value_heads", "head_dim"), formats


ALWAYS_GATED = ("0.14.0", "0.22.0")
"""Versions of vLLM whose collector measured Nemotron's experts with a gate all the same: the first
product had two matrices (``w1`` of ``2 * local_inter_size``) before that of 0.24. Counted without
a gate, calls of 64 to 128 tokens reached .53 to .55 of the bandwidth on A100, H200 and B200, with
it .79 to .83; other layers of 128 experts and more reached .66 to .84."""


def _moe_columns(operator: str, table: pd.DataFrame) -> Read:
    values, formats = _formats(table, "moe_dtype")
    call = _renamed(table, tokens="num_tokens", hidden="hidden_size", inner="inter_size",
                    topk="topk", experts="num_experts", tensor_parallel="moe_tp_size",
                    expert_parallel="moe_ep_size")  # fmt: skip
    call["inner_alignment"] = inner_alignment(call)
    call["distribution"] = np.array([DISTRIBUTIONS[one] for one in table.distribution])
    # Nemotron's experts have no gate (collector/vllm/collect_moe.py, ``nemotron_h``).
    plain = (call["topk"] == 22) | ((call["hidden"] == 2688) & (call["inner"] == 1856))
    call["gated"] = np.where(plain & ~table.version.isin(ALWAYS_GATED), 0.0, 1.0)
    return {**call, **values}, _group(table, *_LAYER), formats


_LAYER = ("hidden_size", "inter_size", "topk", "num_experts")


def _quantize_columns(operator: str, table: pd.DataFrame) -> Read:
    one = np.ones(len(table))
    call = _renamed(table, rows="m", columns="k")
    call |= {"math_bits": 16 * one, "weight_bits": 8 * one, "block_scaled": 0 * one}
    return call, _group(table, "k"), ("fp8",)


def _linear_columns(operator: str, table: pd.DataFrame) -> Read:
    delta = operator == "gdn"
    call = _renamed(table, batch="batch_size", new="seq_len",
                    heads="num_v_heads" if delta else "nheads",
                    key_heads="num_k_heads" if delta else "n_groups",
                    key_size="head_k_dim" if delta else "d_state",
                    head_size="head_v_dim" if delta else "head_dim")  # fmt: skip
    one = np.ones(len(table))
    convolution = table.kernel_source.str.startswith("causal_conv").to_numpy()
    call["stage"] = np.where(convolution, 0.0, 1.0)
    call |= {"math_bits": 16 * one, "weight_bits": 16 * one, "block_scaled": 0 * one}
    names = ("num_v_heads", "num_k_heads") if delta else ("nheads", "n_groups", "d_state")
    return call, _group(table, *names), ("bfloat16",)


_READERS: Mapping[str, Callable[[str, pd.DataFrame], Read]] = {
    "gemm": _gemm_columns, "prefill": _attention_columns, "decode": _attention_columns,
    "moe": _moe_columns, "quantize": _quantize_columns,
}  # fmt: skip


# --- targets and fits --------------------------------------------------------------------------

PLAIN = Against()


@dataclass(frozen=True)
class Table:
    """Rows with their vectors, and what trees learn from them."""

    rows: Rows
    board: Board
    vectors: NDArray[np.float32]
    flops: Floats
    bytes: Floats
    roofs: tuple[Floats, Floats]

    @property
    def roofline(self) -> Floats:
        """Seconds at peak rates."""
        return np.maximum(*self.roofs)

    def offset(self, against: Against = PLAIN) -> Floats:
        """Logarithm of what times are set against."""
        return log_base(*self.roofs, self.bytes, self.board, against)

    def measured(self, quantity: Quantity) -> Floats:
        """Seconds or watts as measured."""
        return self.rows.seconds if quantity == "time" else self.rows.watts

    def target(self, quantity: Quantity) -> Floats:
        """What trees are fitted to: logarithms."""
        if quantity == "time":
            return np.log(_rising(self.rows)) - self.offset()
        return np.log(self.rows.watts / self.rows.limit_watts)

    def told(self, quantity: Quantity, scores: Floats, against: Against = PLAIN) -> Floats:
        """Seconds or watts of what trees tell."""
        if quantity == "time":
            return np.exp(scores + self.offset(against))
        return np.minimum(np.exp(scores), 1.0) * self.rows.limit_watts


def table_of(rows: Rows) -> Table:
    """The vectors of rows."""
    board = board_of(load_gpu(rows.gpu))
    vectors, found = features(rows.operator, rows.call, board)
    compute, memory = roofline_seconds(found, rows.call["math_bits"], board)
    return Table(rows, board, vectors, found.flops, found.bytes, (compute, memory))


def _rising(rows: Rows) -> Floats:
    """Times that never fall along the tokens: the nearest ones to the measured (least squares of
    logarithms) of each curve."""
    axis = GROWS[rows.operator]
    others = np.stack([v for name, v in rows.call.items() if name != axis], axis=1)
    _, curve = np.unique(others, axis=0, return_inverse=True)
    order = np.lexsort((rows.call[axis], curve.reshape(-1)))
    ends = np.flatnonzero(np.diff(curve.reshape(-1)[order])) + 1
    rising = np.log(rows.seconds)
    for part in np.split(order, ends):
        rising[part] = isotonic_regression(rising[part])
    return np.exp(rising)


TILED = {("moe", board, "time") for board in ("a100-sxm4-80gb", "b200")}
"""What learns from ``TILES_OF_EXPERTS``. Shape groups left out of those that each fold learns from
were 17.6 % off with them and 19.8 without on A100, 22.0 and 23.2 on B200. Others were no better:
H200 15.3 for 14.0, L40S 17.8 for 16.4, RTX PRO 6000 9.5 for 9.4, H100 15.0 for 14.1."""


def inputs_of(vectors: NDArray[np.float32], tiled: bool = False) -> list[int]:
    """Columns that vary; ``TILES_OF_EXPERTS`` among them where they are asked for."""
    filled = np.nan_to_num(vectors, nan=-1e30)
    vary = np.flatnonzero(filled.max(axis=0) > filled.min(axis=0))
    return [int(at) for at in vary if tiled or FEATURE_NAMES[at] not in TILES_OF_EXPERTS]


RELATIVE_STEP = 0.1
"""Relative errors of power well below this count by their square, larger ones by their size, as in
a mean of percents. Chosen of .03, .1, .2 by the scores of shape groups left out (H200, B200)."""


def _relative(told: Floats, matrix: Any) -> tuple[Floats, Floats]:
    """Gradient and curvature of the size of relative errors, of logarithms told."""
    ratio = np.exp(np.minimum(told - matrix.get_label(), 1.5))
    size = np.hypot(ratio - 1.0, RELATIVE_STEP)
    return (ratio - 1.0) / size * ratio, ratio**2 / size


RELATIVE_TIMES = {("moe", board, "time") for board in ("l40s", *HUNDREDS)}
RELATIVE_TIMES |= {("decode", board, "time") for board in HUNDREDS}
RELATIVE_TIMES |= {key for key in DEEPER if key[0] == "prefill"}
"""Times that are fitted by the size of relative errors, too. Squares follow the few experts that
take many times as long (fp8, inner sizes that 16 does not divide, 45 times on L40S), and small
inner sizes were taken for such (1,160 % off). Half of L40S's shape groups, left out of each other,
were 15.1 % off for 17.5; H200 and B200 follow from their own scores (8.6 for 9.0, 16.8 for 17.6),
H100 does not (10.8 for 10.4), nor do A100's few groups (17.4 for 15.3). Attention as ``DEEPER``
tells; prefill of H100 (6.6 both), L40S (5.0 for 4.6) and A100 (5.3 for 5.0) was no better."""


def fit(
    vectors: NDArray[np.float32], target: Floats, quantity: Quantity, trees: int | None = None,
    weight: Floats | None = None, family: Family = "xgboost", relative: bool = False,
    more: Mapping[str, float] = MappingProxyType({}),
) -> Any:  # fmt: skip
    """A booster of ``HYPERPARAMETERS`` on one thread: equal rows give equal trees. Times by squares
    of logarithms, watts and what is ``relative`` by the size of relative errors, with ``more``."""
    if family == "catboost":
        import catboost

        least = "RMSE" if quantity == "time" else "MAE"
        regressor = catboost.CatBoostRegressor(**CATBOOST, loss_function=least)
        return regressor.fit(vectors, target, sample_weight=weight)
    import xgboost

    parameters = {**(HYPERPARAMETERS if quantity == "time" else POWER_HYPERPARAMETERS), **more}
    count, loss = int(parameters.pop("n_estimators")), None
    if quantity == "power" or relative:
        loss, parameters["base_score"] = _relative, float(np.median(target))
    matrix = xgboost.DMatrix(vectors, target, weight=weight, nthread=1)
    return xgboost.train({**parameters, "nthread": 1}, matrix, trees or count, obj=loss)


def predicted(booster: Any, vectors: NDArray[np.float32]) -> Floats:
    """Logarithms ``[n]``."""
    import xgboost

    if not isinstance(booster, xgboost.Booster):
        return np.asarray(booster.predict(vectors), dtype=np.float64)
    return np.asarray(booster.predict(xgboost.DMatrix(vectors, nthread=1)), dtype=np.float64)


def folds_of(rows: Rows, protocol: str, folds: int = FOLDS) -> NDArray[np.intp]:
    """Fold of each row: by shape group, or by chance."""
    if protocol == "random":
        return np.random.default_rng(SEED).integers(folds, size=len(rows))
    number = {g: zlib.crc32(f"{rows.operator}/{g}".encode()) % folds for g in set(rows.groups)}
    return np.array([number[group] for group in rows.groups])


FEW_GROUPS = 10
LENT_ROWS, LENT_WEIGHT = 2_500, 0.3
"""Operators of fewer shape groups learn from so many rows of every other board, too: A100's experts
left out were 38 % off in time, with them 28 (29 at a weight of .1, 28 at 1)."""


def lent(table: Table, folder: Path) -> list[Table]:
    """Rows of other boards, where the table has few shape groups."""
    rows, found = table.rows, list[Table]()
    if len(set(rows.groups)) < FEW_GROUPS:
        for board in BOARDS:
            other = read_rows(folder, rows.operator, board) if board != rows.gpu else None
            if other is not None:
                at = np.random.default_rng(SEED).permutation(len(other))[:LENT_ROWS]
                found.append(table_of(other.taken(np.sort(at))))
    return found


def learnt(
    table: Table, at: NDArray[np.intp], quantity: Quantity, lending: Sequence[Table] = (),
    family: Family = "xgboost",
) -> tuple[Any, list[int]]:  # fmt: skip
    """A booster of some rows, and of lent ones but for shape groups left out; columns it takes."""
    out = set(table.rows.groups) - set(table.rows.groups[at])
    parts = [(table, at)]
    for one in lending:
        able = np.isfinite(one.measured(quantity))
        able &= [group not in out for group in one.rows.groups]
        parts.append((one, np.flatnonzero(able)))
    vectors = np.concatenate([one.vectors[some] for one, some in parts])
    target = np.concatenate([one.target(quantity)[some] for one, some in parts])
    of = table.rows.operator, table.rows.gpu, quantity
    used = inputs_of(np.concatenate([one.vectors for one, _ in parts]), of in TILED)
    weights = np.where(np.arange(len(target)) < len(at), 1.0, LENT_WEIGHT) if lending else None
    how = of in RELATIVE_TIMES, DEEPER.get(of, {})
    two = np.flatnonzero(np.isfinite(kernel := table.rows.kernel[at]))
    if quantity == "time" and len(two) and not lending:  # a tuner would take the faster kernel
        either = np.column_stack([vectors[:, used], kernel])
        told = fit(either, target, quantity, None, weights, family, *how)
        either[:, -1] = 1.0 - kernel
        target[two] = np.minimum(target[two], predicted(told, either[two]))
    return fit(vectors[:, used], target, quantity, None, weights, family, *how), used


def out_of_fold(
    table: Table, quantity: Quantity, protocol: str, lending: Sequence[Table] = (),
    family: Family = "xgboost",
) -> tuple[NDArray[np.intp], Floats]:  # fmt: skip
    """Rows ``[m]`` and what trees tell of each that were fitted without its fold. Of chance folds
    the first alone is asked: it tells what the scatter of readings leaves."""
    at = np.flatnonzero(np.isfinite(table.measured(quantity)))
    told, fold = np.full(len(at), np.nan), folds_of(table.rows, protocol)[at]
    for number in range(FOLDS if protocol == "shape_group" else 1):
        out = fold == number
        if not out.any():
            continue
        if out.all():
            raise ValueError(f"{table.rows.operator} on {table.rows.gpu}: one shape group alone")
        booster, used = learnt(table, at[~out], quantity, lending, family)
        told[out] = predicted(booster, table.vectors[at[out]][:, used])
    full = np.zeros(len(table.rows))
    full[at] = told
    asked = np.isfinite(told)
    return at[asked], table.told(quantity, full)[at[asked]]


def scores_of(
    table: Table, quantity: Quantity, protocol: Literal["random", "shape_group"],
    at: NDArray[np.intp], told: Floats,
) -> OperatorScores:  # fmt: skip
    """Errors of answers to the rows ``at``, beside the median and the roofline."""
    measured = table.measured(quantity)[at]
    error = percent(told, measured)
    long = table.rows.seconds[at] >= LONG_SECONDS
    return OperatorScores(
        protocol=protocol,
        folds=FOLDS,
        rows=len(at),
        mean_percent=round(float(error.mean()), 2),
        median_percent=round(float(np.median(error)), 2),
        long_mean_percent=round(float(error[long].mean()), 2) if long.any() else None,
        long_median_percent=round(float(np.median(error[long])), 2) if long.any() else None,
        constant_mean_percent=round(float(percent(np.median(measured), measured).mean()), 2),
        roofline_mean_percent=round(float(percent(table.roofline[at], measured).mean()), 2)
        if quantity == "time"
        else None,
    )


def percent(told: Floats | float, measured: Floats) -> Floats:
    """Absolute errors in percent of what was measured."""
    return np.abs(told / measured - 1.0) * 100.0


BLOCKS = 8
"""Parts of the shape groups, each of which is asked how far the ends of the others hold."""


def widths(
    rows: Rows, at: NDArray[np.intp], told: Floats, measured: Floats
) -> tuple[float, float, float]:
    """Ends of the interval in logarithms, from residuals of shape groups left out, and the share
    they hold of groups that they were not made of. Quantiles of some groups hold too little of
    others where groups are few: they are widened by what holds the level across blocks of groups.
    Rows of large groups weigh less, so that a group counts by the square root of its rows."""
    residual = np.log(measured / told)
    _, place, count = np.unique(rows.groups[at], return_inverse=True, return_counts=True)
    weight, block = 1.0 / np.sqrt(count[place]), place % min(BLOCKS, len(count))

    def ends(part: NDArray[np.bool_]) -> Floats:
        tail = (1.0 - LEVEL) / 2
        low, high = _quantiles(residual[part], weight[part], tail, 1.0 - tail)
        return np.array([min(low, -1e-3), max(high, 1e-3)])

    blocks = [block == number for number in np.unique(block)]
    if len(blocks) < 2:
        low, high = ends(blocks[0])
        return low, high, LEVEL
    needed = np.empty(len(at))  # how far the ends of the other blocks had to be widened
    for own in blocks:
        low, high = ends(~own)
        needed[own] = np.maximum(residual[own] / high, residual[own] / low)

    def factor(part: NDArray[np.bool_]) -> float:
        return max(_quantiles(needed[part], weight[part], LEVEL)[0], 1.0)

    held = float(np.mean(np.concatenate([needed[own] <= factor(~own) for own in blocks])))
    every = np.ones(len(at), dtype=bool)
    low, high = ends(every) * factor(every)
    return float(low), float(high), held


def _quantiles(values: Floats, weight: Floats, *levels: float) -> list[float]:
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return [float(one) for one in np.interp(levels, share, values[order])]


# --- artifacts ---------------------------------------------------------------------------------

LEAF_STEP = 2.0**-13
"""Leaves are rounded to this, a hundredth of a percent: files then compress by a third."""


def slim(booster: Any) -> Any:
    """The booster with leaves rounded, rows of a node (for SHAP) to a power of two, and without the
    gains of its splits."""
    import xgboost

    model = json.loads(booster.save_raw("json"))
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        leaf = np.array(tree["left_children"]) < 0
        values = np.array(tree["split_conditions"])
        rounded = np.round(values / LEAF_STEP) * LEAF_STEP
        tree["split_conditions"] = [float(v) for v in np.where(leaf, rounded, values)]
        tree["base_weights"] = tree["loss_changes"] = [0.0] * len(leaf)
        covers = np.log2(np.maximum(tree["sum_hessian"], 1.0))
        tree["sum_hessian"] = [float(2.0**v) for v in np.round(covers)]
    found = xgboost.Booster(params={"nthread": 1})
    found.load_model(bytearray(json.dumps(model).encode()))
    return found


def write_trees(booster: Any, name: str, features_count: int, folder: Path) -> None:
    """Native and ONNX file of a booster."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    inputs = [("features", FloatTensorType([None, features_count]))]
    converted = onnxmltools.convert_xgboost(booster, name="xgboost", initial_types=inputs)
    (folder / f"{name}.ubj").write_bytes(booster.save_raw("ubj"))
    (folder / f"{name}.onnx").write_bytes(converted.SerializeToString())


@dataclass(frozen=True)
class Fit:
    """An operator's part of a card, and its boosters by file name."""

    facts: OperatorFacts
    boosters: Mapping[str, tuple[Any, int]]


def fit_operator(table: Table, lending: Sequence[Table] = ()) -> Fit:
    """Fit time and power of one operator on one board, scored on shape groups left out."""
    rows = table.rows
    boosters: dict[str, tuple[Any, int]] = {}

    def part(quantity: Quantity) -> Fitted | None:
        able = np.flatnonzero(np.isfinite(table.measured(quantity)))
        if len(able) < 200:
            return None
        at, told = out_of_fold(table, quantity, "shape_group", lending)
        scores = [scores_of(table, quantity, "shape_group", at, told)]
        low, high, coverage = widths(rows, at, told, table.measured(quantity)[at])
        again, chance = out_of_fold(table, quantity, "random", lending)
        scores.append(scores_of(table, quantity, "random", again, chance))
        booster, used = learnt(table, able, quantity, lending)
        booster = slim(booster)
        name = f"{rows.operator}_{quantity}"
        boosters[name] = booster, len(used)
        return Fitted(
            file=name,
            inputs=tuple(FEATURE_NAMES[at] for at in used),
            trees=booster.num_boosted_rounds(),
            rows=len(able),
            groups=len(set(rows.groups[able])),
            low=round(low, 4),
            high=round(high, 4),
            coverage=round(coverage, 3),
            scores=tuple(scores),
        )

    time = part("time")
    assert time is not None
    facts = OperatorFacts(
        frameworks=tuple(FRAMEWORKS[int(at)] for at in np.unique(rows.call["framework"])),
        formats=rows.formats,
        knots={name: tuple(map(float, np.unique(rows.call[name]))) for name in AXES[rows.operator]},
        longest_seconds=float(rows.seconds.max()),
        time=time,
        power=part("power"),
        sustained=sustained_of(table),
    )
    return Fit(facts, boosters)


UPPER = 0.75
"""Quantile of readings that stands for a call that was not preceded by a pause."""


def sustained_of(table: Table) -> Sustained | None:
    """What the operator draws without a pause, ``None`` where no watts were measured."""
    rows = table.rows
    keep = np.isfinite(rows.watts) & (rows.seconds >= SETTLED_SECONDS)
    if keep.sum() < 100:
        return None
    idle = float(np.nanpercentile(rows.watts, 0.5))
    shares = np.stack([np.ones(len(rows)), *(roof / rows.seconds for roof in table.roofs)], axis=1)
    share = np.clip((rows.watts - idle) / (rows.limit_watts - idle), 0.0, CENSORED)
    drawn = -np.log1p(-share)
    busy, flop, byte = (round(float(one), 4) for one in _envelope(shares[keep], drawn[keep]))
    return Sustained(idle_watts=round(idle, 1), busy=busy, compute=flop, memory=byte)


def _envelope(design: Floats, drawn: Floats) -> Floats:
    """Non-negative weights of the upper quantile of what is drawn, by iteratively reweighted least
    squares; rows at the limit count only where less is told (they are censored)."""
    weight = np.ones(len(drawn))
    found = np.zeros(design.shape[1])
    for _ in range(30):
        root = np.sqrt(weight)
        found, _ = nnls(design * root[:, None], drawn * root)
        rest = drawn - design @ found
        weight = np.where(rest > 0, UPPER, 1.0 - UPPER) / np.maximum(np.abs(rest), 0.01)
        weight[(drawn >= -np.log1p(-CENSORED)) & (rest < 0)] = 0.0
    return np.asarray(found)


SETTLED_SECONDS = 2e-5
"""Calls from here on were replayed for long enough that some readings are nearly theirs: six calls
of 17 microseconds in a graph are replayed for a second."""

CENSORED = 0.97
"""Share of the limit from which a reading is at it."""


def source_of(path: Path) -> Source:
    """An upstream file."""
    digest = sha256_of(path)
    return Source(
        repository="https://github.com/ai-dynamo/aiconfigurator",
        path=f"data/operators/{path.name}",
        sha256=digest,
        used_sha256=digest,
        licence="Apache-2.0",
    )


def write_model(
    gpu: str, tables: Sequence[Table], fits: Sequence[Fit], sources: Sequence[Source], out: Path
) -> OperatorCard:
    """Write the artifact of a board."""
    rows = [table.rows for table in tables]
    measured = [one for one in rows if np.isfinite(one.watts).any()]
    vectors = np.concatenate([table.vectors for table in tables])
    limit = max((one.limit_watts for one in measured), default=tables[0].board.tdp_watts)
    if gpu == POOLED:
        limit = POOLED_LIMIT_WATTS
    more = {f"{operator}_{of}_{name}": value for (operator, board, of), deep in DEEPER.items()
            if board == gpu for name, value in deep.items()}  # fmt: skip
    fingerprint = zlib.crc32(b"")
    for table in tables:
        for part in (table.vectors, table.rows.seconds, table.rows.watts):
            fingerprint = zlib.crc32(np.ascontiguousarray(part).tobytes(), fingerprint)
    card = OperatorCard(
        gpu=gpu,
        target="operator",
        family="xgboost",
        source="aiconfigurator",
        version=1,
        feature_schema=SchemaReference(id=SCHEMA_ID, sha256=operator_schema().sha256),
        features=feature_facts(FEATURE_NAMES, vectors.astype(float)),
        training=OperatorTraining(
            rows=sum(map(len, rows)),
            kernels=len(rows),
            kernel_groups=sum(len(set(one.groups)) for one in rows),
            limit_watts=limit,
            idle_watts=max(
                (f.facts.sustained.idle_watts for f in fits if f.facts.sustained), default=0.0
            ),
            power_rows=int(sum(np.isfinite(one.watts).sum() for one in rows)),
            fingerprint=f"{fingerprint:064x}",
        ),
        sources=tuple(sources),
        hyperparameters={**HYPERPARAMETERS, **more},
        libraries=library_versions(("xgboost",)),
        intervals=OperatorIntervals(level=LEVEL, extrapolated_widening=WIDENING),
        operators={table.rows.operator: one.facts for table, one in zip(tables, fits, strict=True)},
        files={"card": "0" * 64},
        created=today(),
        code_revision=code_revision(),
    )

    def write(folder: Path) -> None:
        for one in fits:
            for name, (booster, count) in one.boosters.items():
                write_trees(booster, name, count, folder)
        for table, one in zip(tables, fits, strict=True):
            used = list(one.facts.time.inputs)
            vectors = table.vectors[:, [FEATURE_NAMES.index(name) for name in used]]
            path = folder / f"{table.rows.operator}_background.json"
            path.write_text(summarise(vectors.astype(float), used).model_dump_json() + "\n")

    card = write_artifact(card, out, write)
    for path in sorted((out / card.folder).glob("*_*.*")):
        path.with_name(path.name + ".xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
        path.unlink()
    return card


def fit_board(
    folder: Path, gpu: str, out: Path, progress: Callable[[str], None] = print
) -> OperatorCard:
    """Fit, score and write the artifact of a board."""
    found = [read_rows(folder, operator, gpu) for operator in FILES]
    tables = [table_of(rows) for rows in found if rows is not None]
    fits = []
    for table in tables:
        fits.append(fit_operator(table, lent(table, folder)))
        for quantity in (fits[-1].facts.time, fits[-1].facts.power):
            if quantity is not None:
                progress(f"{gpu} {quantity.file}: {quantity.rows} rows, "
                         f"{quantity.scores[0].mean_percent} %")  # fmt: skip
    sources = [source_of(folder / f"{FILES[t.rows.operator]}_{gpu}.parquet") for t in tables]
    return write_model(gpu, tables, fits, sources, out)


# --- boards nobody measured --------------------------------------------------------------------

POOLED_ROWS = 3_000
"""Rows of each board that the pooled model learns an operator's times from, drawn by chance; twice
as many for power, which two boards have."""
POOLED_TREES = 120

BOARD_FEATURES = ("tensor_flops_per_second", "bandwidth", "sm_count", "l2_bytes", "tdp_watts")
"""Six boards do not tell what these do beyond the ratios that other features are made of."""


@dataclass(frozen=True)
class _Boards:
    """Rows of boards that trees for any board are fitted to, and the times they learn (the rising
    ones of all rows)."""

    tables: Sequence[Table]
    rising: Sequence[Floats]
    quantity: Quantity

    @classmethod
    def drawn(cls, tables: Sequence[Table], quantity: Quantity) -> _Boards:
        """``POOLED_ROWS`` of each board that has 200, by chance."""
        most = POOLED_ROWS * (1 + (quantity == "power"))
        chance, found, times = np.random.default_rng(SEED), list[Table](), list[Floats]()
        for table in tables:
            able = np.flatnonzero(np.isfinite(table.measured(quantity)))
            if len(able) >= 200:
                at = np.sort(chance.choice(able, min(most, len(able)), replace=False))
                found.append(table_of(table.rows.taken(at)))
                times.append(_rising(table.rows)[at] if quantity == "time" else np.empty(0))
        return cls(found, times, quantity)

    def thinned(self) -> _Boards:
        """About ``CHOICE_ROWS`` of each."""
        steps = [max(len(table.rows) // CHOICE_ROWS, 1) for table in self.tables]
        tables = [table_of(table.rows.taken(np.arange(0, len(table.rows), step)))
                  for table, step in zip(self.tables, steps, strict=True)]  # fmt: skip
        times = [one[::step] for one, step in zip(self.rising, steps, strict=True)]
        return _Boards(tables, times, self.quantity)

    def trees(
        self, of: Sequence[int], against: Against, count: int = POOLED_TREES
    ) -> tuple[Any, list[int]]:
        """A booster of some of the boards, and the columns it takes. Times by the size of relative
        errors as well: what another board's framework does is off by factors."""
        x = np.concatenate([self.tables[n].vectors for n in of])
        y = np.concatenate([
            _idling_alike(self.tables[n]) if self.quantity == "power"
            else np.log(self.rising[n]) - self.tables[n].offset(against) for n in of
        ])  # fmt: skip
        used = [at for at in inputs_of(x) if FEATURE_NAMES[at] not in BOARD_FEATURES]
        return fit(x[:, used], y, "power", count), used

    def left_out(
        self, number: int, of: Sequence[int], against: Against, count: int = POOLED_TREES
    ) -> Floats:
        """Seconds or watts of the rows of one board by trees of others."""
        table = self.tables[number]
        booster, used = self.trees(of, against, count)
        return table.told(self.quantity, predicted(booster, table.vectors[:, used]), against)

    def against(self, of: Sequence[int]) -> Against:
        """What times are set against: the one of ``CACHED_SHARES`` that errs least on each of some
        boards left out of them, and what limits leave to products on them."""
        if self.quantity == "power":
            return PLAIN

        def error(share: float) -> float:
            found = []
            for number in of:
                rest = [n for n in of if n != number]
                told = self.left_out(
                    number, rest, Against(share, self.held_back(rest)), CHOICE_TREES
                )
                found.append(percent(told, self.tables[number].rows.seconds).mean())
            return float(np.mean(found))

        return Against(min(CACHED_SHARES, key=error), self.held_back(of))

    def held_back(self, of: Sequence[int]) -> tuple[float, float] | None:
        """Watts of an SM at 1 GHz and joules of 10^12 FLOPs that leave large products of 16 bits on
        some boards as much of their peak as they reach, of what the best one reaches; ``None`` for
        other operators, which were no better by it on boards left out. Measured watts would tell
        them of two boards alone, at a clock that nobody recorded."""
        if self.tables[0].rows.operator != "gemm":
            return None
        reached = list[float]()
        for table in [self.tables[n] for n in of]:
            (compute, memory), seconds = table.roofs, table.rows.seconds
            large = (compute > 3 * memory) & (seconds >= LONG_SECONDS)
            large &= table.rows.call["math_bits"] == 16
            reached.append(float(np.quantile((compute / seconds)[large], REACHED)))
        clocks = np.array(reached) / max(reached)
        drawn = np.array([(1.0 - IDLE_SHARE) * self.tables[n].board.tdp_watts for n in of])
        drawn /= [clock * VOLTAGE.at(clock) ** 2 for clock in clocks]
        boards = [self.tables[n].board for n in of]
        design = np.array([(board.sm_gigahertz, board.tensor[16] / 1e12) for board in boards])
        sm_watts, joules = nnls(design / drawn[:, None], np.ones(len(of)))[0]
        return round(float(sm_watts), 4), round(float(joules), 4)


REACHED = 0.9
"""Quantile of the share of its peak that a board reaches in products, which stands for it: others
are too small to fill it."""

CACHED_SHARES = (0.0, 0.5, 1.0)
CHOICE_ROWS, CHOICE_TREES = 600, 40
"""Rows of a board and trees by which the share is chosen."""


def pooled_fit(tables: Sequence[Table]) -> Fit:
    """Trees of one operator for any board, scored on each board left out in turn; what times are
    set against is chosen without the board, too."""
    boosters: dict[str, tuple[Any, int]] = {}
    operator = tables[0].rows.operator

    def part(quantity: Quantity) -> Fitted | None:
        boards = _Boards.drawn(tables, quantity)
        choice = boards.thinned()
        every = range(len(boards.tables))
        if len(every) < 2:
            return None
        scores, residuals = [], []
        for number, table in enumerate(boards.tables):
            of = [n for n in every if n != number]
            told = boards.left_out(number, of, choice.against(of))
            score = scores_of(table, quantity, "shape_group", np.arange(len(told)), told)
            scores.append(score.model_copy(update={"protocol": "board", "folds": 1}))
            residuals.append(np.log(table.measured(quantity) / told))
        against = choice.against(every)
        booster, used = boards.trees(every, against)
        booster = slim(booster)
        name = f"{operator}_{quantity}"
        boosters[name] = booster, len(used)
        low, high, held = _board_widths(residuals)
        return Fitted(
            file=name,
            inputs=tuple(FEATURE_NAMES[at] for at in used),
            trees=booster.num_boosted_rounds(),
            rows=sum(len(table.rows) for table in boards.tables),
            groups=len(scores),
            low=round(low, 4),
            high=round(high, 4),
            coverage=round(held, 3),
            cached_share=against.cached_share,
            held_back=against.held_back,
            scores=tuple(scores),
        )

    time = part("time")
    if time is None:
        raise ValueError(f"{operator} was measured on one board alone")
    frameworks = {int(at) for table in tables for at in np.unique(table.rows.call["framework"])}
    facts = OperatorFacts(
        frameworks=tuple(FRAMEWORKS[at] for at in sorted(frameworks)),
        formats=tuple(sorted({one for table in tables for one in table.rows.formats})),
        knots={
            name: tuple(map(float, np.unique(np.concatenate([t.rows.call[name] for t in tables]))))
            for name in AXES[operator]
        },
        longest_seconds=max(float(table.rows.seconds.max()) for table in tables),
        time=time,
        power=part("power"),
        sustained=_mean_sustained([one for t in tables if (one := sustained_of(t)) is not None]),
    )
    return Fit(facts, boosters)


def _idling_alike(table: Table) -> Floats:
    """Logarithms of the share of the limit that a board would draw whose idle watts are
    ``IDLE_SHARE`` of it and whose share above idle is the same."""
    rows = table.rows
    idle = float(np.nanpercentile(rows.watts, 0.5)) / rows.limit_watts
    share = np.clip((rows.watts / rows.limit_watts - idle) / (1.0 - idle), 0.0, 1.0)
    return np.asarray(np.log(IDLE_SHARE + (1.0 - IDLE_SHARE) * share))


def _mean_sustained(found: Sequence[Sustained]) -> Sustained | None:
    """The mean of boards, in the units of one with a limit of ``POOLED_LIMIT_WATTS``."""
    if not found:
        return None
    names = ("busy", "compute", "memory")
    means = {name: round(float(np.mean([getattr(s, name) for s in found])), 4) for name in names}
    return Sustained(idle_watts=IDLE_SHARE * POOLED_LIMIT_WATTS, **means)


POOLED_LIMIT_WATTS = 700.0


def _board_widths(residuals: Sequence[Floats]) -> tuple[float, float, float]:
    """Ends that hold the level on every board left out, and what they hold on the worst."""
    tail = (1.0 - LEVEL) / 2
    ends = np.array([np.quantile(one, [tail, 1.0 - tail]) for one in residuals])
    low, high = min(float(ends[:, 0].min()), 0.0), max(float(ends[:, 1].max()), 0.0)
    return low, high, float(min(np.mean((r >= low) & (r <= high)) for r in residuals))
