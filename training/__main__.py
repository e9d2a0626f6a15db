"""``wattcast train``: train the packaged boosted models, search settings, print scores of cards.

Out of a checkout ``python -m studies fit-all`` fits the other shipped models too.
"""

from __future__ import annotations

import os

# Before any numeric library starts its threads: spinning ones starve a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import sys
from pathlib import Path

from wattcast.features.errors import WattcastError
from wattcast.models.cards import ModelCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.training.card_tables import (
    feature_table,
    interval_table,
    score_table,
    summary_table,
    table,
)
from wattcast.training.checkpoints import Checkpoints
from wattcast.training.engine import SPREAD_ROWS, ClusterError, Engine, open_engine
from wattcast.training.evaluation.protocols import ASSIGNMENTS
from wattcast.training.families import FAMILIES
from wattcast.training.fit import Plan, train
from wattcast.training.power_rows import SOURCE, SOURCES, training_table


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="wattcast train", description=__doc__)
    gpus = sorted({gpu for _, files in SOURCES.values() for gpu in files})
    parser.add_argument("--all", action="store_true", help="every published source")
    parser.add_argument("--source", choices=list(SOURCES), help=f"published rows; else {SOURCE}")
    parser.add_argument("--gpu", action="append", choices=gpus)
    parser.add_argument("--family", action="append", choices=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--resume", type=Path, help="folder for finished fits: a training that died goes on there"
    )
    parser.add_argument(
        "--search", type=int, metavar="TRIALS", help="print the best hyperparameters; no files"
    )
    parser.add_argument(
        "--dask", default=os.environ.get("WATTCAST_DASK"), help="scheduler whose workers fit"
    )
    parser.add_argument(
        "--dask-rows",
        type=int,
        default=int(os.environ.get("WATTCAST_DASK_ROWS", SPREAD_ROWS)),
        help="rows from which one XGBoost fit is spread over the workers",
    )
    parser.add_argument("--report", action="store_true", help="print the cards below --out only")
    options = parser.parse_args(arguments)
    try:
        if options.report:
            cards = ArtifactStore([options.out]).list()
        else:
            with open_engine(options.dask, options.jobs, options.dask_rows) as engine:
                if options.search:
                    print(_searched(options, engine))
                    return 0
                cards = _trained(options, engine)
    except (WattcastError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary_table(cards))
    print(score_table(cards))
    print(interval_table(cards))
    for card in cards:
        if card.family != "average":
            print(f"{card.gpu} {card.family}\n\n{feature_table(card)}")
    return 0


def _searched(options: argparse.Namespace, engine: Engine) -> str:
    """The best setting of each boosted family on each GPU, by the error on kernels left out."""
    from wattcast.training.search import search

    source = options.source or SOURCE
    lines = []
    for gpu in options.gpu or tuple(SOURCES[source][1]):
        made = training_table(gpu, source=source)
        for family in options.family or FAMILIES:
            found = search(engine, made.rows[made.served], family, options.search)
            errors = found.mae_watts, found.family_mae_watts, found.baseline_mae_watts
            setting = ", ".join(f"{name}={value:.4g}" for name, value in found.parameters.items())
            lines.append([gpu, family, *(f"{watts:.2f}" for watts in errors), setting])
    titles = ["GPU", "family", "best MAE W", "as shipped", "median power", "hyperparameters"]
    note = (
        f"\nMean absolute error with kernels left out, best of {options.search}. The best was "
        "chosen on these folds: expect more on others.\n"
    )
    return table(titles, lines) + note


def _trained(options: argparse.Namespace, engine: Engine) -> list[ModelCard]:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    plan = Plan(
        assignments=options.assignments,
        jobs=options.jobs,
        checkpoints=Checkpoints(options.resume),
        engine=engine,
    )
    cards = []
    for source in SOURCES if options.all else (options.source or SOURCE,):
        files = SOURCES[source][1]
        gpus = options.gpu or tuple(files)
        if options.all:
            gpus = [gpu for gpu in gpus if gpu in files]
        families = options.family or tuple(FAMILIES)
        cards += train(gpus, families, options.out, say, plan=plan, source=source)
    return cards


if __name__ == "__main__":
    sys.exit(main())
