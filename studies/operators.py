"""Models of library operators: fitted, and scored on what they did not learn from.

Prints, for each board and operator, the errors of time and power on shape groups left out (products
by n x k, attention by heads, experts by their geometry), on rows left out by chance and, for the
pooled model, on each board left out, beside the median and the roofline. ``--fit FOLDER`` fits all
models anew from the files of ``../shared/data/operators`` into ``--out``. ``--left-out FOLDER``
fits small models to a sample of those files instead, without one operator or one framework each,
and scores them on what was left out; it takes some minutes. ``--physics CALLS`` asks the models so
many random calls of each board and counts what physics rules out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies import parser_of
from studies.fitting.operators import (
    BOARDS,
    FEW_GROUPS,
    FILES,
    FRAMEWORKS,
    Kept,
    Table,
    fit,
    fit_board,
    inputs_of,
    percent,
    pooled_fit,
    predicted,
    read_rows,
    source_of,
    table_of,
    write_model,
)
from wattcast.features.gpus import load_gpu
from wattcast.features.operators import (
    CALL_FEATURES,
    FEATURE_NAMES,
    SCHEMA_ID,
    Board,
    Floats,
    board_of,
)
from wattcast.models.operators import (
    GROWS,
    POOLED,
    OperatorCard,
    OperatorModel,
    Operators,
    OperatorScores,
    operator_store,
)
from wattcast.models.store import PACKAGED_ARTIFACTS
from wattcast.training.families import SEED

Line = tuple[str, ...]
HEADINGS = ("board", "operator", "quantity", "left out", "rows", "mean %", "median %",
            "0.1 ms on %", "median row %", "roofline %", "held")  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Print the table; fit first if asked."""
    parser = parser_of("operators", __doc__)
    parser.add_argument("--fit", type=Path, metavar="FOLDER", help="fit anew from these files")
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="where models lie")
    parser.add_argument("--board", action="append", help="these boards alone (or pooled)")
    parser.add_argument("--only", action="append", metavar="FILE",
                        help="fit these parts anew (moe_time), the others stay")  # fmt: skip
    parser.add_argument("--physics", type=int, metavar="CALLS", help="random calls of each board")
    parser.add_argument("--left-out", type=Path, metavar="FOLDER", help="operators and frameworks")
    asked = parser.parse_args(arguments)
    rows = None
    if asked.left_out is not None:
        rows = chain((LEFT_OUT,), left_out(asked.left_out, asked.board or ("h200-sxm5", "b200")))
    elif asked.physics:
        rows = chain((PHYSICS,), physics_lines(asked.physics, asked.board or (*BOARDS, POOLED)))
    if rows is not None:
        for row in rows:
            print("| " + " | ".join(row) + " |", flush=True)
        return 0
    if asked.fit is not None:
        for board in asked.board or (*BOARDS, POOLED):
            kept = None
            if asked.only:
                found = operator_store().find(board, "operator", "xgboost", SCHEMA_ID)
                kept = Kept(found, tuple(asked.only))
            if board == POOLED:
                fit_pooled(asked.fit, asked.out, kept)
            else:
                fit_board(asked.fit, board, asked.out, kept=kept)
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    for card in operator_store((asked.out,)).list():
        if not asked.board or card.gpu in asked.board:
            for line in lines(card):
                print("| " + " | ".join(line) + " |")
    return 0


LEFT_OUT = ("board", "left out", "quantity", "learnt from", "scored", "mean %", "median row %",
            "roofline %")  # fmt: skip
SAMPLE_ROWS = 1_000
"""Rows of an operator, board and framework, drawn by chance."""
SAMPLE_TREES = 80


def left_out(folder: Path, boards: Sequence[str]) -> Iterator[Line]:
    """Errors on operators that no row was learnt of, on the kernels of another framework, and of
    the shipped trees of another board of the same compute capability, as if the board had none."""
    for board in boards:
        yield from lent(folder, board)
        sampled = dict[tuple[str, str], Table]()
        for operator in FILES:
            rows = read_rows(folder, operator, board)
            if rows is None:
                continue
            for at, framework in enumerate(FRAMEWORKS):
                found = np.flatnonzero(rows.call["framework"] == at)
                if len(found) >= SAMPLE_ROWS // 4:
                    kept = np.random.default_rng(SEED).permutation(found)[:SAMPLE_ROWS]
                    sampled[operator, framework] = table_of(rows.taken(np.sort(kept)))
        for operator in FILES:
            own = [table for key, table in sampled.items() if key[0] == operator]
            others = [table for key, table in sampled.items() if key[0] != operator]
            if own and others:
                # What tells operators and their own shapes apart carries nothing to another one.
                unknown = {"operator", "framework", *CALL_FEATURES}
                yield from _apart(board, operator, others, own, unknown)
            if len(own) > 1:
                for table in own:
                    name = FRAMEWORKS[int(table.rows.call["framework"][0])]
                    rest = [each for each in own if each is not table]
                    yield from _apart(board, f"{operator} of {name}", rest, [table], {"framework"})


def lent(folder: Path, board: str) -> Iterator[Line]:
    """Errors of what answers for a board of a measured compute capability that nobody measured."""
    models = Operators()
    for operator in FILES:
        rows, model = read_rows(folder, operator, board), models.near(load_gpu(board), operator)
        if rows is None or model is None or model.card.operators[operator].time.groups < FEW_GROUPS:
            continue  # trees of few groups have learnt from rows of all boards
        at = np.random.default_rng(SEED).permutation(len(rows))[: 2 * SAMPLE_ROWS]
        table = table_of(rows.taken(np.sort(at)))
        told = model.predict(operator, table.rows.call, table.board).seconds
        errors = [
            percent(each, table.rows.seconds).mean()
            for each in (told, float(np.median(table.rows.seconds)), table.roofline)
        ]
        yield (board, f"{operator}, by {model.card.gpu}", "time", "",
               f"{len(told):,}", *(f"{error:.0f}" for error in errors))  # fmt: skip


def _apart(
    board: str, name: str, learnt: Sequence[Table], asked: Sequence[Table], unknown: set[str]
) -> Iterator[Line]:
    for quantity in ("time", "power"):
        seen, new = ([(t, np.flatnonzero(np.isfinite(t.measured(quantity)))) for t in tables]
                     for tables in (learnt, asked))  # fmt: skip
        if not (sum(len(at) for _, at in seen) and sum(len(at) for _, at in new)):
            continue
        vectors = np.concatenate([table.vectors[at] for table, at in seen])
        target = np.concatenate([table.target_of(quantity, at) for table, at in seen])
        used = [at for at in inputs_of(vectors) if FEATURE_NAMES[at] not in unknown]
        booster = fit(vectors[:, used], target, quantity, SAMPLE_TREES)
        measured = np.concatenate([t.measured(quantity)[at] for t, at in new])
        told = np.concatenate([
            t.told(quantity, predicted(booster, t.vectors[:, used]))[at] for t, at in new
        ])  # fmt: skip
        middle = np.median(np.concatenate([t.measured(quantity)[at] for t, at in seen]))
        roofline = np.concatenate([t.roofline[at] for t, at in new])
        errors = [percent(each, measured).mean() for each in (told, middle, roofline)]
        texts = [f"{error:.0f}" for error in errors]
        yield (board, name, quantity, f"{len(target):,}", f"{len(measured):,}", *texts[:2],
               texts[2] if quantity == "time" else "")  # fmt: skip


def fit_pooled(folder: Path, out: Path, kept: Kept | None = None) -> OperatorCard:
    """The artifact of boards nobody measured."""
    firsts, fits, sources = list[Table](), [], []
    for operator, stem in FILES.items():
        found = [read_rows(folder, operator, board) for board in BOARDS]
        tables = [table_of(rows) for rows in found if rows is not None]
        fits.append(pooled_fit(tables, kept))
        firsts.append(tables[0])
        sources += [source_of(folder / f"{stem}_{table.rows.gpu}.parquet") for table in tables]
    return write_model(POOLED, firsts, fits, sources, out, kept=kept)


def lines(card: OperatorCard) -> Iterator[Line]:
    """The scores of a card."""
    for operator, facts in card.operators.items():
        for quantity, fitted in (("time", facts.time), ("power", facts.power)):
            if fitted is None:
                continue
            for number, scores in enumerate(fitted.scores):
                named = _left_out(scores, number)
                held = "" if scores.protocol == "random" else f"{fitted.coverage:.2f}"
                yield (card.gpu, operator, quantity, named, f"{scores.rows:,}", *_errors(scores),
                       held)  # fmt: skip


def _left_out(scores: OperatorScores, number: int) -> str:
    if scores.protocol == "board":
        return f"board {number + 1}"
    return {"random": "rows by chance", "shape_group": "shape groups"}[scores.protocol]


def _errors(scores: OperatorScores) -> Line:
    found = (scores.mean_percent, scores.median_percent, scores.long_mean_percent,
             scores.constant_mean_percent, scores.roofline_mean_percent)  # fmt: skip
    return tuple("" if one is None else f"{one:.1f}" for one in found)


# --- what physics allows -----------------------------------------------------------------------

PLAIN = {"math_bits": 16.0, "weight_bits": 16.0, "block_scaled": 0.0, "framework": 0.0}
CHUNK = 2_000
PHYSICS = ("board", "operator", "calls", "above a peak", "over 2 % less time with more tokens",
           "over 10 % between neighbours", "largest step")  # fmt: skip


class Physics(NamedTuple):
    """Of random calls: how many are above a peak rate, bandwidth or the power limit, and the shares
    that take over 2 % less time with 1 % more or twice the tokens, and over 10 % more or less with
    1 % more (both inside the sweep); ``step`` is the largest such ratio."""

    above: int
    falls: float
    jumps: float
    step: float


def physics(model: OperatorModel, operator: str, board: Board, size: int, seed: int) -> Physics:
    """What physics rules out, counted on random calls."""
    call, axis = random_calls(operator, seed, size), GROWS[operator]
    found = model.predict(operator, call, board)
    above = found.quantities.flops / found.seconds > board.tensor[16] * 1.0001
    beyond = np.maximum(found.quantities.bytes - board.l2_bytes, 0.0)
    above |= beyond / found.seconds > board.bandwidth * 1.0001
    above |= found.watts > model.limit_watts(board) * 1.0001
    ratios, near = [], np.empty(0)
    for factor in (1.01, 2.0):
        step = np.maximum(call[axis] + 1, np.floor(call[axis] * factor))
        more = model.predict(operator, {**call, axis: step}, board)
        inside = found.inside & more.inside
        ratios.append((more.seconds / found.seconds)[inside])
        if factor < 2:
            near = ratios[-1][(step / call[axis])[inside] < 1.02]
    every = np.concatenate(ratios)
    apart = np.abs(np.log(near))
    return Physics(int(above.sum()), float((every < 0.98).mean()) if len(every) else 0.0,
                   float((np.abs(near - 1.0) > 0.1).mean()) if len(near) else 0.0,
                   float(np.exp(apart.max())) if len(near) else 1.0)  # fmt: skip


def physics_lines(count: int, boards: Sequence[str]) -> Iterator[Line]:
    """``count`` random calls of each board, shared among its operators, in chunks."""
    models = Operators()
    for gpu in boards:
        model, board = models.of(gpu), board_of(load_gpu("a40" if gpu == POOLED else gpu))
        if model is None:
            continue
        each = max(count // len(model.card.operators) // CHUNK, 1)
        for operator in model.card.operators:
            found = [physics(model, operator, board, CHUNK, seed) for seed in range(each)]
            yield (gpu, operator, f"{each * CHUNK:,}", f"{sum(one.above for one in found)}",
                   f"{np.mean([one.falls for one in found]):.2%}",
                   f"{np.mean([one.jumps for one in found]):.2%}",
                   f"x{max(one.step for one in found):.2f}")  # fmt: skip


def random_calls(operator: str, seed: int, size: int) -> dict[str, Floats]:
    """Random bfloat16 calls ``[size]``, spread evenly over the logarithms of their extents."""
    draw = np.random.default_rng(seed)

    def upto(most: int, least: int = 1) -> Floats:
        return np.floor(np.exp(draw.uniform(np.log(least), np.log(most + 1), size)))

    def one_of(*values: float) -> Floats:
        return draw.choice(np.array(values, dtype=float), size)

    keys = one_of(1, 2, 4, 8)
    cached = np.where(draw.random(size) < 0.5, 0, upto(16384))
    attention = {
        "batch": upto(128), "heads": keys * one_of(1, 2, 4, 8), "kv_heads": keys,
        "head_size": one_of(64, 128), "window": one_of(0), "causal": one_of(1),
    }  # fmt: skip
    linear = {
        "batch": upto(64), "new": upto(16384), "heads": one_of(16, 32, 64), "stage": one_of(0, 1),
        "key_heads": one_of(8, 16), "key_size": one_of(128), "head_size": one_of(64, 128),
    }  # fmt: skip
    shapes = {
        "gemm": {"rows": upto(32768), "columns": upto(65536, 32), "depth": upto(65536, 32),
                 "batch": one_of(1)},
        "prefill": {**attention, "new": upto(16384), "cached": cached},
        "decode": {**attention, "new": one_of(1), "cached": upto(65536)},
        "moe": {"tokens": upto(16384), "hidden": one_of(2048, 4096, 7168), "gated": one_of(1),
                "inner": one_of(768, 1536, 2048, 14336), "topk": one_of(2, 4, 8),
                "experts": one_of(8, 64, 128), "tensor_parallel": one_of(1),
                "expert_parallel": one_of(1, 2, 4), "distribution": one_of(0, 1.01, 1.2)},
        "quantize": {"rows": upto(32768), "columns": upto(65536, 32)},
        "gdn": linear, "mamba2": linear,
    }  # fmt: skip
    return {name: np.full(size, value) for name, value in PLAIN.items()} | shapes[operator]
