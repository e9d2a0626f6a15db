"""How far times lie from measured ones, asked as users ask: the intervals of every board that no
measured time was used for.

    python -m studies widths            coverage and width with each kernel, each board left out
    python -m studies widths --write    also the errors that the intervals rest on

The errors are those of ``python -m studies end-to-end --write``, ``counters --write``, ``volta
--write`` and ``code-alone --write``: public programs, a sweep of multiply-adds, tuning spaces,
kernels of a Volta, and programs asked with code and launch alone, of those the launches where no
trip count is assumed and no function is missing. A kernel counts as one, however many boards,
configurations or points were asked. What bounds a launch decides its width. Norms were chosen with
public programs and spaces in sight (``end_to_end``, ``counters``); of the programs asked with code
alone, the header of stores was (docs/bottleneck.md).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from math import exp, log

import numpy as np

from studies import code_alone, counters, end_to_end, parser_of, volta
from studies.card_tables import table
from studies.data.launches import GPU
from wattcast.models.time.calibration import ERRORS_SERVED, ProgramError, factor_of, of_kind


def errors() -> Iterator[ProgramError]:
    """The errors that the studies keep."""
    programs = json.loads(end_to_end.RESULTS.read_text(encoding="utf-8"))
    kept = [(gpu, figures["log_ratios"]) for gpu, figures in programs.items()]
    spaces = json.loads(counters.RESULTS.read_text(encoding="utf-8")).values()
    kept += [(each["gpu"], {each["kernel"]: each["log_ratios"]}) for each in spaces]
    kept += json.loads(volta.RESULTS.read_text(encoding="utf-8")).items()
    for gpu, each in kept:
        for program, by_regime in each.items():
            for regime, ratios in by_regime.items():
                yield from (ProgramError(gpu, program, ratio, regime) for ratio in ratios)
    for row in code_alone.kept():
        if row.doubt in code_alone.KNOWN:
            yield ProgramError(GPU, row.program, row.off, row.regime, row.doubt == "arguments")


def left_out(
    found: Sequence[ProgramError], of: Callable[[ProgramError], str]
) -> Iterator[tuple[str, float, float]]:
    """Each group, the share of its errors inside the widths that all others give their regimes,
    and its median width."""
    for name in dict.fromkeys(of(error) for error in found):
        others = [error for error in found if of(error) != name]
        own = [error for error in found if of(error) == name]
        kinds = {(error.regime, error.assumed) for error in own}
        halves = {kind: log(factor_of(others, *kind)) for kind in kinds}
        told = np.array([halves[error.regime, error.assumed] for error in own])
        inside = np.abs([error.log_ratio for error in own]) <= told
        yield name, float(inside.mean()), float(np.median(told))


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Run the command; the exit status. Raises DataError."""
    parser = parser_of("widths", __doc__)
    parser.add_argument("--write", action="store_true", help=f"write {ERRORS_SERVED.name}")
    options = parser.parse_args(arguments)
    found = list(errors())
    for title, of in (("kernel", _program), ("board", _gpu)):
        lines, inside = [], []
        for name, share, half in left_out(found, of):
            own = [error for error in found if of(error) == name]
            middle = float(np.median([error.log_ratio for error in own]))
            inside.append(share)
            lines.append(
                [name, f"{len(own)}", f"{exp(middle):.2f}", f"{100 * share:.0f}",
                 f"{exp(2 * half):.1f}"]
            )  # fmt: skip
        titles = (f"{title} left out", "times", "measured / predicted", "inside %", "wide")
        write(f"\n{table(titles, lines)}\nMean inside: {100 * np.mean(inside):.0f} %\n")
    for kind in sorted({(error.regime, error.assumed) for error in found}):
        known = "arguments assumed" if kind[1] else "arguments known"
        programs = len({error.program for error in of_kind(found, *kind)})
        wide = factor_of(found, *kind) ** 2
        write(f"{kind[0]}, {known}: {wide:.2f} wide, from {programs} programs")
    write(f"All: {factor_of(found, None, False) ** 2:.2f} wide")
    if options.write:
        with ERRORS_SERVED.open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(ProgramError._fields)
            out.writerows(
                (e.gpu, e.program, f"{e.log_ratio:.3f}", e.regime, int(e.assumed)) for e in found
            )
    return 0


def _program(error: ProgramError) -> str:
    return error.program


def _gpu(error: ProgramError) -> str:
    return error.gpu
