"""Activity tables made anew: what the service makes of the public programs, beside measured watts.

    python -m studies activity FOLDER          writes a table for each board, prints errors
    python -m studies activity FOLDER --keep   reads the tables that FOLDER has

Each program of ``end_to_end.toml`` is asked as users ask, by code, launch and arguments, at every
clock pair that a campaign measured: counts, the predicted time, and the units' activities in that
time. The tables stay on this machine; ``python -m studies fit-physical`` fits the power models to
them where WATTCAST_ACTIVITY names FOLDER.

Errors of power: by the models that ship, and by models of the same kind fitted without the program
asked on any board, settings chosen without it too.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from studies import parser_of
from studies.card_tables import table
from studies.data.activity_tables import (
    ACTIVITY_GPUS,
    SERVED_FOLDER,
    ServedProgram,
    read_activity_table,
    read_served_table,
)
from studies.data.frequency import read_frequency
from studies.end_to_end import CAMPAIGNS, Program, programs
from studies.fitting.physical.fit import Choice, Fits, cached_choice, predict, scored_programs
from studies.fitting.physical.rows import OTHER_BUILDS, Bools, Floats, all_rows, served_rows
from wattcast.app.settings import Settings
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair
from wattcast.models.power.activities import unit_activities
from wattcast.models.time.beside import beside
from wattcast.predictor import Predictor, parts
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.parts.time_and_power import BoardModels

DCGM = "dcgm"
"""The other campaign on V100, and the only one on RTX 8000 (the activity tables of the data
folder). Its ``nnForward`` is ``backpropForward``: the same grid, block and registers. Its
``histogram`` is two kernels and is left out."""
DCGM_NAMES = {"nnForward": "backpropForward", "histogram": ""}

Reading = tuple[str, ClockPair, float, float]
"""Campaign, clocks, watts, seconds."""


def readings(gpu_id: str) -> dict[str, list[Reading]]:
    """What was measured of each public program on a board. Raises DataError."""
    found: dict[str, list[Reading]] = {}
    if campaign := CAMPAIGNS.get(gpu_id):
        for row in read_frequency(campaign).frame.to_dict("records"):
            pair = ClockPair(float(row["core_mhz"]), float(row["memory_mhz"]))
            reading = (campaign, pair, float(row["power_watts"]), float(row["time_seconds"]))
            found.setdefault(str(row["benchmark"]), []).append(reading)
    for one in read_activity_table(gpu_id):
        if one.kind == "real" and one.counters and "dcgm_sm_active" in one.counters:
            name = DCGM_NAMES.get(one.program, one.program)
            found.setdefault(name, []).append((DCGM, one.clocks, one.power_watts, one.time_seconds))
    return found


def served(
    predictor: Predictor, gpu: GpuProfile, program: Program, measured: Sequence[Reading]
) -> Iterator[ServedProgram]:
    """One program at all clocks it was measured at. Raises AnalysisError where it has no time."""
    request = PredictRequest.model_validate(program.request(gpu.id))
    source = predictor.sources.read(request, gpu)
    analysis = parts.analysed(predictor, request, source, gpu, ptxas=True, keep=False)
    more = beside(analysis.extras)
    for campaign, pair, watts, seconds in measured:
        duration, _, _ = BoardModels.of(predictor, request, gpu).at(analysis, pair).told()
        told = duration.estimate.value
        units = unit_activities(analysis.activity, gpu, pair, told, more=more)
        yield ServedProgram(
            gpu.id, campaign, program.name, pair, watts, seconds, told, units, analysis.activity
        )


def write_tables(folder: Path, chosen: Sequence[Program]) -> None:
    """The table of every board into ``folder``. Raises DataError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        for gpu_id in ACTIVITY_GPUS:
            gpu, measured = predictor.gpus.load(gpu_id), readings(gpu_id)
            rows = [
                _cells(row)
                for program in chosen
                for row in served(predictor, gpu, program, measured.get(program.name, ()))
            ]
            pd.DataFrame(rows).to_csv(folder / f"{gpu_id}.csv", index=False)


def _cells(row: ServedProgram) -> dict[str, float | str]:
    names = ("power_watts", "time_seconds", "predicted_seconds")
    return {
        **{name: getattr(row, name) for name in ("gpu", "campaign", "program")},
        **row.clocks._asdict(),
        **{name: getattr(row, name) for name in names},
        **{f"unit_{name}": value for name, value in row.units._asdict().items()},
        **asdict(row.activity),
    }


def left_out(fits: Fits, choice: Choice, gpu_id: str) -> tuple[Floats, Floats]:
    """Watts of every served row of a board, ``[n]``: by the fit that ships, and by fits without its
    program."""
    rows = served_rows(gpu_id, other_builds=True)
    own = predict(rows, *fits.fit(gpu_id, choice.best))
    without = np.full_like(own, np.nan)
    known = scored_programs(fits.tables[gpu_id])
    for program in np.unique(rows.programs):
        name = str(program)
        settings = choice.settings(name) if name in known else choice.best
        mine = rows.programs == program
        without[mine] = predict(rows, *fits.fit(gpu_id, settings, frozenset({name})))[mine]
    return own, without


def report(chosen: Sequence[str] = ACTIVITY_GPUS) -> str:
    """Errors by board and campaign as Markdown. Raises DataError."""
    fits = Fits(all_rows())
    choice = cached_choice(fits)
    lines, single = [], []
    for gpu_id in chosen:
        rows = read_served_table(gpu_id)
        own, without = left_out(fits, choice, gpu_id)
        watts = np.array([row.power_watts for row in rows])
        seconds = np.array([row.time_seconds for row in rows])
        told = np.array([row.predicted_seconds for row in rows])
        right = np.array([(row.program, row.campaign) not in OTHER_BUILDS for row in rows])
        for campaign in sorted({row.campaign for row in rows}):
            mine = np.array([row.campaign == campaign for row in rows])
            best = max(row.clocks for row in rows if row.campaign == campaign)
            at = mine & np.array([row.clocks == best for row in rows])
            for what, which in (("all clocks", mine), ("highest clocks", at)):
                errors = [_percent(told, seconds, which & right)]
                errors += [_percent(one, watts, which & right) for one in (own, without)]
                everything = _percent(without, watts, which)
                cells = [f"{each.mean():.1f} ({np.median(each):.1f})" for each in errors]
                lines.append([gpu_id, campaign, what, *cells, f"{everything.mean():.1f}"])
            for row, place in zip(rows, range(len(rows)), strict=True):
                if at[place]:
                    single.append(
                        [gpu_id, campaign, row.program, f"{watts[place]:.0f}", f"{own[place]:.0f}",
                         f"{without[place]:.0f}", "" if right[place] else "another build"]
                    )  # fmt: skip
    titles = ("GPU", "campaign", "at", "time %, mean (median)", "power, program seen %",
              "power, program left out %", "the same with other builds %")  # fmt: skip
    names = ("GPU", "campaign", "program", "measured W", "seen W", "left out W", "")
    return f"{table(titles, lines)}\n\n{table(names, single)}"


def _percent(told: Floats, true: Floats, which: Bools) -> Floats:
    return np.asarray(np.abs(told[which] / true[which] - 1) * 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("activity", __doc__)
    parser.add_argument("folder", type=Path, help="where the tables are")
    parser.add_argument("--keep", action="store_true", help="use the tables that are there")
    options = parser.parse_args(arguments)
    if not options.keep:
        write_tables(options.folder, programs())
    os.environ[SERVED_FOLDER] = str(options.folder)
    print(report())
    return 0
