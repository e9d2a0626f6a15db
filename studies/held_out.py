"""Predicted against measured on what was left out, for the picture of docs/accuracy.md.

    python -m studies held-out            a table as Markdown
    python -m studies held-out --write    also ``held_out.json``, which ``accuracy`` reads

For the model that answers by default on each measured GPU: power of every row by a model that never
saw it, once with whole kernels left out (``grouped``: what users get) and once with single rows
left out (``random``). One fold assignment; the cards hold ten. Beside it what a median says.
``pooled``: power of each measured GPU by a model that saw no GPU of its kind.

Measurements without a licence stay where they are: of them only quantiles of the ratio predicted
over measured, over all rows of a board, are written. Rows of GeForce GTX Titan X (BSD-3-Clause,
Guerreiro et al.) are written as they are, those at the reference clocks. Needs the data folder, and
WATTCAST_ACTIVITY as ``fit-physical`` does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies import parser_of
from studies.card_tables import table
from studies.data.activity_tables import served_folder
from studies.data.frequency import read_frequency
from studies.end_to_end import CAMPAIGNS, manifest, others_median
from studies.fitting.out_of_fold import evaluate
from studies.fitting.physical.artifacts import POOLED_SETTINGS, leave_gpu_out
from studies.fitting.physical.fit import Fits, cached_choice, leave_program_out, row_folds
from studies.fitting.physical.rows import all_rows
from studies.fitting.trees.pooled import shipped_fit
from wattcast.features.errors import DataError
from wattcast.models.cards import CARD_NAME, ModelCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.predictor.parts.power_models import unseen_error_percent
from wattcast.training.evaluation.scores import FOLDS, Protocol

Floats = NDArray[np.float64]

RESULTS = Path(__file__).with_suffix(".json")
FACTOR = 1.5
"""Predictions within this factor of what was measured, either way, count as near."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the ratio predicted over measured."""
PROTOCOLS: tuple[Protocol, ...] = ("grouped", "random")
FREE = {"gtx-titan-x": "lisboa_gtx_titan_x"}
"""GPUs whose measurements may be passed on, and their files: BSD-3-Clause, to be cited."""


class Part(NamedTuple):
    """Rows of one GPU and protocol, each ``[n]``: measured watts, what a model that did not see
    them predicts, and the median that needs no model. ``kernels`` counts what was left out."""

    measured: Floats
    predicted: Floats
    baseline: Floats
    kernels: int


def ratios_told(ratios: Sequence[float] | Floats) -> dict[str, Any]:
    """Median absolute error in percent, share within ``FACTOR`` and quantiles of ratios predicted
    over measured, ``[n]``."""
    found = np.asarray(ratios, dtype=np.float64)
    near = np.abs(np.log(found)) <= np.log(FACTOR) + 1e-9
    return {
        "median_error_percent": round(float(np.median(np.abs(found - 1))) * 100, 1),
        "near_percent": round(float(near.mean()) * 100, 1),
        "quantiles": [round(float(one), 3) for one in np.quantile(found, QUANTILES)],
    }


def told(part: Part) -> dict[str, Any]:
    """What is written of a part: nothing that tells a single measurement."""
    return {
        "rows": len(part.measured),
        "kernels": part.kernels,
        "mean_error_percent": _mean_error(part),
        **ratios_told(part.predicted / part.measured),
        "baseline": ratios_told(part.baseline / part.measured),
    }


def _mean_error(part: Part) -> float:
    return round(float(np.mean(np.abs(part.predicted / part.measured - 1))) * 100, 1)


def default_card(cards: Sequence[ModelCard], gpu: str) -> ModelCard:
    """The card that answers on a GPU where nothing was promoted."""
    return min((card for card in cards if card.gpu == gpu), key=unseen_error_percent)


def card_hash(card: ModelCard) -> str:
    """Hash of a packaged card: whether results are those of the model that ships."""
    return hashlib.sha256((PACKAGED_ARTIFACTS / card.folder / CARD_NAME).read_bytes()).hexdigest()


def physical_parts(fits: Fits, gpu: str) -> dict[str, Part]:
    """Rows of one GPU by the physical model, its programs or readings left out."""
    choice, rows = cached_choice(fits), fits.tables[gpu]
    scored, left_out = rows.scored, leave_program_out(fits, gpu, choice.settings)
    watts, median = row_folds(fits, gpu, choice.best, 0, FOLDS)
    measured, kernels = rows.watts[scored], len(np.unique(rows.programs[scored]))
    return {
        "grouped": Part(measured, left_out.watts[scored], left_out.median_watts[scored], kernels),
        "random": Part(measured, watts[scored], median[scored], kernels),
    }


def tree_parts(card: ModelCard) -> dict[str, Part]:
    """Rows of one GPU by the trees that ship for it, fitted without them."""
    own, fit = shipped_fit(card.gpu, card.source)
    rows = own.launched[own.served]
    found: dict[str, Part] = {}
    for protocol in PROTOCOLS:
        done = evaluate(rows, fit, protocol, [0])
        tested = ~np.isnan(done.predicted_watts[0])
        found[protocol] = Part(
            rows.watts[tested],
            done.predicted_watts[0][tested],
            done.baseline_watts[0][tested],
            len(np.unique(rows.groups[tested])),
        )
    return found


def free_points(fits: Fits, gpu: str) -> list[list[Any]]:
    """Program, measured and predicted watts at the reference clocks, its program left out."""
    rows = fits.tables[gpu]
    watts = leave_program_out(fits, gpu, cached_choice(fits).settings).watts
    at = rows.scored & (rows.clocks_mhz == np.array(rows.reference)).all(axis=1)
    return [
        [str(rows.programs[row]), round(float(rows.watts[row]), 1), round(float(watts[row]), 1)]
        for row in np.flatnonzero(at)
    ]


def pooled_parts(fits: Fits) -> dict[str, Part]:
    """Rows of every GPU by the weights of the others; the median is of their shares of the limit,
    as on the card."""
    known = list(fits.tables.values())
    predicted = [
        leave_gpu_out(fits, gpu, POOLED_SETTINGS)[one.scored] for gpu, one in fits.tables.items()
    ]
    shares = [one.watts[one.scored] / one.limit_watts for one in known]
    median = [
        np.full(
            len(share),
            np.median(np.concatenate([*shares[:at], *shares[at + 1 :]])) * known[at].limit_watts,
        )
        for at, share in enumerate(shares)
    ]
    measured = np.concatenate([one.watts[one.scored] for one in known])
    part = Part(measured, np.concatenate(predicted), np.concatenate(median), len(known))
    return {"grouped": part}


def time_baselines() -> dict[str, dict[str, Any]]:
    """By board of ``end-to-end``: the median time of the other programs, beside each."""
    names = [entry["name"] for entry in manifest()["program"]]
    found = {}
    for gpu, campaign in CAMPAIGNS.items():
        frame = read_frequency(campaign).frame
        frame = frame[frame["is_reference"] & frame["benchmark"].isin(names)]
        seconds = frame["time_seconds"].to_numpy(dtype=float)
        found[gpu] = ratios_told(others_median(seconds) / seconds)
    return found


def results() -> dict[str, Any]:
    """Everything that is written. Raises DataError."""
    if served_folder() is None:
        raise DataError("no activity tables: set WATTCAST_ACTIVITY (python -m studies activity)")
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    fits = Fits(all_rows())
    power: dict[str, Any] = {}
    # Not boards that library operators alone were measured on.
    for gpu in sorted({card.gpu for card in cards if card.source != "aiconfigurator"}):
        card = default_card(cards, gpu)
        print(f"{gpu} {card.family}", file=sys.stderr, flush=True)
        if gpu == "pooled":
            parts = pooled_parts(fits)
        elif card.family == "physical":
            parts = physical_parts(fits, gpu)
        else:
            parts = tree_parts(card)
        power[gpu] = {
            "card_sha256": card_hash(card),
            **{protocol: told(part) for protocol, part in parts.items()},
        }
        if gpu in FREE:
            power[gpu]["points"] = free_points(fits, gpu)
    return {"power": power, "time_baselines": time_baselines()}


def report(found: Mapping[str, Any]) -> str:
    """The scores as a table in Markdown."""
    lines = []
    for gpu, scores in found["power"].items():
        for protocol in PROTOCOLS:
            if protocol not in scores:
                continue
            one = scores[protocol]
            cells = (one["rows"], one["kernels"], one["mean_error_percent"])
            cells += tuple(
                each[name] for name in ("median_error_percent", "near_percent")
                for each in (one, one["baseline"])
            )  # fmt: skip
            lines.append([gpu, protocol, *(str(cell) for cell in cells)])
    titles = (
        "GPU", "left out", "rows", "kernels", "mean error %", "median error %", "of the median",
        f"within {FACTOR}x %", "of the median",
    )  # fmt: skip
    return table(titles, lines)


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit status. Raises DataError."""
    parser = parser_of("held-out", __doc__)
    parser.add_argument("--write", action="store_true", help=f"into studies/{RESULTS.name}")
    options = parser.parse_args(arguments)
    found = results()
    print(report(found), end="")
    if options.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0
