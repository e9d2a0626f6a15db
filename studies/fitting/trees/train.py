"""``python -m studies train``: fit the packaged boosted models, print cards.

``python -m studies fit-all`` fits the other shipped models too.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from studies import parser_of
from studies.card_tables import feature_table, interval_table, score_table, summary_table
from studies.fitting.out_of_fold import ASSIGNMENTS
from studies.fitting.trees.boosted import Plan, train
from studies.fitting.trees.tables import SOURCE, SOURCES
from wattcast.features.errors import WattcastError
from wattcast.models.cards import ModelCard
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.training.engine import SPREAD_ROWS, Checkpoints, ClusterError, Engine, open_engine
from wattcast.training.families import FAMILIES

# Before any numeric library starts its threads: spinning ones starve a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("train", __doc__)
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
        "--dask", default=os.environ.get("WATTCAST_DASK"), help="scheduler whose workers fit"
    )
    parser.add_argument(
        "--dask-rows",
        type=int,
        default=SPREAD_ROWS,
        help="rows from which one XGBoost fit is spread over the workers",
    )
    parser.add_argument("--report", action="store_true", help="print the cards below --out only")
    options = parser.parse_args(arguments)
    try:
        if options.report:
            cards = ArtifactStore([options.out]).list()
        else:
            with open_engine(options.dask, options.jobs, options.dask_rows) as engine:
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
