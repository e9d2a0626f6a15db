"""Prints how near the physical power model comes, beside the answers that need no model.

    python -m studies physical  (some minutes on one core)

Everything is on programs (or GPUs) left out, over all clocks measured. docs/physical.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from studies.card_tables import table
from studies.data.frequency import read_frequency
from studies.data.tables import read_clean
from studies.fitting.physical.artifacts import priors, served_costs, watts_of
from studies.fitting.physical.fit import (
    Averaged,
    Choice,
    Fits,
    choose,
    error_percent,
    leave_program_out,
    scored_programs,
)
from studies.fitting.physical.rows import Floats, GpuRows, all_rows
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.models.power.activities import AT_REST, UnitActivities
from wattcast.models.power.physical import (
    POOLED,
    PhysicalParameters,
    parameters_for,
    predicted_power,
)
from wattcast.models.store import PARAMETERS_NAME, ArtifactStore
from wattcast.training.calibrated import design, refitted
from wattcast.training.data.datasets import data_root

Line = list[str]


def programs_lines(fits: Fits, choice: Choice) -> Iterator[Line]:
    """Activities as they are served (GTX 980, Titan X: as counted), settings nested."""
    for gpu_id in fits.varied:
        found = leave_program_out(fits, gpu_id, choice.settings)
        yield [gpu_id, f"{found.error_percent:.1f}", f"{found.median_error_percent:.1f}"]


def transfer_lines(fits: Fits, choice: Choice) -> list[Line]:
    """GPUs left out: the datasheet alone, and with a few measured launches."""
    lines = []
    for gpu_id in fits.varied:
        cells = [gpu_id]
        for found in shot_errors(fits, gpu_id, choice.best):
            median = f" ({found.median:.1f})" if found.shots else ""
            cells.append(f"{found.model:.1f} ± {found.spread:.1f}{median}")
        lines.append(cells)
    return lines


def report() -> str:
    """All tables as Markdown. Raises DataError for missing or defective data."""
    fits = Fits(all_rows())
    choice = choose(fits)
    scores = list(programs_lines(fits, choice))
    costs = [
        [cost.gpu_id, f"{cost.counted_percent:.1f}", f"{cost.served_percent:.1f}"]
        for cost in served_costs(fits, choice.best)
    ]
    shots = ["datasheet", "1 row", "3 rows", "5 rows", "10 rows"]
    parts = [
        ("Mean absolute percentage error over all clocks",
         ["GPU", "model %", "median at the same clocks %"], scores),
        ("Fitted on counted activities alone, read on", ["GPU", "counted %", "PTX %"], costs),
        ("GPU and program left out, and recalibrated by measured launches (median of those)",
         ["GPU", *shots], transfer_lines(fits, choice)),
        ("Launches on few SMs, and boards without work whose clocks are held: error of the floor",
         ["GPU", "rows", "SMs at work", "all charged %", "as served %", "share by the others",
          "with it %"], few_sms_lines()),
    ]  # fmt: skip
    return "\n".join(f"{title}\n\n{table(heads, lines)}" for title, heads, lines in parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies physical")
    parser.parse_args(arguments)
    print(report())
    return 0


# --- The floor of a board of which few SMs work ------------------------------------------------


FEW = 0.25
"""Share of the SMs up to which a launch's own work is neglected beside what its board draws."""

THESIS = {"tesla-k20": "K20", "tesla-m60": "M60", "tesla-v100": "V100"}
HELD = {
    "gtx-titan-x": "lisboa_gtx_titan_x",
    "titan-xp": "lisboa_titan_xp",
    "tesla-k40c": "lisboa_tesla_k40c",
    "titan-v": "lisboa_titan_v",
}
ENERGAIZER = {
    "a100-sxm4-80gb": "A100-SXM4-80GB limit 400 W",
    "a100-pcie-40gb": "A100-PCIE-40GB limit 250 W",
}
SHARES = np.linspace(0.0, 1.0, 21)


def few_sms(gpu_id: str) -> list[tuple[float, ClockPair, float]]:
    """SMs at work, clocks and watts: kernels of the thesis on few SMs (medians), idle boards at
    each pair of held clocks. Raises DataError.
    """
    gpu = load_gpu(gpu_id)
    if gpu_id in THESIS:
        frame = read_clean(THESIS[gpu_id])
        at_work = frame["grid_size"].astype(float) / gpu.sm_count
        idle = frame["flag"].fillna("").str.contains("idle")
        few = frame.assign(sms=at_work)[(at_work <= FEW) & ~idle].groupby("kernel_id")
        rows = few[["sms", "power_w"]].median().to_numpy(float)
        return [(float(sms), default_clocks(gpu), float(watts)) for sms, watts in rows]
    if gpu_id in HELD:
        held = read_frequency(HELD[gpu_id]).frame.dropna(subset=["idle_watts"])
        pairs = held.groupby(["core_mhz", "memory_mhz"])["idle_watts"].median().reset_index()
        return [(0.0, ClockPair(c, m), w) for c, m, w in pairs.to_numpy(float)]
    table = pd.read_csv(data_root() / "modern" / "idle_power_voltage.csv")
    own = table.loc[table["board"] == ENERGAIZER[gpu_id], ["core_mhz", "idle_power_watts"]]
    return [(0.0, ClockPair(c, gpu.memory_mhz), float(w)) for c, w in own.to_numpy(float)]


def few_sms_lines() -> list[Line]:
    """By board the error of the floor: as if all SMs worked, as served, and with that share of what
    ``base`` and ``clock`` draw going with the SMs at work by which the OTHER boards come out best.
    """
    errors: dict[str, tuple[Floats, int, float]] = {}
    lines, store = [], ArtifactStore()
    for gpu_id in (*THESIS, *HELD, *ENERGAIZER):
        cards = [(card.target, card.family) for card in store.list(gpu_id)]
        served = gpu_id if ("power", "physical") in cards else POOLED
        own = store.find(served, "power", "physical", "activity1")
        stored = PhysicalParameters.model_validate_json(own.read(PARAMETERS_NAME))
        known = parameters_for(load_gpu(gpu_id), stored) if served == POOLED else stored
        rows = few_sms(gpu_id)
        all_, none = (
            np.array(
                [predicted_power(known, AT_REST._replace(sms=s), at).watts for _, at, _ in rows]
            )
            for s in (1.0, 0.0)
        )
        sms, watts = (np.array([row[k] for row in rows]) for k in (0, 2))
        told = all_ - SHARES[:, np.newaxis] * (1.0 - sms) * (all_ - none)
        wrong = 100 * np.abs(told / watts - 1).mean(axis=1)
        errors[gpu_id] = wrong, len(rows), float(sms.mean())
    for gpu_id, (found, count, mean_sms) in errors.items():
        others = np.mean([each[0] for name, each in errors.items() if name != gpu_id], axis=0)
        best = int(others.argmin())
        lines.append(
            [gpu_id, str(count), f"{mean_sms:.2f}", f"{found[0]:.1f}", f"{found[-1]:.1f}",
             f"{SHARES[best]:.2f}", f"{found[best]:.1f}"]
        )  # fmt: skip
    return lines


# --- What a few measured launches are worth to the pooled physical model on --------------------


SHOTS = (0, 1, 3, 5, 10)
"""Measured launches of the new GPU, each of another program."""


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """Activities of a launch at the PREDICTED time at ``clocks``, and the watts it drew there."""

    activities: UnitActivities
    clocks: ClockPair
    power_watts: float


def recalibrated(
    parameters: PhysicalParameters,
    measured: Sequence[MeasuredLaunch],
) -> PhysicalParameters:
    """``refitted`` to measured launches; without any the parameters come back as they are."""
    if not measured:
        return parameters
    watts = np.array([one.power_watts for one in measured])
    rows = design(parameters, [(one.activities, one.clocks) for one in measured])
    return refitted(parameters, rows, watts)


@dataclass(frozen=True)
class ShotErrors:
    """Error in percent of the recalibrated model, mean and spread over draws, and the median's."""

    shots: int
    model: float
    spread: float
    median: float


def shot_errors(fits: Fits, gpu_id: str, settings: Averaged, seeds: int = 10) -> list[ShotErrors]:
    """What a few measured launches of a GPU left out are worth, by their number."""
    table, known = fits.tables[gpu_id], priors(fits, gpu_id, settings)
    found = []
    for shots in SHOTS:
        draws = range(seeds if shots else 1)
        errors = [error_percent(table, with_shots(table, known, shots, seed)) for seed in draws]
        medians = [
            error_percent(table, median_with_shots(table, shots, seed)) if shots else np.nan
            for seed in draws
        ]
        found.append(
            ShotErrors(
                shots, float(np.mean(errors)), float(np.std(errors)), float(np.mean(medians))
            )
        )
    return found


def with_shots(
    table: GpuRows, known: Mapping[str, PhysicalParameters], shots: int, seed: int
) -> Floats:
    """The same after ``shots`` measured launches of other programs, each at some clocks."""
    watts = np.full(len(table.watts), np.nan)
    for (program, prior), rows in zip(known.items(), _drawn(table, shots, seed), strict=True):
        parameters = recalibrated(prior, measured_launches(table, rows))
        mine = (table.programs == program) & table.scored
        watts[mine] = watts_of(parameters, table)[mine]
    return watts


def median_with_shots(table: GpuRows, shots: int, seed: int) -> Floats:
    """What the median of the same launches says: the answer without a model."""
    watts = np.full(len(table.watts), np.nan)
    programs = scored_programs(table)
    for program, rows in zip(programs, _drawn(table, shots, seed), strict=True):
        watts[(table.programs == program) & table.scored] = np.median(table.watts[rows])
    return watts


def _drawn(table: GpuRows, shots: int, seed: int) -> list[list[int]]:
    """For each scored program some rows of others, no two of one program."""
    random = np.random.default_rng(seed)
    scored = np.flatnonzero(table.scored)
    drawn = []
    for program in scored_programs(table):
        others = scored[table.programs[scored] != program]
        names = random.permutation(np.unique(table.programs[others]))[:shots]
        drawn.append([int(random.choice(others[table.programs[others] == n])) for n in names])
    return drawn


def measured_launches(table: GpuRows, rows: Sequence[int]) -> list[MeasuredLaunch]:
    """Some rows as ``wattcast.training.calibrated`` takes them."""
    return [
        MeasuredLaunch(
            UnitActivities(*table.activities[row]),
            ClockPair(*table.clocks_mhz[row]),
            float(table.watts[row]),
        )
        for row in rows
    ]
