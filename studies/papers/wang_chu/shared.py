"""Wang and Chu's cases with shared memory (Eq. 16 to 21) on measured kernels.

Counters tell neither o, the outer iterations, nor i, the accesses to shared memory in each: the
authors give both by hand. Our analysis of the same kernels' PTX does tell them; everything else
stays as counted. Beside them the i that would make Eq. 21 hit the measured time, o as analysed.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from scipy.optimize import brentq

from studies.card_tables import table
from studies.end_to_end import CAMPAIGNS, Program, programs
from studies.papers.wang_chu.errors import DATA_SETS, read_data_set
from studies.papers.wang_chu.forms import counters_to_inputs
from wattcast.features.analysis import analyse
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.wang_chu.inputs import gpu_parameters, launch_of
from wattcast.models.papers.wang_chu.model import case_form
from wattcast.models.papers.wang_chu.network import QueueingGpu, QueueingLaunch, network_form
from wattcast.predictor.messages.predict import PredictRequest

MOST_ACCESSES = 1e5
"""Accesses of an iteration beyond which no kernel here goes."""


class WithShared(NamedTuple):
    """A kernel that uses shared memory: o and i analysed, seconds over measured of the case form
    without and with them and of the network form, the case, and the i that Eq. 21 would need."""

    program: str
    outer: float
    inner: float
    without: float
    with_shared: float
    case: str
    network: float
    needed: float | None


def shared_cases(gpu: str) -> list[WithShared]:
    """Every program of the manifest that used shared memory on a board, at its reference clocks.
    Raises DataError without data or PTX."""
    profile = load_gpu(gpu)
    parameters = gpu_parameters(profile).gpu
    data = next(one for one in DATA_SETS if one.file == f"{CAMPAIGNS[gpu]}.csv")
    frame = read_data_set(data)
    found = []
    for program in programs():
        rows = frame[frame["benchmark"].astype(str).str.lower() == program.name.lower()]
        rows = rows[
            rows["core_mhz"].eq(rows["ref_core_mhz"]) & rows["mem_mhz"].eq(rows["ref_mem_mhz"])
        ]
        if len(rows) != 1:
            continue
        row = rows.iloc[0]
        counted = counters_to_inputs({str(k): v for k, v in row.items() if v == v}, profile)
        if not counted.shared_transactions or not counted.transactions:
            continue
        clocks = ClockPair(float(row["core_mhz"]), float(row["mem_mhz"]))
        outer = _outer(program, profile, parameters.shared_latency)
        given = replace(
            counted, outer_iterations=outer, inner_iterations=counted.shared_transactions / outer
        )
        measured = float(row["time_ms"]) * 1e-3
        case = case_form(given, parameters, clocks)
        found.append(
            WithShared(
                program.name,
                outer,
                counted.shared_transactions / outer,
                case_form(counted, parameters, clocks).seconds / measured,
                case.seconds / measured,
                case.case,
                network_form(counted, parameters, clocks).seconds / measured,
                needed_accesses(given, parameters, clocks, measured),
            )
        )
    return found


def _outer(program: Program, gpu: GpuProfile, shared_latency: float) -> float:
    request = PredictRequest.model_validate(program.request(gpu.id))
    analysis = analyse(
        read_module(program.ptx.read_text(encoding="utf-8")),
        program.kernel,
        request.launch.launch(),
        gpu,
    )
    outer = launch_of(analysis, gpu, shared_latency).outer_iterations
    assert outer is not None
    return outer


def needed_accesses(
    launch: QueueingLaunch, gpu: QueueingGpu, clocks: ClockPair, seconds: float
) -> float | None:
    """Accesses of an outer iteration under which the case form takes ``seconds``; ``None`` where
    none up to ``MOST_ACCESSES`` does: it jumps from case to case."""

    def beyond(inner: float) -> float:
        return case_form(replace(launch, inner_iterations=inner), gpu, clocks).seconds - seconds

    if beyond(0.0) * beyond(MOST_ACCESSES) > 0:
        return None
    return float(brentq(beyond, 0.0, MOST_ACCESSES))


def shared_table() -> str:
    """All boards as Markdown, and the mean error of each form."""
    titles = ("GPU", "kernel", "o", "i", "cases 9 to 15", "cases 17, 21", "case", "network form",
              "i that Eq. 21 needs")  # fmt: skip
    cases = [(gpu, one) for gpu in CAMPAIGNS for one in shared_cases(gpu)]
    lines = [
        [
            gpu, one.program, f"{one.outer:.3g}", f"{one.inner:.3g}", f"{one.without:.2f}",
            f"{one.with_shared:.2f}", one.case, f"{one.network:.2f}",
            "-" if one.needed is None else f"{one.needed:.3g}",
        ]
        for gpu, one in cases
    ]  # fmt: skip
    errors = [
        f"{fmean(abs(ratio - 1) for ratio in ratios) * 100:.0f} %"
        for ratios in (
            [one.without for _, one in cases],
            [one.with_shared for _, one in cases],
            [one.network for _, one in cases],
        )
    ]
    lines.append(["all", "mean error", "", "", *errors[:2], "", errors[2], ""])
    return table(titles, lines)
