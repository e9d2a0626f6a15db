"""Prints how near the physical power model comes, beside the answers that need no model.

    python -m studies physical  (some minutes on one core)

Everything is on programs (or GPUs) left out, over all clocks measured. docs/physical.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from studies.card_tables import table
from studies.fitting.physical.artifacts import served_costs
from studies.fitting.physical.fit import Choice, Fits, choose, leave_program_out
from studies.fitting.physical.rows import all_rows

Line = list[str]


def programs_lines(fits: Fits, choice: Choice) -> Iterator[Line]:
    """Activities as they are served (GTX 980, Titan X: as counted), settings nested."""
    for gpu_id in fits.varied:
        found = leave_program_out(fits, gpu_id, choice.settings)
        yield [gpu_id, f"{found.error_percent:.1f}", f"{found.median_error_percent:.1f}"]


def report() -> str:
    """All tables as Markdown. Raises DataError for missing or defective data."""
    fits = Fits(all_rows())
    choice = choose(fits)
    scores = list(programs_lines(fits, choice))
    costs = [
        [cost.gpu_id, f"{cost.counted_percent:.1f}", f"{cost.served_percent:.1f}"]
        for cost in served_costs(fits, choice.best)
    ]
    parts = [
        ("Mean absolute percentage error over all clocks",
         ["GPU", "model %", "median at the same clocks %"], scores),
        ("Fitted on counted activities alone, read on", ["GPU", "counted %", "PTX %"], costs),
    ]  # fmt: skip
    return "\n".join(f"{title}\n\n{table(heads, lines)}" for title, heads, lines in parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies physical")
    parser.parse_args(arguments)
    print(report())
    return 0
