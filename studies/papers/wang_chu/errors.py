"""How near Wang and Chu's model comes to times measured over core and memory clocks.

    python -m studies queueing            tables, as Markdown
    python -m studies queueing --write    and spread.csv, for the intervals

Counters come from each kernel's reference pair of clocks alone, and nothing is fitted: predicted
times of all pairs follow from them and the GPU's profile. The data are those of the paper's
authors (``dvfs/wang_*.csv``; docs/frequency.md).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from studies import parser_of
from studies.bottleneck_errors import TimeErrors, time_errors
from studies.card_tables import table
from studies.data.activity_tables import ACTIVITY_GPUS, MeasuredProgram
from studies.papers.wang_chu.forms import (
    CORRECTED,
    PRINTED,
    Reading,
    counters_to_inputs,
    read_case_form,
)
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.intervals import conformal_factors
from wattcast.models.papers.wang_chu.inputs import gpu_parameters, launch_of_activity
from wattcast.models.papers.wang_chu.network import QueueingGpu, QueueingLaunch, network_form
from wattcast.models.time.calibration import ANY_GPU, LEVEL, SPREAD_FILE, Factors
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]


class DataSet(NamedTuple):
    """One measured grid of clocks: its name in the table, its file, its GPU."""

    name: str
    file: str
    gpu: str


DATA_SETS = (
    DataSet("GTX 980, 49 pairs", "wang_gtx_980_icpads49_timeonly.csv", "gtx-980"),
    DataSet("GTX 980 low", "wang_gtx_980_low.csv", "gtx-980"),
    DataSet("GTX 980 high", "wang_gtx_980_high.csv", "gtx-980"),
    DataSet("GTX 1080 Ti", "wang_gtx_1080_ti.csv", "gtx-1080-ti"),
    DataSet("Titan X Pascal", "wang_titan_x_pascal_timeonly.csv", "titan-x-pascal"),
    DataSet("Tesla P100", "wang_tesla_p100.csv", "tesla-p100"),
    DataSet("Tesla V100", "wang_tesla_v100.csv", "tesla-v100"),
)

PROGRAMS: Mapping[str, str] = {
    "backpropBackward": "backprop",
    "backpropForward": "backprop",
    "scanScanExclusiveShared": "scan",
    "scanUniformUpdate": "scan",
}
"""Kernels of one program count as one group where intervals are made."""

REQUESTS = tuple(
    f"{kind}_transactions_per_request" for kind in ("gld", "gst", "shared_load", "shared_store")
)
PIPES = ("flop_count_sp_special", "tex_cache_transactions")

Counters = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Form:
    """A way to predict: the model's ``cycles`` from the counters but ``without`` some.

    ``launch``: with what it costs to start a kernel.
    """

    name: str
    cycles: Callable[[QueueingLaunch, QueueingGpu, ClockPair], float]
    without: tuple[str, ...] = ()
    launch: bool = False

    def inputs(self, counters: Counters, gpu: GpuProfile) -> QueueingLaunch:
        """What the form takes from a kernel's counters."""
        kept = {name: value for name, value in counters.items() if name not in self.without}
        return counters_to_inputs(kept, gpu)

    def seconds(self, launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> float:
        """Predicted time of one pair of clocks."""
        start = gpu.launch_seconds if self.launch else 0.0
        return self.cycles(launch, gpu, clocks) / clocks.core_hz + start


def _case(reading: Reading) -> Callable[[QueueingLaunch, QueueingGpu, ClockPair], float]:
    return lambda launch, gpu, clocks: read_case_form(launch, gpu, clocks, reading).cycles


def _network(launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair) -> float:
    return network_form(launch, gpu, clocks).cycles


FORMS = (
    Form("case form as printed", _case(PRINTED), (*REQUESTS, *PIPES)),
    Form(
        "+ (10b) and (12b) exchanged",
        _case(PRINTED._replace(saturated_by_other_warps=True)),
        (*REQUESTS, *PIPES),
    ),
    Form("+ #Aw in Eq. 11", _case(CORRECTED._replace(latency_of_eq_4=False)), (*REQUESTS, *PIPES)),
    Form("+ Eq. 4 unscaled: case form corrected", _case(CORRECTED), (*REQUESTS, *PIPES)),
    Form("network form", _network, launch=True),
)

FAMILIES: Mapping[str, Form] = {
    "queueing": FORMS[-1],
    "queueing-cases": Form("case form", _case(CORRECTED), launch=True),
}
"""What each family of time models does with measured counters."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Measured and predicted seconds of all rows of a data set, each ``[n]``.

    ``kernels`` and ``programs`` name the kernel and its group; ``reference`` and ``middle`` are
    the positions of the kernel's row at the highest and at the middle pair of clocks.
    """

    kernels: NDArray[np.str_]
    programs: NDArray[np.str_]
    measured: Floats
    predicted: Floats
    reference: NDArray[np.int64]
    middle: NDArray[np.int64]

    def absolute(self) -> Floats:
        """|predicted / measured - 1|."""
        return np.abs(self.predicted / self.measured - 1)

    def scaling(self, base: NDArray[np.int64]) -> Floats:
        """The same of times relative to those at the rows ``base``."""
        ratio = self.predicted / self.measured
        return np.abs(ratio / ratio[base] - 1)


def read_data_set(data: DataSet, root: Path | None = None) -> pd.DataFrame:
    """Rows of a file sorted by kernel and clocks. Raises DataError where it cannot be read."""
    path = (root or data_root()) / "dvfs" / data.file
    try:
        frame = pd.read_csv(path)
    except (OSError, pd.errors.ParserError) as error:
        raise DataError(f"{path.name} cannot be read: {error}", file=path.name) from error
    parts = [name for name in ("benchmark", "args", "kernel") if name in frame]
    texts = frame[parts].astype(str).where(frame[parts].notna(), "")
    frame["kernel_name"] = texts.agg("/".join, axis=1)
    return frame.sort_values(["kernel_name", "core_mhz", "mem_mhz"], ignore_index=True)


def predict(data: DataSet, form: Form, root: Path | None = None) -> Predicted:
    """Predict every row of a data set. Raises DataError for a kernel without its reference row."""
    frame = read_data_set(data, root)
    profile = load_gpu(data.gpu)
    gpu = gpu_parameters(profile)
    middle_core, middle_memory = (
        sorted(frame[name].unique())[frame[name].nunique() // 2] for name in ("core_mhz", "mem_mhz")
    )
    predicted: list[float] = []
    reference: list[int] = []
    middle: list[int] = []
    for name, rows in frame.groupby("kernel_name", sort=True):
        at = rows["core_mhz"].eq(rows["ref_core_mhz"]) & rows["mem_mhz"].eq(rows["ref_mem_mhz"])
        if at.sum() != 1:
            raise DataError(f"{data.file}: {name} has no row at its reference", file=data.file)
        launch = form.inputs(_counters(rows[at].iloc[0]), profile)
        between = rows["core_mhz"].eq(middle_core) & rows["mem_mhz"].eq(middle_memory)
        centre = between if between.any() else at
        reference += [int(rows.index[at][0])] * len(rows)
        middle += [int(rows.index[centre][0])] * len(rows)
        predicted += [
            form.seconds(launch, gpu, ClockPair(float(core), float(memory)))
            for core, memory in zip(rows["core_mhz"], rows["mem_mhz"], strict=True)
        ]
    benchmark = frame["benchmark"].astype(str)
    return Predicted(
        frame["kernel_name"].to_numpy(dtype=str),
        benchmark.replace(dict(PROGRAMS)).to_numpy(dtype=str),
        frame["time_ms"].to_numpy(dtype=np.float64) * 1e-3,
        np.array(predicted),
        np.array(reference),
        np.array(middle),
    )


def _counters(row: pd.Series) -> Counters:
    return {str(name): value for name, value in row.items() if not pd.isna(value)}


# --- tables -----------------------------------------------------------------------------------


def accuracy_table(root: Path | None = None) -> str:
    """Errors of every form with measured counters on every data set, in per cent, as Markdown.

    Mean (median) of the absolute error; of scaling from the reference pair of clocks, which is
    the highest; and the mean of scaling from the middle pair. Raises DataError for missing data.
    """
    lines = [
        [form.name, *(_cell(predict(data, form, root)) for data in DATA_SETS)] for form in FORMS
    ]
    return table(("", *(data.name for data in DATA_SETS)), lines)


def _cell(rows: Predicted) -> str:
    scaling = 100 * float(rows.scaling(rows.middle).mean())
    return f"{_percent(rows.absolute())}; {_percent(rows.scaling(rows.reference))}; {scaling:.1f}"


def _percent(errors: Floats) -> str:
    return f"{100 * float(errors.mean()):.1f} ({100 * float(np.median(errors)):.1f})"


def static_errors(gpu: str, family: str) -> TimeErrors:
    """A family's predictions from estimated activities."""
    form = FAMILIES[family]
    parameters = gpu_parameters(load_gpu(gpu))

    def seconds(row: MeasuredProgram, profile: GpuProfile) -> float:
        launch = launch_of_activity(row.activity, profile)
        cycles = form.cycles(launch, parameters, row.clocks)
        starts = row.activity.kernel_launches * parameters.launch_seconds
        return cycles / row.clocks.core_hz + starts

    return time_errors(gpu, seconds)


# --- intervals -------------------------------------------------------------------------------


class LogErrors(NamedTuple):
    """ln(measured / predicted) of a GPU's rows and the group of each, both ``[n]``."""

    gpu: str
    groups: NDArray[np.str_]
    logarithms: Floats


def interval_factors(root: Path | None = None) -> list[Factors]:
    """Factors that hold a new program's time with probability ``LEVEL``.

    Nothing is fitted, so every program is one left out. A program is a group, once with measured
    counters (all clocks) and once with estimated activities (highest clocks); groups weigh the
    same. ``ANY_GPU`` pools all.
    """
    found = []
    for family in FAMILIES:
        errors = [*_counter_errors(family, root), *_static_log_errors(family)]
        by_gpu: dict[str, list[LogErrors]] = {ANY_GPU: errors}
        for each in errors:
            by_gpu.setdefault(each.gpu, []).append(each)
        found += [_factors(gpu, family, own) for gpu, own in sorted(by_gpu.items())]
    return found


def _counter_errors(family: str, root: Path | None) -> list[LogErrors]:
    found = []
    for data in DATA_SETS:
        rows = predict(data, FAMILIES[family], root)
        found.append(LogErrors(data.gpu, rows.programs, np.log(rows.measured / rows.predicted)))
    return found


def _static_log_errors(family: str) -> list[LogErrors]:
    found = []
    for gpu in ACTIVITY_GPUS:
        errors = static_errors(gpu, family)
        programs = np.array([f"{row.program}, estimated" for row in errors.rows])
        highest = errors.at_reference
        logarithms = np.log(errors.measured / errors.predicted)
        found.append(LogErrors(gpu, programs[highest], logarithms[highest]))
    return found


def _factors(gpu: str, family: str, errors: Sequence[LogErrors]) -> Factors:
    groups = np.concatenate([each.groups for each in errors])
    logarithms = np.concatenate([each.logarithms for each in errors])
    low, high = conformal_factors(logarithms, groups, LEVEL)
    return Factors(gpu, family, low, high, len(np.unique(groups)), len(groups))


def write_factors(factors: Iterable[Factors], path: Path = SPREAD_FILE) -> None:
    """Put ``FAMILIES`` into the table that ``wattcast.models.time.calibration`` reads."""
    others: list[dict[str, str]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            others = [row for row in csv.DictReader(file) if row["family"] not in FAMILIES]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Factors._fields)
        for each in factors:
            width = (f"{each.low_factor:.3f}", f"{each.high_factor:.3f}")
            writer.writerow((each.gpu, each.family, *width, each.groups, each.rows))
        writer.writerows(row.values() for row in others)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("queueing", __doc__)
    parser.add_argument("--write", action="store_true", help=f"also write {SPREAD_FILE.name}")
    options = parser.parse_args(arguments)
    print(accuracy_table())
    if options.write:
        write_factors(interval_factors())
    return 0
