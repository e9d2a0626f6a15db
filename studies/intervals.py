"""``python -m studies intervals``: what intervals hold on kernels that taught them nothing.

Each protocol leaves whole groups out: of a group's rows neither the model nor the width has seen
any. Beside the width that is served stands a constant one: the same factor either way of every
prediction, chosen alike. ``--write`` leaves the figures for docs/accuracy.md.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from studies import parser_of
from studies.card_tables import table
from studies.data.activity_tables import (
    ACTIVITY_GPUS,
    TABLE_CONSTANTS,
    MeasuredProgram,
    ServedProgram,
    read_activity_table,
    served_folder,
)
from studies.data.frequency import kernel_group
from studies.data.launches import launches_path, read_launches
from studies.end_to_end import RESULTS as SERVED
from studies.fitting.physical.fit import Fits, cached_choice, leave_program_out
from studies.fitting.physical.rows import all_rows, served_programs
from studies.fitting.scaling.scores import run_studies, scale_errors
from studies.fitting.trees.holds import predicted
from studies.fitting.trees.pooled import shipped_fit
from studies.fitting.trees.tables import SOURCES
from studies.fitting.work.folds import MODEL, WorkTable, leave_out
from studies.fitting.work.tables import pairs_of
from studies.papers.guerreiro.applications import from_counters
from wattcast.features.gpus import GpuProfile
from wattcast.models.energy import JOINT
from wattcast.models.intervals import conformal_factors, supported_level
from wattcast.models.power.anchoring import ANY, WIDTHS, AnchoredWidth
from wattcast.models.store import ArtifactStore
from wattcast.models.time.base import Regime
from wattcast.models.time.bottleneck import (
    CONSTANTS,
    launch_seconds,
    predicted_seconds,
    regime,
    resource_seconds,
)
from wattcast.models.time.calibration import (
    ERRORS_SERVED,
    TimeCard,
    factor_of,
    interval_width,
    program_errors,
)

Floats = NDArray[np.float64]
Names = NDArray[np.str_]

RESULTS = Path(__file__).with_suffix(".json")
LEVEL = 0.9
MANY = 15
"""Groups from which a coverage is held to 0.87 to 0.97; of fewer, to the level stated."""


@dataclass(frozen=True)
class Held:
    """One kind of interval on one board. ``rows`` and ``groups``: share of rows inside, and its
    mean over groups; ``width`` and ``constant``: median of high over low, served and constant."""

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


def _programs(board: str) -> Sequence[MeasuredProgram | ServedProgram]:
    return read_activity_table(board) if served_folder() is None else served_programs(board)


def _predicted_seconds(row: MeasuredProgram | ServedProgram, gpu: GpuProfile) -> float:
    if isinstance(row, ServedProgram):
        return row.predicted_seconds
    return predicted_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS)


def _regime(row: MeasuredProgram | ServedProgram, gpu: GpuProfile) -> Regime:
    constants = CONSTANTS if isinstance(row, ServedProgram) else TABLE_CONSTANTS
    resources = resource_seconds(row.activity, gpu, row.clocks, constants)
    return regime(resources, launch_seconds(row.activity, gpu, constants))


@lru_cache(maxsize=1)
def joint_errors() -> Errors:
    """Power of programs left out, times by the default model, at all clocks of four boards."""
    fits = Fits(all_rows())
    choice = cached_choice(fits)
    parts: list[tuple[Floats, ...]] = []
    boards, programs = [], []
    for board in ACTIVITY_GPUS:
        rows = _programs(board)
        left_out = leave_program_out(fits, board, choice.settings)
        watts = left_out.watts[: len(rows)]  # those of the table come first
        told = ~np.isnan(watts)
        gpu, measured = left_out.table.gpu, left_out.table.watts[: len(rows)]
        assert np.array_equal(measured, [row.power_watts for row in rows])
        seconds = np.array([_predicted_seconds(row, gpu) for row in rows])
        took = np.array([row.time_seconds for row in rows])
        card = ArtifactStore().find(board, "power", "physical", "activity1").card
        _, high = card.intervals.unseen_kernel.around(watts[told])
        widths = [interval_width(board, _regime(row, gpu))[0].high_factor for row in rows]
        halves = np.log(widths)[told]
        parts.append(
            (
                np.log(measured / watts)[told],
                np.log(took / seconds)[told],
                np.log(high / watts[told]),
                halves,
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
    """Time and energy on the activity tables, each program under the widths of the others."""
    errors = joint_errors()
    yield from _time(errors)
    yield from _nested("energy", errors, errors.energy, errors.joined)


def _time(errors: Errors) -> Iterator[Held]:
    """As served: the width is that of programs at their highest clocks, on all boards together."""
    told = program_errors()
    names = np.array([kernel_group(one.program) for one in told])
    ratios = np.array([one.log_ratio for one in told])
    widths = np.empty(len(errors.time))
    for program in np.unique(errors.programs):
        others = names != program
        widths[errors.programs == program] = _half(ratios[others], names[others])
    yield from _boards("time", errors, np.abs(errors.time) <= widths, widths, widths)


def _nested(kind: str, errors: Errors, residuals: Floats, shape: Floats) -> Iterator[Held]:
    """Widths of ``shape`` times a quantile of the other programs, on all boards together."""
    widths, constant = np.empty(len(residuals)), np.empty(len(residuals))
    for program in np.unique(errors.programs):
        mine = errors.programs == program
        others = errors.programs[~mine]
        widths[mine] = shape[mine] * _half(np.abs(residuals / shape)[~mine], others)
        constant[mine] = _half(np.abs(residuals)[~mine], others)
    yield from _boards(kind, errors, np.abs(residuals) <= widths, widths, constant)


def _boards(
    kind: str, errors: Errors, inside: NDArray[np.bool_], widths: Floats, constant: Floats
) -> Iterator[Held]:
    """Of all boards, and of each."""
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


@dataclass(frozen=True)
class AnchoredErrors:
    """Of one board: ``scores`` are |ln(measured / anchored)| in standard deviations of the process,
    those ``deviations`` and the errors themselves ``[n]``, by kernel group."""

    gpu: str
    source: str
    groups: Names
    errors: Floats
    deviations: Floats

    @property
    def scores(self) -> Floats:
        """What a width has to hold."""
        return self.errors / self.deviations


SHOTS, SEEDS = (1, 3), (0, 1)


@lru_cache(maxsize=1)
def anchored_errors() -> tuple[AnchoredErrors, ...]:
    """Kernels left out but for one or three launches, every board with published rows."""
    found = []
    for source, (_, files) in SOURCES.items():
        for gpu in files:
            board, fit = shipped_fit(gpu, source)
            rows = board.launched[board.served]
            parts = []
            for shots, seed in product(SHOTS, SEEDS):
                watts, _, _, deviation = predicted(rows, board, fit, seed, shots)
                told = ~np.isnan(watts)
                errors = np.abs(np.log(rows.watts / watts))
                parts.append((rows.groups[told].astype(str), errors[told], deviation[told]))
            groups, errors, deviations = (np.concatenate(each) for each in zip(*parts, strict=True))
            found.append(AnchoredErrors(gpu, source, groups, errors, deviations))
    return tuple(found)


def anchored_widths() -> list[AnchoredWidth]:
    """What ``anchored.csv`` holds."""
    boards = anchored_errors()
    own = [
        AnchoredWidth(
            one.gpu, one.source, _quantile(one.scores, _equal(one.groups)), LEVEL,
            len(np.unique(one.groups)),
        )
        for one in boards
    ]  # fmt: skip
    level = 0.8
    assert supported_level(len(boards)) >= level
    return [*own, AnchoredWidth(ANY, ANY, _over_boards(boards, level), level, len(boards))]


def _equal(groups: Names) -> Floats:
    """Mass of rows: equal for all groups, and one more such mass for a new group."""
    _, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[index] / (len(counts) + 1))


def _quantile(scores: Floats, mass: Floats, level: float = LEVEL) -> float:
    order = np.argsort(scores, kind="stable")
    at = int(np.searchsorted(np.cumsum(mass[order]), level - 1e-12))
    return float(scores[order][min(at, len(scores) - 1)])


def _over_boards(boards: Sequence[AnchoredErrors], level: float) -> float:
    """For a new board: boards count alike, and the kernels of each."""
    mass = []
    for one in boards:
        kernels = len(np.unique(one.groups))
        mass.append(_equal(one.groups) * (kernels + 1) / kernels / (len(boards) + 1))
    return _quantile(np.concatenate([one.scores for one in boards]), np.concatenate(mass), level)


def anchored_lines() -> Iterator[Held]:
    """Each kernel under the width of the others; and each board under that of the other boards."""
    boards = anchored_errors()
    for one in boards:
        widths, constant = np.empty(len(one.errors)), np.empty(len(one.errors))
        level = supported_level(len(np.unique(one.groups)) - 1, LEVEL)
        for group in np.unique(one.groups):
            mine = one.groups == group
            mass = _equal(one.groups[~mine])
            widths[mine] = one.deviations[mine] * _quantile(one.scores[~mine], mass, level)
            constant[mine] = _quantile(one.errors[~mine], mass, level)
        yield _anchored(one, "kernels left out, 1 or 3 launches known", level, widths, constant)
    for one in boards:
        others = [other for other in boards if other is not one]
        widths = one.deviations * _over_boards(others, 0.8)
        flat = [replace(other, deviations=np.ones(len(other.errors))) for other in others]
        constant = np.full(len(one.errors), _over_boards(flat, 0.8))
        yield _anchored(one, "boards left out, 1 or 3 launches known", 0.8, widths, constant)


def _anchored(
    one: AnchoredErrors, protocol: str, level: float, widths: Floats, constant: Floats
) -> Held:
    every = np.ones(len(one.errors), dtype=np.bool_)
    name = f"{one.gpu}, {one.source}"
    found = _held("anchored power", name, protocol, every, one.groups, one.errors <= widths,
                  widths, constant)  # fmt: skip
    return replace(found, level=level)


def scaling_lines() -> Iterator[Held]:
    """Scales of time and power over clocks, from counters: each kernel under the others' width."""
    applications = from_counters()
    for one in [*run_studies(progress=lambda line: None), applications]:
        rows, told = one.predictions.rows, one.predictions
        for kind, scales, measured in (
            ("time", told.time, rows.time_scale),
            ("power", told.power, rows.power_scale),
        ):
            found = scale_errors(scales.get(SCALED), measured, rows)
            if found is not None:
                name = rows.campaign + (" (applications)" if one is applications else "")
                yield scaling_line(f"{kind} over clocks", name, *found)


def scaling_line(kind: str, campaign: str, errors: Floats, kernels: Names) -> Held:
    """Of one campaign."""
    widths = np.empty(len(errors))
    level = supported_level(len(np.unique(kernels)) - 1, LEVEL)
    for kernel in np.unique(kernels):
        mine = kernels == kernel
        widths[mine] = _half(errors[~mine], kernels[~mine], level)
    every = np.ones(len(errors), dtype=np.bool_)
    found = _held(kind, campaign, "kernels left out, from counters", every, kernels,
                  np.abs(errors) <= widths, widths, widths)  # fmt: skip
    return replace(found, level=level)


SCALED = "hybrid"
"""What is served of a campaign: physical scales, with trees where the card has them."""


def served_lines(path: Path = SERVED) -> Iterator[Held]:
    """Times as users ask them, at reference clocks: each program under the widths that the others
    give its regime."""
    told = program_errors(ERRORS_SERVED)
    for board, figures in json.loads(path.read_text("utf-8")).items():
        if board not in {one.gpu for one in program_errors()}:
            continue
        programs, errors, widths = [], [], []
        for program, by_regime in figures["log_ratios"].items():
            for bounded, found in by_regime.items():
                others = [e for e in told if kernel_group(e.program) != kernel_group(program)]
                half = float(np.log(factor_of(others, bounded, assumed=False)))
                programs += [program] * len(found)
                errors += found
                widths += [half] * len(found)
        every = np.ones(len(errors), dtype=np.bool_)
        half_widths = np.array(widths)
        yield _held("time, as asked", board, "programs left out, PTX in", every,
                    np.array(programs), np.abs(errors) <= half_widths,
                    half_widths, half_widths)  # fmt: skip


def known_lines() -> Iterator[Held]:
    """Times with one launch of the kernel known, by the model of measured work without the program
    and its ports: each program under the margin of the others (``models/time/known.py``)."""
    launches = read_launches(launches_path())
    work = WorkTable.of(launches)
    predicted = leave_out(work, "port", range(1)).predicted[MODEL][0]
    card = ArtifactStore(kind=TimeCard).list()[0]
    pairs = pairs_of(launches, predicted, card.intervals)
    groups = np.array([str(work.groups["port"][pair.other]) for pair in pairs])
    errors = np.array([abs(pair.corrected_error) for pair in pairs])
    distances = np.array([pair.distance for pair in pairs])
    widest = float(np.log(card.intervals.unseen_kernel.high_factor))
    widths, constant = np.empty(len(errors)), np.empty(len(errors))
    for group in np.unique(groups):
        mine = groups == group
        near = ~mine & (distances < widest)
        margin = _quantile((errors - distances)[near], _equal(groups[near]))
        widths[mine] = np.minimum(margin + distances[mine], widest)
        constant[mine] = _quantile(errors[~mine], _equal(groups[~mine]))
    every = np.ones(len(errors), dtype=np.bool_)
    yield _held("anchored time", "rtx-3080, measured work", "programs left out, 1 launch known",
                every, groups, errors <= widths, widths, constant)  # fmt: skip


KINDS: tuple[Callable[[], Iterator[Held]], ...] = (
    energy_lines,
    served_lines,
    anchored_lines,
    known_lines,
    scaling_lines,
)


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
    parser = parser_of("intervals", __doc__)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}, {WIDTHS.name}")
    options = parser.parse_args(arguments)
    lines = [line for kind in KINDS for line in kind()]
    print(coverage_table(lines))
    print(
        f"\nJOINT of models/energy.py: {joint_share():.3f}; energy is "
        f"{energy_beside_product():.2f} times as wide as the product of the ends"
    )
    if options.write:
        told = [{**asdict(line), **_rounded(line)} for line in lines]
        _write_anchored()
        RESULTS.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


def _write_anchored() -> None:
    with WIDTHS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(AnchoredWidth._fields)
        for one in anchored_widths():
            writer.writerow(one._replace(deviations=round(one.deviations, 3)))


def _rounded(line: Held) -> dict[str, float]:
    return {name: round(getattr(line, name), 3) for name in ("rows", "groups", "width", "constant")}
