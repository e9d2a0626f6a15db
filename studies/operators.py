"""Models of library operators: fitted, and scored on what they did not learn from.

Prints, for each board and operator, the errors of time and power on shape groups left out (products
by n x k, attention by heads, experts by their geometry), on rows left out by chance and, for the
pooled model, on each board left out, beside the median and the roofline. ``--fit FOLDER`` fits all
models anew from the files of ``../shared/data/operators`` into ``--out``. ``--left-out FOLDER``
fits small models to a sample of those files instead, without one operator or one framework each
(B200 alone has two), and scores them on what was left out; it takes some minutes. ``--catboost
FOLDER`` scores CatBoost on the same shape groups left out and writes it into the cards.
``--physics REQUESTS`` asks the service so many random requests, and each again with more, and
counts what physics rules out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from studies import parser_of
from studies.fitting.operators import (
    BOARDS,
    FEW_GROUPS,
    FILES,
    FRAMEWORKS,
    Table,
    fit,
    fit_board,
    inputs_of,
    out_of_fold,
    percent,
    pooled_fit,
    predicted,
    read_rows,
    scores_of,
    source_of,
    table_of,
    write_model,
)
from studies.fitting.operators import lent as borrowed
from wattcast.app.settings import Settings
from wattcast.features.gpus import load_gpu
from wattcast.features.operators import CALL_FEATURES, DISTRIBUTIONS, FEATURE_NAMES, TILE_SHAPES
from wattcast.models.cards import CARD_NAME
from wattcast.models.operators import (
    POOLED,
    Fitted,
    OperatorCard,
    Operators,
    OperatorScores,
    Quantity,
    operator_store,
)
from wattcast.models.store import PACKAGED_ARTIFACTS
from wattcast.predictor import Predictor
from wattcast.predictor.messages.operators import OperatorOptions
from wattcast.predictor.messages.predict import PredictAnswer
from wattcast.predictor.operators import predicted as answered
from wattcast.predictor.parts.operators import OPERATOR, Asked, model_of
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
    parser.add_argument("--physics", type=int, metavar="REQUESTS", help="random requests of all")
    parser.add_argument("--left-out", type=Path, metavar="FOLDER", help="operators and frameworks")
    parser.add_argument("--catboost", type=Path, metavar="FOLDER",
                        help="score CatBoost too, into the cards")  # fmt: skip
    asked = parser.parse_args(arguments)
    rows = None
    if asked.left_out is not None:
        rows = chain((LEFT_OUT,), left_out(asked.left_out, asked.board or BOARDS))
    elif asked.physics:
        rows = chain((PHYSICS,), physics_lines(asked.physics, asked.board or (*BOARDS, *LENT)))
    if rows is not None:
        for row in rows:
            print("| " + " | ".join(row) + " |", flush=True)
        return 0
    if asked.fit is not None:
        for board in asked.board or (*BOARDS, POOLED):
            if board == POOLED:
                fit_pooled(asked.fit, asked.out)
            else:
                fit_board(asked.fit, board, asked.out)
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    for card in operator_store((asked.out,)).list():
        if not asked.board or card.gpu in asked.board:
            if asked.catboost is not None:
                card = rivalled(asked.catboost, asked.out, card)
            for line in lines(card):
                print("| " + " | ".join(line) + " |")
    return 0


QUANTITIES: tuple[Quantity, ...] = ("time", "power")
OPERATORS = Operators()
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
    for operator in FILES:
        rows, model = read_rows(folder, operator, board), OPERATORS.near(load_gpu(board), operator)
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
    for quantity in QUANTITIES:
        seen, new = ([(t, np.flatnonzero(np.isfinite(t.measured(quantity)))) for t in tables]
                     for tables in (learnt, asked))  # fmt: skip
        if not (sum(len(at) for _, at in seen) and sum(len(at) for _, at in new)):
            continue
        vectors = np.concatenate([table.vectors[at] for table, at in seen])
        target = np.concatenate([table.target(quantity)[at] for table, at in seen])
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


def fit_pooled(folder: Path, out: Path) -> OperatorCard:
    """The artifact of boards nobody measured."""
    firsts, fits, sources = list[Table](), [], []
    for operator, stem in FILES.items():
        found = [read_rows(folder, operator, board) for board in BOARDS]
        tables = [table_of(rows) for rows in found if rows is not None]
        fits.append(pooled_fit(tables))
        firsts.append(tables[0])
        sources += [source_of(folder / f"{stem}_{table.rows.gpu}.parquet") for table in tables]
    return write_model(POOLED, firsts, fits, sources, out)


def rivalled(folder: Path, out: Path, card: OperatorCard) -> OperatorCard:
    """The card with the scores of CatBoost on the same shape groups left out beside those of what
    serves, and written so; a pooled one as it is."""
    every = dict(card.operators)
    for operator, facts in card.operators.items() if card.gpu != POOLED else ():
        rows = read_rows(folder, operator, card.gpu)
        if rows is None:
            continue
        table, more = table_of(rows), dict[str, Fitted]()
        for quantity in QUANTITIES:
            if (fitted := getattr(facts, quantity)) is not None:
                told = out_of_fold(
                    table, quantity, "shape_group", borrowed(table, folder), "catboost"
                )
                rivals = {"catboost": scores_of(table, quantity, "shape_group", *told)}
                more[quantity] = fitted.model_copy(update={"rivals": rivals})
        every[operator] = facts.model_copy(update=more)
    card = card.model_copy(update={"operators": every})
    (out / card.folder / CARD_NAME).write_text(card.to_json(), "utf-8")
    return card


def lines(card: OperatorCard) -> Iterator[Line]:
    """The scores of a card."""
    for operator, facts in card.operators.items():
        for quantity, fitted in (("time", facts.time), ("power", facts.power)):
            if fitted is None:
                continue
            boards = [one for one in BOARDS if _measured(one, operator, quantity)]
            named = [(_left_out(scores, number, boards), scores)
                     for number, scores in enumerate(fitted.scores)]  # fmt: skip
            named += [(f"shape groups, {name}", one) for name, one in fitted.rivals.items()]
            for left, scores in named:
                served = scores.protocol != "random" and scores in fitted.scores
                held = f"{fitted.coverage:.2f}" if served else ""
                yield (card.gpu, operator, quantity, left, f"{scores.rows:,}", *_errors(scores),
                       held)  # fmt: skip


@cache
def _measured(board: str, operator: str, quantity: str) -> bool:
    model = OPERATORS.of(board)
    facts = model and model.card.operators.get(operator)
    return bool(facts and getattr(facts, quantity))


def _left_out(scores: OperatorScores, number: int, boards: Sequence[str]) -> str:
    if scores.protocol == "board":
        return f"board {boards[number] if number < len(boards) else number + 1}"
    return {"random": "rows by chance", "shape_group": "shape groups"}[scores.protocol]


def _errors(scores: OperatorScores) -> Line:
    found = (scores.mean_percent, scores.median_percent, scores.long_mean_percent,
             scores.constant_mean_percent, scores.roofline_mean_percent)  # fmt: skip
    return tuple("" if one is None else f"{one:.1f}" for one in found)


# --- what physics allows -----------------------------------------------------------------------

EXTENTS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "gemm": {"m": (1, 65_536), "n": (16, 131_072), "k": (16, 131_072)},
    "prefill": {"new_tokens": (1, 32_768), "cached_tokens": (0, 32_768), "batch": (1, 256)},
    "decode": {"cached_tokens": (0, 131_072), "batch": (1, 1024)},
    "moe": {"tokens": (1, 65_536), "hidden": (1024, 8192), "inner": (512, 16_384)},
    "quantize": {"m": (1, 65_536), "k": (32, 32_768)},
    "gdn": {"new_tokens": (1, 32_768), "batch": (1, 256)},
    "mamba2": {"new_tokens": (1, 32_768), "batch": (1, 256)},
}
"""Extents asked, twice as far as the sweeps: those of tokens first."""
TOKENS = ("m", "tokens", "new_tokens", "cached_tokens", "batch")
LINEAR: Mapping[str, list[Any]] = {
    "name": ["linear_attention"], "stage": ["convolution", "recurrence"],
    "key_heads": [1, 8], "head_size": [64, 128], "key_size": [64, 128],
}  # fmt: skip
ATTENTION: Mapping[str, list[Any]] = {
    "name": ["attention"], "kv_heads": [1, 2, 4, 8], "heads": [8, 16, 32, 64],
    "head_size": [64, 128, 256], "window": [0, 0, 0, 128, 4096],
}  # fmt: skip
CHOICES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "gemm": {"name": ["gemm"]}, "quantize": {"name": ["quantize"]},
    "prefill": {**ATTENTION, "phase": ["prefill"]},
    "decode": {**ATTENTION, "phase": ["decode"]},
    "moe": {"name": ["moe"], "topk": [1, 2, 4, 6, 8], "experts": [8, 16, 64, 128, 256],
            "expert_parallel": [1, 2, 4, 8], "gated": [True, True, False],
            "distribution": list(DISTRIBUTIONS)},
    "gdn": {**LINEAR, "kind": ["gdn"], "heads": [16, 32, 48, 64]},
    "mamba2": {**LINEAR, "kind": ["mamba2"], "heads": [16, 64, 128, 256]},
}  # fmt: skip
LENT = ("gb200", "a40")
"""Boards without rows: answered by B200's models, and by the pooled ones."""
PHYSICS = ("board", "operator", "requests", "answered", "above a peak",
           "over 2 % less time with more tokens", "over 10 % between neighbours",
           "of these beyond waves", "largest step")  # fmt: skip


class Physics(NamedTuple):
    """Of random requests: how many are answered and above a peak rate, bandwidth or the limit; of
    those with 1 % more or twice of one extent that counts tokens, how many take over 2 % less
    time; of those with 1 % more of any extent (and no other alignment), how many take over 10 %
    more or less (``jumps``), and how many of these more than whole waves of some tile shape grow by
    (``beyond``): a product that begins another wave really takes longer. ``step`` is the
    largest ratio."""

    answered: int
    above: int
    raised: int
    falls: int
    near: int
    jumps: int
    beyond: int
    step: float


def physics(predictor: Predictor, gpu: str, kind: str, size: int, seed: int) -> Physics:
    """What physics rules out, counted on random requests of any measured format and framework."""
    draw, profile = np.random.default_rng(seed), predictor.gpus.load(gpu)
    facts = model_of(predictor, kind, profile).card.operators[kind]
    format_ = {"prefill": "kv_dtype", "decode": "kv_dtype", "gemm": "dtype", "moe": "dtype"}
    choices = {**CHOICES[kind], **({format_[kind]: facts.formats} if kind in format_ else {})}
    requests = [
        {name: int(np.exp(draw.uniform(np.log(low + 1), np.log(high + 2)))) - 1
         for name, (low, high) in EXTENTS[kind].items()}
        | {name: values[int(draw.integers(len(values)))] for name, values in choices.items()}
        for _ in range(size)
    ]  # fmt: skip
    whose = [facts.frameworks[at] for at in draw.integers(len(facts.frameworks), size=size)]

    def answers(asked: Sequence[Mapping[str, Any]]) -> list[PredictAnswer | None]:
        each = [Asked(OPERATOR.validate_python(one), profile, OperatorOptions(framework=framework))
                for one, framework in zip(asked, whose, strict=True)]  # fmt: skip
        told = answered(predictor, each)
        return [one if isinstance(one, PredictAnswer) else None for one in told]

    first = answers(requests)
    above = [_above(one, profile.tdp_watts) for one in first if one is not None]
    raised, near = [], []
    for axis in EXTENTS[kind]:
        for factor in (1.01, 2.0) if axis in TOKENS else (1.01,):
            more = [{**one, axis: max(one[axis] + 1, int(one[axis] * factor))} for one in requests]
            for old, new, before, after in zip(requests, more, first, answers(more), strict=True):
                if before is None or after is None or before.time is None or after.time is None:
                    continue
                ratio = after.time.seconds / before.time.seconds
                if axis in TOKENS:
                    raised.append(ratio)
                alike = _alignment(before) == _alignment(after)
                if new[axis] <= 1.02 * old[axis] and alike:
                    near.append((max(ratio, 1 / ratio), ratio, _waves(before, after)))
    jumps = [(ratio, waves) for size_, ratio, waves in near if size_ > 1.1]
    return Physics(
        len(above), sum(above), len(raised), sum(one < 0.98 for one in raised), len(near),
        len(jumps), sum(ratio < 1 or ratio > 1.1 * waves for ratio, waves in jumps),
        max((one[0] for one in near), default=1.0),
    )  # fmt: skip


def _above(answer: PredictAnswer, limit: float) -> bool:
    told, power = answer.operator, answer.power
    assert told is not None
    return (
        told.flops_per_second > 1.0001 * told.peak_flops_per_second
        or told.bytes_per_second > 1.0001 * told.peak_bytes_per_second
        or (power is not None and power.watts > 1.0001 * limit)
    )


def _alignment(answer: PredictAnswer) -> float | None:
    """Of an expert's inner size: without it loads are narrower, a real step."""
    return answer.features["inner_alignment"]


def _waves(before: PredictAnswer, after: PredictAnswer) -> float:
    """The largest ratio of whole waves, of any tile shape (features are logarithms to base 2)."""
    names = [f"waves_{rows}x{columns}" for rows, columns in TILE_SHAPES]
    counts = [[np.ceil(np.exp2(float(one.features[name] or 0.0)) - 1e-6) for name in names]
              for one in (before, after)]  # fmt: skip
    return max(float(new / max(old, 1.0)) for old, new in zip(*counts, strict=True))


def physics_lines(count: int, boards: Sequence[str]) -> Iterator[Line]:
    """``count`` random requests to the service, shared among boards and operators."""
    with TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        size = max(count // len(boards) // len(EXTENTS), 1)
        total = Physics(0, 0, 0, 0, 0, 0, 0, 1.0)
        for gpu, kind in product(boards, EXTENTS):
            found = physics(predictor, gpu, kind, size, SEED)
            *counts, _ = (sum(pair) for pair in zip(total, found, strict=True))
            total = Physics._make([*counts, max(total.step, found.step)])
            yield gpu, kind, f"{size:,}", *_counted(found)
        yield "all", "all", f"{size * len(boards) * len(EXTENTS):,}", *_counted(total)


def _counted(found: Physics) -> Line:
    return (f"{found.answered:,}", f"{found.above:,}", f"{found.falls:,} of {found.raised:,}",
            f"{found.jumps:,} of {found.near:,}", f"{found.beyond:,}",
            f"x{found.step:.2f}")  # fmt: skip
