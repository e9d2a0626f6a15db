"""Models of library operators: fitted, and scored on what they did not learn from.

Prints, for each board and operator, the errors of time and power on shape groups left out (products
by n x k, attention by heads, experts by their geometry), on rows left out by chance and, for the
pooled model, on each board left out, beside the median and the roofline. ``--fit FOLDER`` fits all
models anew from the files of ``../shared/data/operators`` into ``--out``. ``--left-out FOLDER``
fits small models to a sample of those files instead, without one operator or one framework each,
and scores them on what was left out; it takes some minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from studies import parser_of
from studies.fitting.operators import (
    BOARDS,
    FILES,
    FRAMEWORKS,
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
from wattcast.features.operators import CALL_FEATURES, FEATURE_NAMES
from wattcast.models.operators import POOLED, OperatorCard, OperatorScores, operator_store
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
    parser.add_argument("--left-out", type=Path, metavar="FOLDER", help="operators and frameworks")
    asked = parser.parse_args(arguments)
    if asked.left_out is not None:
        rows = left_out(asked.left_out, asked.board or ("h200-sxm5", "b200"))
        for row in chain((LEFT_OUT,), rows):
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
            for line in lines(card):
                print("| " + " | ".join(line) + " |")
    return 0


LEFT_OUT = ("board", "left out", "quantity", "learnt from", "scored", "mean %", "median row %",
            "roofline %")  # fmt: skip
SAMPLE_ROWS = 1_000
"""Rows of an operator, board and framework, drawn by chance."""
SAMPLE_TREES = 80


def left_out(folder: Path, boards: Sequence[str]) -> Iterator[Line]:
    """Errors on operators that no row was learnt of, and on the kernels of another framework."""
    for board in boards:
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
