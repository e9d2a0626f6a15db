"""How well Abe et al.'s regression does on the frequency campaigns: the table of docs/frequency.md.

Leave-benchmark-out (LBO): each kernel predicted by a model fitted on the others; counters are those
at the campaign's reference clocks. Errors are mean absolute percentages over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from studies.clocks.abe_model import HARDENED, AbeModel, AbeSettings, Domain, Quantity, fit_abe
from studies.clocks.scaling_rows import Bools
from studies.data.frequency import NVPROF_COUNTS, read_frequency
from wattcast.models.scaling.use import UNITS, Floats
from wattcast.training.card_tables import table

NVPROF_COUNTERS = (
    *NVPROF_COUNTS,
    "gld_transactions",
    "gst_transactions",
    "tex_cache_transactions",
    "flop_count_dp",
    "flop_count_sp",
    "flop_count_sp_special",
    "inst_integer",
    "inst_executed",
    "cf_executed",
)
"""Counters offered to the selection: memory traffic by level, work by kind."""

PLAIN = AbeSettings()
WITH_CLOCKS = AbeSettings(plain_clocks=True)


@dataclass(frozen=True, eq=False)
class AbeRows:
    """One campaign as the regression takes it: counters ``[n, k]`` at the row's own clocks."""

    label: str
    quantity: Quantity
    names: tuple[str, ...]
    domains: tuple[Domain, ...]
    counters: Floats
    core_mhz: Floats
    memory_mhz: Floats
    target: Floats
    benchmark: np.ndarray
    real: Bools

    def fit(self, rows: Bools, settings: AbeSettings) -> AbeModel:
        """The regression of some rows."""
        return fit_abe(
            self.quantity,
            self.counters[rows],
            self.names,
            self.domains,
            self.core_mhz[rows],
            self.memory_mhz[rows],
            self.target[rows],
            settings,
        )

    def errors(self, model: AbeModel, rows: Bools) -> Floats:
        """Absolute relative errors on some rows."""
        predicted = model.predict(
            self.counters[rows], self.names, self.core_mhz[rows], self.memory_mhz[rows]
        )
        return np.asarray(np.abs(predicted / self.target[rows] - 1))

    def take(self, rows: Bools) -> AbeRows:
        """The chosen rows."""
        return replace(
            self,
            **{
                name: getattr(self, name)[rows]
                for name in ("counters", "core_mhz", "memory_mhz", "target", "benchmark", "real")
            },
        )


def counter_rows(campaign: str, quantity: Quantity) -> AbeRows:
    """A campaign with nvprof's counters: per second for power, in total for time."""
    read = read_frequency(campaign)
    frame = read.frame
    reference = frame[frame["is_reference"]].set_index("kernel")
    totals = reference.loc[frame["kernel"], list(NVPROF_COUNTERS)].to_numpy(float)
    seconds = reference.loc[frame["kernel"], "time_seconds"].to_numpy(float)
    domains: list[Domain] = [
        "memory" if name.startswith("dram") else "core" for name in NVPROF_COUNTERS
    ]
    return AbeRows(
        label=campaign,
        quantity=quantity,
        names=NVPROF_COUNTERS,
        domains=tuple(domains),
        counters=totals / seconds[:, None] if quantity == "power" else totals,
        core_mhz=frame["core_mhz"].to_numpy(float),
        memory_mhz=frame["memory_mhz"].to_numpy(float),
        target=frame["power_watts" if quantity == "power" else "time_seconds"].to_numpy(float),
        benchmark=frame["kernel"].to_numpy(),
        real=(frame["kind"] == "real").to_numpy(),
    )


def use_rows(campaign: str, *, scaled: bool, keep_impossible: bool = False) -> AbeRows:
    """A campaign with utilisations as rates; ``scaled``: rates rise with their unit's clock."""
    read = read_frequency(campaign, keep_impossible=keep_impossible)
    frame = read.frame
    units = [unit for unit in UNITS["utilisation"] if f"u_{unit}" in frame] + ["dram"]
    domains: list[Domain] = ["memory" if unit == "dram" else "core" for unit in units]
    rates = frame[[f"u_{unit}" for unit in units]].to_numpy(float)
    core, memory = frame["core_mhz"].to_numpy(float), frame["memory_mhz"].to_numpy(float)
    if scaled:
        rise = {
            "core": core / read.reference.core_mhz,
            "memory": memory / read.reference.memory_mhz,
        }
        rates = rates * np.column_stack([rise[domain] for domain in domains])
    return AbeRows(
        label=f"{campaign}, {'u f' if scaled else 'u'}",
        quantity="power",
        names=tuple(units),
        domains=tuple(domains),
        counters=rates,
        core_mhz=core,
        memory_mhz=memory,
        target=frame["power_watts"].to_numpy(float),
        benchmark=frame["kernel"].to_numpy(),
        real=(frame["kind"] == "real").to_numpy(),
    )


@dataclass(frozen=True, slots=True)
class AbeScores:
    """Errors in percent and the adjusted R2 of the fit on all rows."""

    label: str
    left_out_percent: float
    in_sample_percent: float
    adjusted_r2: float


def leave_benchmarks_out(rows: AbeRows, settings: AbeSettings) -> AbeScores:
    """Each benchmark predicted by a model of the others."""
    everything = np.ones(len(rows.target), dtype=bool)
    model = rows.fit(everything, settings)
    left_out = [
        rows.errors(rows.fit(rows.benchmark != name, settings), rows.benchmark == name)
        for name in np.unique(rows.benchmark)
    ]
    return AbeScores(
        rows.label,
        float(np.concatenate(left_out).mean() * 100),
        float(rows.errors(model, everything).mean() * 100),
        model.adjusted_r2,
    )


def micro_to_real(rows: AbeRows, settings: AbeSettings) -> AbeScores:
    """Real kernels predicted by a model of the microbenchmarks."""
    model = rows.fit(~rows.real, settings)
    return AbeScores(
        rows.label + ", micro to real",
        float(rows.errors(model, rows.real).mean() * 100),
        float(rows.errors(model, ~rows.real).mean() * 100),
        model.adjusted_r2,
    )


POWER_CAMPAIGNS = (
    "wang_gtx_980_low",
    "wang_gtx_980_high",
    "wang_gtx_1080_ti",
    "wang_tesla_p100",
    "wang_tesla_v100",
)
TIME_CAMPAIGNS = ("wang_gtx_980_low", "wang_gtx_980_high", "wang_gtx_1080_ti")
MICRO_CAMPAIGNS = ("lisboa_titan_xp", "lisboa_titan_v", "lisboa_gtx_980", "lisboa_tesla_k40c")


def cases() -> Iterator[tuple[AbeRows, bool]]:
    """Every line of the table: the rows, and whether it is micro to real rather than LBO."""
    for scaled in (False, True):
        titan_x = use_rows("lisboa_gtx_titan_x", scaled=scaled)
        yield titan_x, True
        yield replace(titan_x.take(titan_x.real), label=f"{titan_x.label}, real"), False
    for campaign in MICRO_CAMPAIGNS:
        yield use_rows(campaign, scaled=False), False
    overflowed = use_rows("lisboa_tesla_k40c", scaled=False, keep_impossible=True)
    yield replace(overflowed, label=f"{overflowed.label}, overflowed counters kept"), False
    for campaign in POWER_CAMPAIGNS:
        yield counter_rows(campaign, "power"), False
    for campaign in TIME_CAMPAIGNS:
        yield counter_rows(campaign, "time"), False


def abe_table(jobs: int = 1) -> str:
    """The table as Markdown: as printed, with plain clocks, and hardened."""
    titles = ["campaign", "quantity", "as printed", "in sample", "adjusted R²", "+ f", "hardened"]
    with ProcessPoolExecutor(jobs) as pool:
        lines = list(pool.map(_line, cases()))
    return table(titles, lines)


def _line(case: tuple[AbeRows, bool]) -> Sequence[str]:
    rows, to_real = case
    score = micro_to_real if to_real else leave_benchmarks_out
    plain, clocks, hard = (score(rows, one) for one in (PLAIN, WITH_CLOCKS, HARDENED))
    return [
        plain.label,
        rows.quantity,
        f"{plain.left_out_percent:.1f}",
        f"{plain.in_sample_percent:.1f}",
        f"{plain.adjusted_r2:.2f}",
        f"{clocks.left_out_percent:.1f}",
        f"{hard.left_out_percent:.1f}",
    ]
