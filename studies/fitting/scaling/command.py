"""``python -m studies clocks``: score and fit frequency-scaling models, write artifacts.

Without options: every study of ``scaling_studies.py``, the packaged artifacts anew, and the
tables of docs/frequency.md. Deterministic, about a minute on two cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from studies import parser_of
from studies.fitting.scaling.artifacts import write_campaigns
from studies.fitting.scaling.rows import TITAN_X
from studies.fitting.scaling.scores import (
    DCGM_CAMPAIGNS,
    MICRO_CAMPAIGNS,
    NVPROF_CAMPAIGNS,
    choice_table,
    run_studies,
    score_table,
)
from studies.papers.guerreiro.applications import from_counters
from wattcast.models.store import PACKAGED_ARTIFACTS

# Before any numeric library starts its threads: the folds run side by side, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


FITTED_TOGETHER: tuple[tuple[str, ...], ...] = (
    NVPROF_CAMPAIGNS,
    DCGM_CAMPAIGNS,
    *((name,) for name in (TITAN_X, *MICRO_CAMPAIGNS)),
)
"""Campaigns with models, by those that share parameters."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("clocks", __doc__)
    parser.add_argument("--out", type=Path, default=PACKAGED_ARTIFACTS, help="artifact root")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", action="store_true", help="print the scores, write nothing")
    options = parser.parse_args(arguments)

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    scored = [*run_studies(jobs=options.jobs, progress=progress), from_counters()]
    if not options.report:
        for campaigns in FITTED_TOGETHER:
            write_campaigns(campaigns, scored, options.out, progress=progress)
    print(score_table(scored))
    print(choice_table(scored))
    return 0
