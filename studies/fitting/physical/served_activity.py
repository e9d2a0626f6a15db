"""Activity tables made anew: what the service makes of the public programs, beside measured watts.

    python -m studies activity FOLDER          writes a table for each board

Each program of ``end_to_end.toml`` is asked as users ask, by code, launch and arguments, at every
clock pair that a campaign measured: counts, the predicted time, and the units' activities in that
time. The tables stay on this machine; ``python -m studies fit-physical`` fits the power models to
them where WATTCAST_ACTIVITY names FOLDER.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from studies import parser_of
from studies.data.activity_tables import ACTIVITY_GPUS, ServedProgram, read_activity_table
from studies.data.frequency import read_frequency
from studies.end_to_end import CAMPAIGNS, Program, programs
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
        duration, _, _ = BoardModels.of(predictor, request, gpu).at(analysis, [pair])[0].told()
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("activity", __doc__)
    parser.add_argument("folder", type=Path, help="where the tables go")
    write_tables(parser.parse_args(arguments).folder, programs())
    return 0
