"""Public programs asked as users ask: code, launch and arguments in, time and power out.

    python -m studies end-to-end                     tables as Markdown
    python -m studies end-to-end --gpu tesla-v100 --without-hints
    python -m studies end-to-end --write             also the figures that README and docs show,
                                                     of the boards asked

Predictions come from the use case that HTTP calls (``wattcast.predictor.predict``), at the
reference clocks of the campaign that measured the programs. Of the time model's constants the three
norms that combine resources were chosen with these programs in sight: they are chosen again without
each program in turn. Nothing else was fitted to a program's time. The power models of these boards
were fitted to these programs among others, so their errors are those of kernels seen.

Programs: ``end_to_end.toml``. Their PTX is looked for where WATTCAST_PUBLIC_PTX says. The sweeps
of multiply-adds on A100 and A40 (``fma_sweep.cu``) need the extra ``cuda`` instead. No constant of
the time model was fitted to them, and their power is predicted by weights of the other boards: none
of the kind of board predicted takes part.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from studies import parser_of
from studies.card_tables import table
from studies.data.frequency import FrequencyTable, read_frequency
from studies.fitting.physical.artifacts import POOLED_SETTINGS
from studies.fitting.physical.fit import Fits, pooled_parameters
from studies.fitting.physical.rows import SWEPT, all_rows
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.launch import WARP_SIZE
from wattcast.models.clocks import ClockPair
from wattcast.models.power.physical import parameters_for
from wattcast.models.time.bottleneck import CONSTANTS, Constants, combined_seconds
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict_one
from wattcast.training.data.datasets import find_data

Floats = NDArray[np.float64]

MANIFEST = Path(__file__).with_suffix(".toml")
RESULTS = Path(__file__).with_suffix(".json")
SWEEP = Path(__file__).with_name("fma_sweep.cu")
SWEPT_EVERY = 16
"""Multiply-adds between the points of a sweep that are asked (the tables have one every 8)."""
FOLDER = "WATTCAST_PUBLIC_PTX"
CAMPAIGNS = {
    "tesla-v100": "wang_tesla_v100",
    "gtx-1080-ti": "wang_gtx_1080_ti",
    "tesla-p100": "wang_tesla_p100",
}
"""Measurements by board."""


@dataclass(frozen=True)
class Program:
    """One launch of a public program; ``ptx`` is the path of its text."""

    name: str
    ptx: Path
    kernel: str
    launch: Mapping[str, Any]

    def request(self, gpu: str, clocks: ClockPair | None = None, **given: Any) -> dict[str, Any]:
        """What a user sends."""
        body = {
            "ptx": self.ptx.read_text(encoding="utf-8"),
            "kernel": self.kernel,
            "gpu": gpu,
            "launch": self.launch,
            **given,
        }
        return body if clocks is None else {**body, "clocks": clocks._asdict()}


@cache
def manifest() -> Mapping[str, Any]:
    """``end_to_end.toml``."""
    return tomllib.loads(MANIFEST.read_text(encoding="utf-8"))


def programs(folder: Path | None = None, *, hints: bool = True) -> tuple[Program, ...]:
    """The programs of the manifest. Raises DataError where their PTX is absent or another."""
    given = folder or Path(os.environ.get(FOLDER, ""))
    if folder is None and not os.environ.get(FOLDER):
        where = f"{manifest()['repository']} at {manifest()['commit']}"
        raise DataError(
            f"no PTX of the public programs: set {FOLDER} to a copy of the folder "
            f"{manifest()['folder']!r} of {where}"
        )
    found = []
    for entry in manifest()["program"]:
        path = given / entry["ptx"]
        if not path.is_file():
            raise DataError(f"{path} is missing ({FOLDER})", file=path.name)
        if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            raise DataError(f"{path} is not the text that was launched", file=path.name)
        arguments = dict(entry.get("arguments", {}))
        for position, hint in entry.get("hints", {}).items() if hints else ():
            arguments[position] = {**arguments[position], **hint}
        launch = {"grid": entry["grid"], "block": entry["block"], "arguments": arguments}
        found.append(Program(entry["name"], path, entry["kernel"], launch))
    return tuple(found)


class Outcome(NamedTuple):
    """One program on one board: seconds and watts measured and predicted, what bounds the time,
    whether the measured time is inside the predicted interval, and what a user works out by hand:
    distinct bytes over bandwidth or operations over peak, the longer, in seconds."""

    program: str
    measured_seconds: float
    measured_watts: float
    seconds: float
    watts: float
    bound_by: str
    inside: bool
    by_hand_seconds: float
    executed: float
    warnings: tuple[str, ...]
    parts: Mapping[str, float]


def outcomes(predictor: Predictor, gpu: str, chosen: Iterable[Program]) -> list[Outcome]:
    """Every program measured on a board, asked of ``predictor``. Raises DataError."""
    measured, profile, found = read_frequency(CAMPAIGNS[gpu]), load_gpu(gpu), []
    for program in chosen:
        seconds, watts = _measured(measured, program.name)
        body = program.request(gpu, measured.reference)
        answer = predict_one(predictor, PredictRequest.model_validate(body))
        time, power, coverage = answer["time"], answer["power"], answer["coverage"]
        found.append(
            Outcome(
                program.name,
                seconds,
                watts,
                time["seconds"],
                power["watts"],
                answer["time_model"]["regime"],
                time["low"] <= seconds <= time["high"],
                by_hand(answer["features"], profile, measured.reference),
                coverage["executed"] + coverage["worked_out"] if coverage else 0.0,
                tuple(sorted({warning["code"] for warning in answer["warnings"]})),
                answer["time_model"]["parts"],
            )
        )
    return found


class Point(NamedTuple):
    """One point of a sweep, the mean of the boards measured: ``limited`` where the clock of most
    fell below the highest of the sweep, because they were at their power limit; ``told_limited``
    where the answer says so; ``shares`` are what each resource would need alone, over all."""

    multiply_adds: int
    measured_seconds: float
    measured_watts: float
    limited: bool
    seconds: float
    watts: float
    told_limited: bool
    shares: Mapping[str, float]
    regime: str


def leave_out(predictor: Predictor, gpu: str) -> None:
    """From now on the power of a kind of board comes from the others. Raises DataError."""
    fits = Fits(all_rows())
    others = [other for other in fits.tables if other != gpu]
    model = predictor.power.physical(predictor.gpus.load(gpu))
    model.parameters = parameters_for(model.gpu, pooled_parameters(fits, POOLED_SETTINGS, others))


def sweep(predictor: Predictor, gpu: str) -> list[Point]:
    """The sweep of multiply-adds on a board. Raises DataError without the data folder."""
    data = find_data()
    if data is None:
        raise DataError("no data folder: set WATTCAST_DATA")
    rows: dict[int, list[tuple[float, float, float]]] = {}
    launch = {}
    with (data / "modern" / "fma_sweep_power.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == gpu:
                figures = (row["time_seconds"], row["power_watts"], row["core_mhz"])
                rows.setdefault(int(row["fma_per_element"]), []).append(
                    (float(figures[0]), float(figures[1]), float(figures[2]))
                )
                launch = {
                    name: int(row[name])
                    for name in ("blocks", "threads_per_block", "elements_per_thread")
                }
    highest = max(mhz for each in rows.values() for _, _, mhz in each)
    elements = launch["blocks"] * launch["threads_per_block"] * launch["elements_per_thread"]
    buffers = {str(n): {"elements": elements} for n in (0, 1)}
    arguments = {
        **buffers,
        "2": {"elements": launch["blocks"]},
        "3": launch["elements_per_thread"],
    }
    found = []
    for fmas, each in sorted(rows.items()):
        if fmas % SWEPT_EVERY:
            continue
        seconds, watts, _ = np.mean(each, axis=0)
        body = {
            "cuda": f"#define FMAS {fmas}\n{SWEEP.read_text(encoding='utf-8')}",
            "gpu": gpu,
            "launch": {
                "grid": [launch["blocks"]],
                "block": [launch["threads_per_block"]],
                "arguments": arguments,
            },
        }
        answer = predict_one(predictor, PredictRequest.model_validate(body))
        found.append(
            Point(
                fmas,
                float(seconds),
                float(watts),
                float(np.median(each, axis=0)[2]) < highest,
                answer["time"]["seconds"],
                answer["power"]["watts"],
                any(warning["code"] == "power_limited" for warning in answer["warnings"]),
                shares_of(answer["time_model"]["parts"], answer["time"]["seconds"]),
                answer["time_model"]["regime"],
            )
        )
    return found


def shares_of(parts: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Parts of a predicted time over all of it."""
    return {name: part / seconds for name, part in parts.items()}


def sweep_table(gpu: str, found: Sequence[Point]) -> str:
    """Errors point by point, and their means."""
    lines = [
        [
            str(one.multiply_adds), f"{1e3 * one.measured_seconds:.2f}", f"{1e3 * one.seconds:.2f}",
            f"{one.measured_watts:.0f}", f"{one.watts:.0f}", "yes" if one.limited else "no",
            "yes" if one.told_limited else "no",
        ]
        for one in found
    ]  # fmt: skip
    titles = (
        "FMAs",
        "measured ms",
        "predicted ms",
        "measured W",
        "predicted W",
        "power limited",
        "predicted",
    )
    score = sweep_score(found)
    del score["log_ratios"]
    means = ", ".join(f"{name} {value:g}" for name, value in score.items())
    return f"\n## Sweep of multiply-adds, {gpu}\n\n{table(titles, lines)}\nMean errors: {means}\n"


def sweep_score(found: Sequence[Point]) -> dict[str, Any]:
    """Mean errors in percent of time and power, below the power limit and at it; the rank
    correlation of power over the points; multiply-adds at which the limit begins; errors below the
    power limit."""
    score: dict[str, Any] = {}
    for at, limited in (("", False), (" at the power limit", True)):
        chosen = [one for one in found if one.limited == limited]
        if chosen:
            times = [one.measured_seconds for one in chosen]
            watts = [one.measured_watts for one in chosen]
            error = percent([one.seconds for one in chosen], times)
            score[f"time{at}"] = round(float(error.mean()), 1)
            error = percent([one.watts for one in chosen], watts)
            score[f"power{at}"] = round(float(error.mean()), 1)
    below = [one for one in found if not one.limited]
    ranks = spearmanr([one.watts for one in below], [one.measured_watts for one in below])
    score["rank correlation of power"] = round(float(ranks.statistic), 2)
    for name, which in (("limit begins at", "limited"), ("predicted at", "told_limited")):
        first = [one.multiply_adds for one in found if getattr(one, which)]
        if first:
            score[name] = first[0]
    ratios = log_ratios((one.regime, one.measured_seconds, one.seconds) for one in below)
    return {**score, "log_ratios": {"sweep": ratios}}


def program_score(found: Sequence[Outcome]) -> dict[str, Any]:
    """Mean and median errors in percent, times inside their interval, and errors by program."""
    time = percent([one.seconds for one in found], [one.measured_seconds for one in found])
    power = percent([one.watts for one in found], [one.measured_watts for one in found])
    return {
        "programs": len(found),
        "time": [round(float(each), 1) for each in (time.mean(), np.median(time))],
        "power": [round(float(each), 1) for each in (power.mean(), np.median(power))],
        "times_inside_interval": int(sum(one.inside for one in found)),
        "log_ratios": {
            one.program: log_ratios([(one.bound_by, one.measured_seconds, one.seconds)])
            for one in found
        },
    }


def log_ratios(times: Iterable[tuple[str, float, float]]) -> dict[str, list[float]]:
    """ln(measured / predicted) of pairs of times by what bounds them, from the least on."""
    found: dict[str, list[float]] = {}
    for regime, measured, predicted in sorted(times, key=lambda time: time[1] / time[2]):
        found.setdefault(regime, []).append(round(float(np.log(measured / predicted)), 3))
    return found


def _measured(rows: FrequencyTable, name: str) -> tuple[float, float]:
    frame = rows.frame
    chosen = frame[(frame["benchmark"] == name) & frame["is_reference"]]
    if len(chosen) != 1:
        raise DataError(f"{rows.name} has {len(chosen)} reference rows of {name}", file=rows.name)
    return float(chosen["time_seconds"].iloc[0]), float(chosen["power_watts"].iloc[0])


def by_hand(activity: Mapping[str, float], gpu: GpuProfile, clocks: ClockPair) -> float:
    """The roofline of distinct bytes and of operations at their peak rates, in seconds."""
    share = clocks.memory_mhz / gpu.memory_mhz
    lanes = gpu.sm_count * clocks.core_hz / WARP_SIZE
    return max(
        activity["footprint_bytes"] / (gpu.bandwidth_bytes_per_second * share),
        activity["fma_pipe_instructions"] / (lanes * gpu.fp32_lanes),
        activity["fp64_instructions"] / (lanes * gpu.fp64_lanes),
    )


def percent(predicted: Sequence[float] | Floats, measured: Sequence[float] | Floats) -> Floats:
    """Absolute errors in percent of what was measured."""
    found: Floats = np.abs(np.asarray(predicted) / np.asarray(measured) - 1) * 100
    return found


def others_median(values: Sequence[float] | Floats) -> Floats:
    """For each value, the median of the others (geometric between two)."""
    logs = np.log(np.asarray(values))
    return np.exp([np.median(np.delete(logs, place)) for place in range(logs.size)])


def tables(gpu: str, found: Sequence[Outcome]) -> str:
    """Errors by program, and their mean and median beside what needs no model."""
    seconds = np.array([one.measured_seconds for one in found])
    watts = np.array([one.measured_watts for one in found])
    by_hand = np.array([one.by_hand_seconds for one in found])
    ours = percent([one.seconds for one in found], seconds)
    power = percent([one.watts for one in found], watts)
    hand = percent(by_hand * others_median(seconds / by_hand), seconds)
    nothing = percent(others_median(seconds), seconds)
    usual = percent(others_median(watts), watts)
    titles = (
        "program", "measured ms", "predicted ms", "time error %", "bound by", "in interval",
        "roofline %", "measured W", "predicted W", "power error %", "known work %", "warnings",
    )  # fmt: skip
    lines = [
        [
            one.program, f"{1e3 * one.measured_seconds:.4g}", f"{1e3 * one.seconds:.4g}",
            f"{ours[row]:.1f}", one.bound_by, "yes" if one.inside else "no", f"{hand[row]:.1f}",
            f"{one.measured_watts:.0f}", f"{one.watts:.0f}", f"{power[row]:.1f}",
            f"{100 * one.executed:.0f}", ", ".join(one.warnings),
        ]
        for row, one in enumerate(found)
    ]  # fmt: skip
    errors = {
        "time, as served": ours,
        "time, one constant times bytes over bandwidth or operations over peak": hand,
        "time, the median of the other programs": nothing,
        "power, as served (these programs were in the fit)": power,
        "power, the median of the other programs": usual,
    }
    scores = [[name, f"{e.mean():.1f}", f"{np.median(e):.1f}"] for name, e in errors.items()]
    inside = sum(one.inside for one in found)
    rest = ours[[one.program not in OTHER_DATA for one in found]]
    return (
        f"\n## {gpu}\n\n{table(titles, lines)}\n{table(('', 'mean %', 'median %'), scores)}\n"
        f"{inside} of {len(found)} measured times lie inside the interval. Time without "
        f"{', '.join(OTHER_DATA)}: mean {rest.mean():.1f} %, median {np.median(rest):.1f} %.\n"
    )


NORMS = tuple(
    replace(CONSTANTS, overlap_norm=overlap, sm_norm=sm, unified_norm=unified, queue_norm=queue)
    for overlap in (2.0, 3.0, 4.0)
    for sm in (1.25, 1.5, 2.0, 3.0)
    for unified in (1.25, 1.5, 2.0, 3.0)
    for queue in (1.0, 1.5)
)
"""What the norms of the time model were chosen from."""
OTHER_DATA = ("cfd",)
"""Programs whose measured builds differ between the boards (``end_to_end.toml``): no norm is chosen
by them."""


def with_norms(found: Mapping[str, Sequence[Outcome]]) -> str:
    """Errors with the norms as they are, and as the other programs of all boards choose them."""
    errors = {
        constants: {
            (gpu, one.program): abs(_recombined(one, constants) / one.measured_seconds - 1) * 100
            for gpu, each in found.items()
            for one in each
        }
        for constants in NORMS
    }
    lines, chosen = [], set()
    for gpu, each in found.items():
        without = []
        for left in each:
            best = min(
                NORMS,
                key=lambda constants: np.mean(
                    [
                        error
                        for (_, program), error in errors[constants].items()
                        if program not in (left.program, *OTHER_DATA)
                    ]
                ),
            )
            chosen.add((best.overlap_norm, best.sm_norm, best.unified_norm, best.queue_norm))
            without.append(errors[best][gpu, left.program])
        served = [errors[CONSTANTS][gpu, one.program] for one in each]
        rows = (served, without)
        lines.append([gpu, *(f"{np.mean(row):.1f} ({np.median(row):.1f})" for row in rows)])
    titles = ("GPU", "as served, %", "norms chosen without the program, %")
    pairs = "; ".join(", ".join(f"{norm:g}" for norm in norms) for norms in sorted(chosen))
    return f"\n## Norms left out\n\n{table(titles, lines)}\nChosen: {pairs}\n"


def _recombined(one: Outcome, constants: Constants) -> float:
    parts = dict(one.parts)
    return parts.pop("launch") + combined_seconds(parts, constants)


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Run the command; the exit status. Raises DataError."""
    parser = parser_of("end-to-end", __doc__)
    parser.add_argument("--gpu", choices=(*CAMPAIGNS, *SWEPT), action="append")
    parser.add_argument("--without-hints", action="store_true", help="lengths of buffers alone")
    parser.add_argument("--write", action="store_true", help=f"figures into {RESULTS.name}")
    options = parser.parse_args(arguments)
    chosen = programs(hints=not options.without_hints)
    boards = options.gpu or (*CAMPAIGNS, *SWEPT)
    figures: dict[str, Any] = {}
    asked: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        for gpu in boards:
            if gpu in SWEPT:
                leave_out(predictor, gpu)
                points = sweep(predictor, gpu)
                figures[gpu] = sweep_score(points)
                write(sweep_table(gpu, points))
                continue
            asked[gpu] = found = outcomes(predictor, gpu, chosen)
            figures[gpu] = program_score(found)
            write(tables(gpu, found))
    if asked:
        write(with_norms(asked))
    if options.write:
        before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps({**before, **figures}, indent=2) + "\n", encoding="utf-8")
    return 0
