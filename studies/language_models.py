"""Sums of operators, as forecasts of language models are, beside measured rows.

    python -m studies language-models CONFIGS.toml [--errors]

First: passes of public models on the boards with watts. Of every operator whose very call was
measured, the row's seconds and joules are summed, and what is served for it (which learned from
these rows). A reading after a pause is low by up to half: rows stand also beside the median of the
five nearest along their tokens.

``--errors`` (minutes): how far errors add up in a sum (``SHARED`` in ``predictor/language_model``).
Models without a shape group, or of the other board alone, on ``ROWS`` rows of each operator; random
sums of 3 to 50 shapes; the least share of their squared half widths, common to all, with which 90 %
of the sums are held on both boards.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from studies import parser_of
from studies.fitting.operators import (
    Rows,
    fit,
    inputs_of,
    out_of_fold,
    predicted,
    read_rows,
    table_of,
    widths,
)
from studies.traces.trace_totals import MIXES, Pool, held, least_share, mixes
from wattcast.app.settings import Settings
from wattcast.features.operators import Columns, Floats
from wattcast.models.operators import GROWS, Quantity
from wattcast.predictor import Predictor
from wattcast.predictor.decoder import Part, decoder_of
from wattcast.predictor.language_model import checked_operator, operator_calls
from wattcast.predictor.messages.operators import OperatorOptions
from wattcast.predictor.parts.operators import Asked, columns, kind_of, model_of
from wattcast.training.data.datasets import data_root

BOARDS = ("h200-sxm5", "b200")
KINDS = ("gemm", "prefill", "decode", "moe")
PASSES = ((1, 1024, 0), (8, 1024, 0), (1, 8192, 0), (1, 1, 1024), (8, 1, 1024), (64, 1, 4096))
"""Batch, new and cached tokens."""

SPLITS = (1, 2, 4, 8)
"""GPUs that share a pass; the answer is for one of them."""

KNOWN = 0.5
"""Least share of a sum's energy that is of measured calls."""

ROWS = 4_000
OPTIONS = OperatorOptions(framework=None, power_limit_watts=None)


def rows_of(kind: str, board: str) -> Rows:
    """Rows with watts."""
    found = read_rows(data_root() / "operators", kind, board)
    assert found is not None
    return found.taken(np.flatnonzero(np.isfinite(found.watts)))


class Measured:
    """Seconds, watts, and watts of the nearest five rows, of each measured call."""

    def __init__(self, rows: Rows) -> None:
        axis = GROWS[rows.operator]
        self.names = [*sorted({*rows.call} - {axis}), axis]
        keys = np.stack([rows.call[name] for name in self.names], axis=1)
        keys, order = keys[(order := np.lexsort(keys.T[::-1]))], order
        watts, self.known = rows.watts[order], dict[tuple[float, ...], Floats]()
        for n, key in enumerate(keys):
            near = slice(max(n - 2, 0), n + 3)
            same = (keys[near, :-1] == key[:-1]).all(axis=1)
            told = (rows.seconds[order[n]], watts[n], np.median(watts[near][same]))
            self.known[tuple(key.tolist())] = np.array(told)

    def find(self, call: Columns) -> Floats | None:
        """The row of this very call."""
        return self.known.get(tuple(float(call[name][0]) for name in self.names))


def errors(
    predictor: Predictor, board: str, parts: Sequence[Part], tables: dict[str, Measured]
) -> Floats | None:
    """Of one pass: of seconds, joules, joules beside smoothed rows, and of rows beside those."""
    gpu, told, row, every = predictor.gpus.load(board), np.zeros(2), np.zeros(3), 0.0
    operators = [checked_operator(part) for part in parts]
    calls = operator_calls(predictor, gpu, operators)
    for part, one, call in zip(parts, operators, calls, strict=True):
        seconds, kind = part.count * call.seconds, kind_of(one)
        every += seconds * call.watts
        asked = columns(kind, model_of(predictor, kind, gpu), [Asked(one, gpu, OPTIONS)])
        if kind in tables and (found := tables[kind].find(asked)) is not None:
            told += seconds * np.array([1.0, call.watts])
            row += part.count * found[0] * np.array([1.0, found[1], found[2]])
    if told[1] < KNOWN * every:
        return None
    return np.abs(np.array([*told, told[1], row[1]]) / row[[0, 1, 2, 2]] - 1)


def sums(board: str, configs: Path) -> Iterator[str]:
    """Median errors over the passes, and how many are within 5 %."""
    predictor, found = Predictor(Settings()), dict[str, list[Floats]]()
    tables = {kind: Measured(rows_of(kind, board)) for kind in (*KINDS, "quantize")}
    for each in tomllib.loads(configs.read_text()).values():
        decoder = decoder_of(each["config"])
        for (batch, new, cached), split in product(PASSES, SPLITS):
            if decoder.heads % split:
                continue
            given: dict[str, Any] = {
                "dtype": "bfloat16",
                "kv_dtype": "bfloat16",
                "tensor_parallel": split,
            }
            parts = decoder.forward(batch, new, cached, **given)
            what = ("prefill" if new > 1 else "decode") + (
                " with experts" if any(part.role == "experts" for part in parts) else ""
            )
            if (one := errors(predictor, board, parts, tables)) is not None:
                found.setdefault(what, []).append(one)
    for what, some in sorted(found.items()):
        each = np.array(some)
        told = zip(np.median(each, axis=0), np.mean(each < 0.05, axis=0), strict=True)
        names = ("time", "energy", "energy beside smoothed rows", "rows beside smoothed ones")
        texts = (f"{n} {e:.1%} ({w:.0%})" for n, (e, w) in zip(names, told, strict=True))
        yield f"{board}, {what}, {len(some)} sums, median error (within 5 %): " + ", ".join(texts)


def pools(quantity: Quantity, left_out: str) -> list[Pool]:
    """Measured over told of all operators on each board; shapes are what errs alike."""
    found: list[list[tuple[Floats, ...]]] = [[] for _ in BOARDS]
    names: list[list[str]] = [[] for _ in BOARDS]
    families: list[list[str]] = [[] for _ in BOARDS]
    for kind in KINDS:
        tables = []
        for board in BOARDS:
            rows, rng = rows_of(kind, board), np.random.default_rng(0)
            few = rng.choice(len(rows), min(ROWS, len(rows)), replace=False)
            tables.append(table_of(rows.taken(np.sort(few))))
        answers = []
        for mine, other in (tables, tables[::-1]):
            at, told = np.arange(len(mine.rows)), np.zeros(0)
            if left_out == "group":
                at, told = out_of_fold(mine, quantity, "shape_group")
            else:
                used = inputs_of(other.vectors)
                trees = fit(other.vectors[:, used], other.target(quantity), quantity)
                told = mine.told(quantity, predicted(trees, mine.vectors[:, used]))
            low, high, _ = widths(mine.rows, at, told, mine.measured(quantity)[at])
            tokens = mine.rows.call[GROWS[kind]][at]
            answers.append(
                (mine.measured(quantity)[at] / told, mine.rows.groups[at], low, high, tokens)
            )
        for number, (ratio, groups, low, high, tokens) in enumerate(answers):
            if left_out == "board":  # as served: ends that hold on every board
                low, high = min(one[2] for one in answers), max(one[3] for one in answers)
            ends = np.full((2, len(ratio)), [[1 - np.exp(low)], [np.exp(high) - 1]])
            found[number].append((ratio, *ends))
            names[number] += [f"{kind} {group}" for group in groups]
            families[number] += [f"{kind} {int(np.log2(1 + one))}" for one in tokens]
    made = []
    for board, each, kernels, kinds in zip(BOARDS, found, names, families, strict=True):
        ratio, below, above = (np.concatenate(column) for column in zip(*each, strict=True))
        alike = np.full(len(ratio), "")
        made.append(Pool("code", board, alike, np.array(kernels), np.array(kinds), ratio,
                         np.ones(len(ratio)), below, above))  # fmt: skip
    return made


def main(arguments: Sequence[str]) -> int:
    """Print errors of sums; with ``--errors`` what of them is shared."""
    parser = parser_of("language-models", __doc__)
    parser.add_argument("configs", type=Path, help="tables with a member config each")
    parser.add_argument("--errors", action="store_true", help="measure what errors share")
    asked = parser.parse_args(arguments)
    for left_out in ("group", "board") if asked.errors else ():
        for quantity in ("power", "time"):
            each = pools(quantity, left_out)
            for alike in (True, False):
                drawn = [mixes(one, MIXES, np.random.default_rng(0), alike) for one in each]
                told = (
                    f"{share:g} holds " + ", ".join(f"{held(some, share):.2f}" for some in drawn)
                    for share in (0.0, 0.1, 0.25, 0.5, 1.0)
                )
                what = "one operator at like tokens" if alike else "all operators"
                print(
                    f"{quantity}, {left_out} left out, sums of {what}: least share "
                    f"{least_share(drawn):g}; " + "; ".join(told),
                    flush=True,
                )
    for board in BOARDS:
        for line in sums(board, asked.configs):
            print(line, flush=True)
    return 0
