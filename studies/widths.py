"""How far times lie from measured ones, asked as users ask: the intervals of every board that no
measured time was used for.

    python -m studies widths            coverage and width with each kernel, each board left out
    python -m studies widths --write    also the errors that the intervals rest on

The errors are those of ``python -m studies end-to-end --write``, ``counters --write`` and ``volta
--write``: public programs, a sweep of multiply-adds, tuning spaces, kernels of a Volta. A kernel
counts as one, however many boards, configurations or points were asked. Nothing of the time model
was fitted to any of these boards, spaces and kernels; norms were chosen with the programs and the
spaces in sight (``end_to_end``, ``counters``).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from math import exp, log

import numpy as np

from studies import counters, end_to_end, parser_of, volta
from studies.card_tables import table
from wattcast.models.intervals import conformal_factors
from wattcast.models.time.calibration import ERRORS_SERVED, LEVEL, ProgramError


def errors() -> Iterator[ProgramError]:
    """The errors that both studies keep."""
    programs = json.loads(end_to_end.RESULTS.read_text(encoding="utf-8"))
    for gpu, figures in programs.items():
        for program, ratios in figures["log_ratios"].items():
            yield from (ProgramError(gpu, program, ratio) for ratio in ratios)
    for figures in json.loads(counters.RESULTS.read_text(encoding="utf-8")).values():
        for ratio in figures["log_ratios"]:
            yield ProgramError(figures["gpu"], figures["kernel"], ratio)
    for gpu, kernels in json.loads(volta.RESULTS.read_text(encoding="utf-8")).items():
        for name, ratios in kernels.items():
            yield from (ProgramError(gpu, name, ratio) for ratio in ratios)


def width(known: Sequence[ProgramError]) -> float:
    """The half width in logarithms that a new kernel's error lies in."""
    _, high = conformal_factors(
        [error.log_ratio for error in known], [error.program for error in known], LEVEL,
        symmetric=True,
    )  # fmt: skip
    return log(high)


def left_out(
    found: Sequence[ProgramError], of: Callable[[ProgramError], str]
) -> Iterator[tuple[str, float, float]]:
    """Each group, the share of its errors inside the width of all others, and that width."""
    for name in dict.fromkeys(of(error) for error in found):
        half = width([error for error in found if of(error) != name])
        own = np.array([error.log_ratio for error in found if of(error) == name])
        yield name, float((np.abs(own) <= half).mean()), half


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
    rows = np.mean([abs(error.log_ratio) <= width(found) for error in found])
    write(f"All: {exp(2 * width(found)):.2f} wide, {100 * rows:.0f} % of times inside")
    if options.write:
        with ERRORS_SERVED.open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(ProgramError._fields)
            out.writerows((e.gpu, e.program, f"{e.log_ratio:.3f}") for e in found)
    return 0


def _program(error: ProgramError) -> str:
    return error.program


def _gpu(error: ProgramError) -> str:
    return error.gpu
