"""``python -m training``: train the packaged power models, or print the scores of their cards."""

from __future__ import annotations

import os

# Before any numeric library starts its threads: spinning ones starve a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import sys
from pathlib import Path

from features.errors import WattcastError
from models.store import PACKAGED_ARTIFACTS, ArtifactStore
from training.families import FAMILIES
from training.fit import THESIS_FILES, Plan, train
from training.protocols import ASSIGNMENTS
from training.report import feature_table, interval_table, score_table, summary_table


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--gpu", action="append", choices=list(THESIS_FILES))
    parser.add_argument("--family", action="append", choices=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--assignments", type=int, default=ASSIGNMENTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", action="store_true", help="print the cards below --out only")
    options = parser.parse_args(arguments)
    try:
        if options.report:
            cards = ArtifactStore([options.out]).list()
        else:
            cards = train(
                options.gpu or tuple(THESIS_FILES),
                options.family or tuple(FAMILIES),
                options.out,
                lambda line: print(line, file=sys.stderr, flush=True),
                plan=Plan(assignments=options.assignments, jobs=options.jobs),
            )
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


if __name__ == "__main__":
    sys.exit(main())
