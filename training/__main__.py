"""``python -m training``: train the packaged power models, or print the scores of their cards."""

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
from wattcast.training.card_tables import feature_table, interval_table, score_table, summary_table
from wattcast.training.checkpoints import Checkpoints
from wattcast.training.evaluation.protocols import ASSIGNMENTS
from wattcast.training.fit import ALL_FAMILIES, Plan, train
from wattcast.training.power_rows import SOURCE, SOURCES


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    gpus = sorted({gpu for _, files in SOURCES.values() for gpu in files})
    parser.add_argument("--all", action="store_true", help="every source, and the physical models")
    parser.add_argument("--source", choices=list(SOURCES), help=f"published rows; else {SOURCE}")
    parser.add_argument("--gpu", action="append", choices=gpus)
    parser.add_argument("--family", action="append", choices=list(ALL_FAMILIES))
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--resume", type=Path, help="folder for finished fits: a training that died goes on there"
    )
    parser.add_argument("--report", action="store_true", help="print the cards below --out only")
    options = parser.parse_args(arguments)
    try:
        cards = ArtifactStore([options.out]).list() if options.report else _trained(options)
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary_table(cards))
    print(score_table(cards))
    print(interval_table(cards))
    for card in cards:
        if card.family != "average":
            print(f"{card.gpu} {card.family}\n\n{feature_table(card)}")
    return 0


def _trained(options: argparse.Namespace) -> list[ModelCard]:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    plan = Plan(
        assignments=options.assignments,
        jobs=options.jobs,
        checkpoints=Checkpoints(options.resume),
    )
    cards = []
    for source in SOURCES if options.all else (options.source or SOURCE,):
        files = SOURCES[source][1]
        gpus = options.gpu or tuple(files)
        if options.all:
            gpus = [gpu for gpu in gpus if gpu in files]
        families = options.family or ALL_FAMILIES
        cards += train(gpus, families, options.out, say, plan=plan, source=source)
    if options.all and not options.gpu and not options.family:
        from wattcast.training.physical.physical_artifacts import train as train_physical

        cards += train_physical(options.out, say)
    return cards


if __name__ == "__main__":
    sys.exit(main())
