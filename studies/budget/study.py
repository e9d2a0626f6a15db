"""Counts under the default budget beside those of a run to completion, launch by launch.

    python -m studies budget --results FILE [--budget UNITS] [--only TEXT]

Fixtures at three shapes each, launches that run long, and the public programs where their PTX is at
hand (``WATTCAST_PUBLIC_PTX``). The other run takes no iteration from another and has 50 times the
budget; where even that ends first, the table says so. FILE takes a line for each launch: the study
goes on where it was stopped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

import numpy as np

from studies import parser_of
from studies.budget.launches import Asked, long_running, of_fixtures, of_programs
from studies.card_tables import table
from studies.end_to_end import programs
from wattcast.features.analysis import DEFAULT_EFFORT, KernelAnalysis, analyse
from wattcast.features.errors import DataError
from wattcast.features.gpus import load_gpu

GPU = "a100-sxm4-80gb"
MORE = 50
"""Times the budget that the other run may take."""
QUANTITIES = ("instructions", "l1_sectors", "l2_sectors", "dram_sectors", "shared_passes")
TARGETS = ((0.02, 0.80), (0.10, 0.95))
"""Share of the launches that must be so near to completion in every quantity."""


def counts(analysis: KernelAnalysis) -> dict[str, float]:
    """Warp instructions, 32-byte sectors at each level, passes of shared memory; of the launch."""
    found = analysis.activity
    return dict(
        zip(
            QUANTITIES,
            (
                found.warp_instructions_ptx,
                found.global_load_sectors + found.global_store_sectors,
                found.l2_sectors,
                found.dram_read_sectors + found.dram_write_sectors,
                found.shared_transactions,
            ),
            strict=True,
        )
    )


@dataclass(frozen=True)
class Compared:
    """One launch. ``completed``: the budget did not end; ``ended``: nor did 50 times of it.

    ``ours`` and ``true`` are counts by quantity; ``error`` is what the answer states of its own.
    """

    name: str
    completed: bool
    ended: bool
    how: str
    error: float
    coverage: Mapping[str, float]
    ours: Mapping[str, float]
    true: Mapping[str, float]
    seconds: float

    def deviation(self, quantity: str) -> float:
        """Relative deviation of a quantity from completion, symmetrically: |ln ratio|."""
        ours, true = self.ours[quantity], self.true[quantity]
        if ours == true:
            return 0.0
        return abs(float(np.log(ours / true))) if ours > 0 and true > 0 else float("inf")

    @property
    def worst(self) -> float:
        """The largest deviation, but for quantities that are nothing beside the others."""
        least = LEAST_SHARE * self.true["instructions"]
        return max(
            self.deviation(name)
            for name in QUANTITIES
            if max(self.ours[name], self.true[name]) >= least
        )


LEAST_SHARE = 1e-3
"""Sectors or passes a warp instruction below which a quantity is not judged: it is in no answer."""


def compared(asked: Asked, budget: float = DEFAULT_EFFORT) -> Compared:
    """Analyse a launch within the budget, and again without any saving."""
    module, began = asked.module(), monotonic()
    gpu = load_gpu(GPU)
    ours = analyse(module, asked.kernel, asked.launch, gpu, effort=budget)
    extrapolated = any(info.extrapolated for info in ours.executed.loops)
    completed = ours.executed.sampling.completed
    found = counts(ours)
    true, ended = found, completed
    if extrapolated or not completed or ours.activity_how == "symbolic":
        other = analyse(
            module, asked.kernel, asked.launch, gpu,
            effort=MORE * budget, extrapolate=False, analysis="executed",
        )  # fmt: skip
        ended = other.executed.sampling.completed
        if not ended:  # what repeats is taken as repeating, so that more of the rest is run
            other = analyse(
                module, asked.kernel, asked.launch, gpu, effort=MORE * budget, analysis="executed"
            )
        true = counts(other)
    return Compared(
        asked.name, completed, ended, ours.activity_how, ours.coverage.error,
        asdict(ours.coverage), found, true, monotonic() - began,
    )  # fmt: skip


def read(path: Path | None) -> dict[str, Compared]:
    """Results kept so far, by launch."""
    if path is None or not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [Compared(**json.loads(line)) for line in lines]
    return {one.name: one for one in found}


def study(
    chosen: Iterable[Asked], results: Path | None, budget: float, progress: Callable[[str], None]
) -> Iterator[Compared]:
    """Compare what ``results`` does not hold yet."""
    known = read(results)
    for asked in chosen:
        if asked.name not in known:
            one = compared(asked, budget)
            progress(f"{one.name}: {100 * one.worst:.1f} %, {one.seconds:.0f} s")
            if results is not None:
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
            known[asked.name] = one
        yield known[asked.name]


def page(found: list[Compared]) -> str:
    """The launches that something was left out of, and the shares that are near enough."""
    titles = ("launch", *(f"{name} %" for name in QUANTITIES), "stated ± %", "how", "other run")
    lines = [
        [
            one.name,
            *(_signed(one.ours[name], one.true[name]) for name in QUANTITIES),
            f"{100 * one.error:.1f}",
            one.how if one.completed else f"{one.how}, budget ended",
            "" if one.ended else "budget ended",
        ]
        for one in sorted(found, key=lambda one: -one.worst)
        if one.ours != one.true or not one.ended
    ]
    worst = np.array([one.worst for one in found])
    stated = np.array([one.worst <= np.log1p(one.error) + 1e-3 for one in found])
    said = [
        f"{np.mean(worst <= np.log1p(limit)):.1%} of {len(found)} launches within {limit:.0%} "
        f"in every quantity (wanted {share:.0%})"
        for limit, share in TARGETS
    ]
    inside = f"{np.mean(stated):.1%} within the error that the answer states (wanted all)"
    return f"{table(titles, lines)}\n" + "\n".join([*said, inside]) + "\n"


def _signed(ours: float, true: float) -> str:
    if ours == true:
        return "0"
    return f"{100 * (ours / true - 1):+.1f}" if true else "new"


def launches(only: str) -> Iterator[Asked]:
    """Everything the study asks about whose name holds ``only``."""
    sources = [long_running(), of_fixtures()]
    try:
        sources.append(of_programs(programs()))
    except DataError as reason:
        print(f"without public programs: {reason}", file=sys.stderr)
    for source in sources:
        yield from (asked for asked in source if only in asked.name)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("budget", __doc__)
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--budget", type=float, default=DEFAULT_EFFORT, metavar="UNITS")
    parser.add_argument("--only", default="", metavar="TEXT", help="names that hold it")
    options = parser.parse_args(arguments)
    found = study(
        launches(options.only), options.results, options.budget,
        lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(page(list(found)))
    return 0
