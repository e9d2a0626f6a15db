"""``python -m studies intervals``: what intervals hold on kernels that taught them nothing.

Each protocol leaves whole groups out: of a group's rows neither the model nor the width has seen
any. Beside the width that is served stands a constant one: the same factor either way of every
prediction, chosen alike. ``--write`` leaves the figures for docs/accuracy.md, ``--ends N`` asks N
random requests whether their ends can be (``studies.interval_ends``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from studies.data.activity_tables import ACTIVITY_GPUS, TABLE_CONSTANTS, read_activity_table
from studies.power.physical_fit import Fits, cached_choice, leave_program_out
from studies.power.physical_rows import all_rows
from wattcast.models.energy import JOINT
from wattcast.models.intervals import conformal_factors, supported_level
from wattcast.models.store import ArtifactStore
from wattcast.models.time.bottleneck import predicted_seconds
from wattcast.models.time.spread import interval_width
from wattcast.training.card_tables import table

Floats = NDArray[np.float64]
Names = NDArray[np.str_]

RESULTS = Path(__file__).with_suffix(".json")
LEVEL = 0.9
MANY = 15
"""Groups from which a coverage is held to 0.87 to 0.97; of fewer, to the level stated."""


@dataclass(frozen=True)
class Held:
    """One kind of interval on one board. ``rows`` and ``groups``: share of rows inside, and its mean
    over groups; ``width`` and ``constant``: median of high over low, served and constant."""

    kind: str
    board: str
    protocol: str
    groups_left_out: int
    level: float
    rows: float
    groups: float
    width: float
    constant: float

    @property
    def line(self) -> list[str]:
        """A row of the table."""
        return [
            *(self.kind, self.board, str(self.groups_left_out), f"{self.level:g}"),
            *(f"{self.rows:.2f}", f"{self.groups:.2f}"),
            *(f"×{self.width:.2f}", f"×{self.constant:.2f}", self.protocol),
        ]


@dataclass(frozen=True)
class Errors:
    """ln(measured / predicted) of rows ``[n]``, and half widths of the parts' served intervals."""

    boards: Names
    programs: Names
    power: Floats
    time: Floats
    power_half: Floats
    time_half: Floats

    @property
    def energy(self) -> Floats:
        """Of the energy."""
        return self.power + self.time

    @property
    def joined(self) -> Floats:
        """Half widths of power and time, joined as those of independent errors."""
        return np.hypot(self.power_half, self.time_half)


@lru_cache(maxsize=1)
def joint_errors() -> Errors:
    """Power of programs left out, times by the default model, at all clocks of four boards."""
    fits = Fits(all_rows())
    choice = cached_choice(fits)
    parts: list[tuple[Floats, ...]] = []
    boards, programs = [], []
    for board in ACTIVITY_GPUS:
        rows = read_activity_table(board)
        left_out = leave_program_out(fits, board, choice.settings)
        watts = left_out.watts[: len(rows)]  # those of the table come first
        told = ~np.isnan(watts)
        gpu, measured = left_out.table.gpu, left_out.table.watts[: len(rows)]
        assert np.array_equal(measured, [row.power_watts for row in rows])
        seconds = np.array(
            [predicted_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS) for row in rows]
        )
        took = np.array([row.time_seconds for row in rows])
        card = ArtifactStore().find(board, "power", "physical", "activity1").card
        _, high = card.intervals.unseen_kernel.around(watts[told])
        half = float(np.log(interval_width(board)[0].high_factor))
        parts.append(
            (
                np.log(measured / watts)[told],
                np.log(took / seconds)[told],
                np.log(high / watts[told]),
                np.full(int(told.sum()), half),
            )
        )
        boards += [board] * int(told.sum())
        programs += left_out.table.programs[: len(rows)][told].tolist()
    power, time, power_half, time_half = (np.concatenate(each) for each in zip(*parts, strict=True))
    names = np.array(boards), np.array([str(one) for one in programs])
    return Errors(*names, power, time, power_half, time_half)


def joint_share() -> float:
    """What ``wattcast.models.energy.JOINT`` is."""
    errors = joint_errors()
    return _half(np.abs(errors.energy) / errors.joined, errors.programs)


def _half(scores: Floats, groups: Names, level: float = LEVEL) -> float:
    return float(np.log(conformal_factors(scores, groups, level, symmetric=True)[1]))


def energy_lines() -> Iterator[Held]:
    """Power, time and energy on the activity tables, each program under the widths of the others."""
    errors = joint_errors()
    ones = np.ones(len(errors.power))
    yield from _nested("time", errors, errors.time, ones)
    yield from _nested("energy", errors, errors.energy, errors.joined)


def _nested(kind: str, errors: Errors, residuals: Floats, shape: Floats) -> Iterator[Held]:
    """Widths of ``shape`` times a quantile of the other programs, on all boards together."""
    widths, constant = np.empty(len(residuals)), np.empty(len(residuals))
    for program in np.unique(errors.programs):
        mine = errors.programs == program
        others = errors.programs[~mine]
        widths[mine] = shape[mine] * _half(np.abs(residuals / shape)[~mine], others)
        constant[mine] = _half(np.abs(residuals)[~mine], others)
    inside = np.abs(residuals) <= widths
    for board in ("all", *np.unique(errors.boards)):
        mine = (errors.boards == board) | (board == "all")
        yield _held(kind, str(board), "programs left out, all clocks", mine, errors.programs,
                    inside, widths, constant)  # fmt: skip


def _held(
    kind: str, board: str, protocol: str, mine: NDArray[np.bool_], groups: Names,
    inside: NDArray[np.bool_], widths: Floats, constant: Floats,
) -> Held:  # fmt: skip
    each = [inside[mine & (groups == one)].mean() for one in np.unique(groups[mine])]
    return Held(
        kind=kind,
        board=board,
        protocol=protocol,
        groups_left_out=len(each),
        level=supported_level(len(np.unique(groups)), LEVEL),
        rows=float(inside[mine].mean()),
        groups=float(np.mean(each)),
        width=float(np.exp(2 * np.median(widths[mine]))),
        constant=float(np.exp(2 * np.median(constant[mine]))),
    )


def energy_beside_product() -> float:
    """Median width of energy over that of the product of the ends, as served."""
    errors = joint_errors()
    served = np.sinh(JOINT * errors.joined)
    return float(np.median(served / np.sinh(errors.power_half + errors.time_half)))


KINDS: tuple[Callable[[], Iterator[Held]], ...] = (energy_lines,)


def coverage_table(lines: Sequence[Held]) -> str:
    """Markdown of all kinds."""
    head = ("interval", "board", "groups", "level", "rows inside", "mean of groups",
            "median high/low", "constant", "protocol")  # fmt: skip
    return table(head, [line.line for line in lines])


def read_results(path: Path = RESULTS) -> list[Held]:
    """What ``--write`` left."""
    return [Held(**one) for one in json.loads(path.read_text("utf-8"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies intervals", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--ends", type=int, metavar="N", help="random requests to ask")
    options = parser.parse_args(arguments)
    if options.ends:
        return _ends(options.ends)
    lines = [line for kind in KINDS for line in kind()]
    print(coverage_table(lines))
    print(
        f"\nJOINT of models/energy.py: {joint_share():.3f}; energy is "
        f"{energy_beside_product():.2f} times as wide as the product of the ends"
    )
    if options.write:
        told = [{**asdict(line), **_rounded(line)} for line in lines]
        RESULTS.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


def _rounded(line: Held) -> dict[str, float]:
    return {name: round(getattr(line, name), 3) for name in ("rows", "groups", "width", "constant")}


def _ends(count: int) -> int:
    from studies.interval_ends import check
    from wattcast.app.settings import Settings
    from wattcast.predictor import Predictor

    with TemporaryDirectory() as home:
        found = check(Predictor(Settings(home=Path(home))), count)
    print(f"{found.answers} answers, {sum(found.refused.values())} requests refused, "
          f"{len(found.wrong)} ends that cannot be")  # fmt: skip
    for line in found.wrong:
        print(line, file=sys.stderr)
    return 1 if found.wrong else 0
