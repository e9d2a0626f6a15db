"""Models of library operators: fitted, and scored on what they did not learn from.

Prints, for each board and operator, the errors of time and power on shape groups left out (products
by n x k, attention by heads, experts by their geometry), on rows left out by chance and, for the
pooled model, on each board left out, beside the median and the roofline. ``--fit FOLDER`` fits all
models anew from the files of ``../shared/data/operators`` into ``--out``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from studies.fitting.operators import (
    BOARDS,
    FILES,
    Table,
    fit_board,
    pooled_fit,
    read_rows,
    source_of,
    table_of,
    write_model,
)
from wattcast.models.operators import POOLED, OperatorCard, OperatorScores, operator_store
from wattcast.models.store import PACKAGED_ARTIFACTS

Line = tuple[str, ...]
HEADINGS = ("board", "operator", "quantity", "left out", "rows", "mean %", "median %",
            "0.1 ms on %", "median row %", "roofline %", "held")  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Print the table; fit first if asked."""
    parser = argparse.ArgumentParser(prog="python -m studies operators", description=__doc__)
    parser.add_argument("--fit", type=Path, metavar="FOLDER", help="fit anew from these files")
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="where models lie")
    parser.add_argument("--board", action="append", help="these boards alone (or pooled)")
    asked = parser.parse_args(arguments)
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
