"""Kernels measured at a grid of clocks, each beside what models say that never saw it.

Predictions of a kernel, each of seconds and watts at every pair of its campaign:

    code       the service's answer to its code and launch, at the clocks; the board's power model
               is fitted without the program on any board. Nothing of time was fitted to a kernel
               but the norms of the time model, chosen with these programs in sight (the study
               ``end-to-end`` chooses them without each)
    elsewhere  the same, the power model fitted on the other boards only, without the program
    board      code, times by how much the same is off at each pair for the median of the campaign's
               other kernels, the program family left out. Nothing serves it: it tells what is the
               board's and not the kernel's
    counters   what ``POST /dvfs`` makes of counters of one run at the reference pair: scales by
               models fitted without the program, times what was measured in that run
    curve      the median of the campaign's other kernels, their program family left out: knows
               the clocks, and nothing of the kernel
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies.clocks.applications import (
    GPU,
    REFERENCE,
    asked,
    from_counters,
    launches,
    measured_pairs,
    power_without,
)
from studies.clocks.dvfs_judged import JUDGED
from studies.clocks.scaling_studies import DCGM_CAMPAIGNS, NVPROF_CAMPAIGNS, Study, run_studies
from studies.data.activity_tables import read_served_table
from studies.data.frequency import (
    COUNTED_TOO,
    kernel_group,
    read_frequency,
    read_measured_sequences,
)
from studies.power.physical_artifacts import POOLED_SETTINGS, watts_of
from studies.power.physical_fit import Fits, FitSettings, pooled_parameters, predict
from studies.power.physical_rows import OTHER_BUILDS, Floats, all_rows, served_rows
from studies.power.served_activity import DCGM, DCGM_NAMES
from wattcast.app.settings import Settings
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.power.physical import parameters_for
from wattcast.predictor import Predictor

TITAN_X = "sequences_gtx_titan_x"
"""Fifteen applications of the Titan X at 32 pairs, in ``sequences`` of the data folder."""
CAMPAIGNS = (
    "wang_gtx_980_high",
    "wang_gtx_980_low",
    "wang_gtx_1080_ti",
    "wang_rtx_2070_super",
    "wang_tesla_p100",
    "wang_tesla_v100",
    "wang_dcgm_tesla_v100",
    "wang_dcgm_quadro_rtx_8000",
)
"""Campaigns that measured both time and power of applications."""
SERVED = {
    "wang_gtx_1080_ti": "wang_gtx_1080_ti",
    "wang_tesla_p100": "wang_tesla_p100",
    "wang_tesla_v100": "wang_tesla_v100",
    "wang_dcgm_tesla_v100": DCGM,
    "wang_dcgm_quadro_rtx_8000": DCGM,
}
"""Campaigns whose programs are asked with their code, by their names in the activity tables."""
SOURCES = ("code", "elsewhere", "board", "counters", "curve")


class Told(NamedTuple):
    """Seconds and watts at every pair, ``[n]`` each."""

    seconds: Floats
    watts: Floats


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel on a board: measured ``[n]`` at ``clocks_mhz`` ``[n, 2]`` (core, memory).
    ``reference`` is the row of the clocks that the campaign takes for the default."""

    campaign: str
    gpu: str
    kernel: str
    clocks_mhz: Floats
    measured: Told
    reference: int
    told: dict[str, Told] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The program family, which is left out as one."""
        return kernel_group(self.kernel)

    @property
    def pairs(self) -> list[ClockPair]:
        """The clocks, in order."""
        return [ClockPair(float(core), float(memory)) for core, memory in self.clocks_mhz]

    def at(self, seconds: Mapping[ClockPair, float], watts: Mapping[ClockPair, float]) -> Told:
        """What was told pair by pair, in the order of the clocks."""
        return Told(*(np.array([one[pair] for pair in self.pairs]) for one in (seconds, watts)))


def all_cases(jobs: int = 1) -> list[Case]:
    """Every kernel with all its predictions. Raises DataError for missing data or tables."""
    found = [*_campaign_cases(), *_titan_x_cases()]
    _add_curves(found)
    _add_counters(found, jobs)
    _add_code(found)
    _add_board(found)
    return found


def _campaign_cases() -> Iterator[Case]:
    for campaign in CAMPAIGNS:
        read = read_frequency(campaign)
        for _, rows in read.frame[read.frame["kind"] == "real"].groupby("kernel"):
            yield Case(
                campaign,
                read.gpu,
                str(rows["benchmark"].iloc[0]),
                rows[["core_mhz", "memory_mhz"]].to_numpy(float),
                Told(rows["time_seconds"].to_numpy(float), rows["power_watts"].to_numpy(float)),
                int(np.flatnonzero(rows["is_reference"])[0]),
            )


def _titan_x_cases() -> Iterator[Case]:
    frame, order = read_measured_sequences(), measured_pairs()
    for name, rows in frame[frame["kind"] == "real"].groupby("benchmark"):
        by_pair = rows.set_index(["core_mhz", "memory_mhz"]).loc[order]
        seconds = by_pair["time_ms"].to_numpy(float) * 1e-3
        yield Case(
            TITAN_X,
            GPU,
            str(name),
            np.array(order),
            Told(seconds, by_pair["power_watts"].to_numpy(float)),
            order.index((REFERENCE.core_mhz, REFERENCE.memory_mhz)),
        )


def _add_curves(cases: Sequence[Case]) -> None:
    for case in cases:
        others = [
            other
            for other in cases
            if other.campaign == case.campaign and other.group != case.group
        ]
        told = []
        for quantity in Told._fields:
            values = np.array([getattr(other.measured, quantity) for other in others])
            base = values[:, case.reference]
            told.append(np.median(values / base[:, None], axis=0) * np.median(base))
        case.told["curve"] = Told(*told)


def _add_counters(cases: Sequence[Case], jobs: int) -> None:
    studies = (
        Study("leave_programs_out", NVPROF_CAMPAIGNS),
        Study("micro_to_real", DCGM_CAMPAIGNS),
    )
    scored = [*run_studies(studies, jobs=jobs, progress=lambda _: None), from_counters()]
    places = {(case.campaign, case.kernel): case for case in cases}
    for one in scored:
        rows = one.predictions.rows
        campaign = TITAN_X if one is scored[-1] else rows.campaign
        for number in np.unique(rows.kernel):
            mine = np.flatnonzero(rows.kernel == number)
            name = str(rows.names[mine[0]]).split()[0]
            case = places.get((campaign, COUNTED_TOO[name] if campaign == TITAN_X else name))
            if case is None:
                continue  # a campaign without power
            told = case.at(
                *(
                    {
                        ClockPair(float(rows.core_mhz[row]), float(rows.memory_mhz[row])): float(
                            scales[JUDGED][row] * base[case.reference]
                        )
                        for row in mine
                    }
                    for scales, base in (
                        (one.predictions.time, case.measured.seconds),
                        (one.predictions.power, case.measured.watts),
                    )
                )
            )
            case.told["counters"] = told


def _add_code(cases: Sequence[Case]) -> None:
    fits, settings = Fits(all_rows()), (FitSettings(),)
    for campaign in SERVED:
        mine = {case.kernel: case for case in cases if case.campaign == campaign}
        gpu = next(iter(mine.values())).gpu
        rows, table = served_rows(gpu, other_builds=True), read_served_table(gpu)
        theirs = DCGM_NAMES if SERVED[campaign] == DCGM else {}
        names = {new: old for old, new in theirs.items()}
        others = [other for other in fits.tables if other != gpu]
        for program in sorted({row.program for row in table if row.campaign == SERVED[campaign]}):
            at = np.array([(r.program, r.campaign) == (program, SERVED[campaign]) for r in table])
            case = mine[names.get(program, program)]
            if (program, campaign) in OTHER_BUILDS:
                continue
            without = frozenset({kernel_group(program)})
            pooled = pooled_parameters(fits, POOLED_SETTINGS, others, without)
            pairs = [row.clocks for row, here in zip(table, at, strict=True) if here]
            seconds = [r.predicted_seconds for r, here in zip(table, at, strict=True) if here]
            for source, watts in (
                ("code", predict(rows, *fits.fit(gpu, settings, without))),
                ("elsewhere", watts_of(parameters_for(rows.gpu, pooled), rows)),
            ):
                case.told[source] = case.at(
                    dict(zip(pairs, seconds, strict=True)),
                    dict(zip(pairs, watts[at].tolist(), strict=True)),
                )
    _add_applications([case for case in cases if case.campaign == TITAN_X], fits)


def _add_board(cases: Sequence[Case]) -> None:
    known = [case for case in cases if "code" in case.told]
    for case in known:
        others = [
            other
            for other in known
            if other.campaign == case.campaign and other.group != case.group
        ]
        told = []
        for quantity in Told._fields:
            off = [
                np.log(getattr(other.measured, quantity) / getattr(other.told["code"], quantity))
                for other in others
            ]
            told.append(getattr(case.told["code"], quantity) * np.exp(np.median(off, axis=0)))
        case.told["board"] = Told(*told)


def _add_applications(cases: Sequence[Case], fits: Fits) -> None:
    """The applications of the Titan X, asked as ``studies applications --code`` asks them. Their
    times are of an unknown number of launches: predicted ones are scaled to that at the reference.
    """
    gpu, pairs = load_gpu(GPU), measured_pairs()
    others = [other for other in fits.tables if other != GPU]
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        model = predictor.power.physical(gpu)
        for case in cases:
            if case.kernel not in launches():
                continue
            pooled = pooled_parameters(fits, POOLED_SETTINGS, others, frozenset({case.group}))
            for source, parameters in (
                ("code", power_without(fits, case.kernel)),
                ("elsewhere", parameters_for(gpu, pooled)),
            ):
                model.parameters = parameters
                seconds, watts = asked(predictor, case.kernel, pairs)
                known = case.measured.seconds[case.reference] / seconds[case.reference]
                case.told[source] = Told(seconds * known, watts)
