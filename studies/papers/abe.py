"""``python -m studies abe``: Abe et al.'s regression (IPDPS 2014) on the frequency campaigns.

Their GPUs (GTX 285, 460, 480, 680), counters (32 to 108) and raw data are not public: the method is
repeated, their figures stand beside (docs/frequency.md).

Leave-benchmark-out (LBO): each kernel predicted by a model fitted on the others; counters are those
at the campaign's reference clocks. Errors are mean absolute percentages over all rows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from studies import parser_of
from studies.card_tables import table
from studies.data.frequency import NVPROF_COUNTS, read_frequency
from studies.fitting.scaling.rows import Bools
from wattcast.features.errors import ModelError
from wattcast.models.papers.scaling.use import UNITS, Floats

# --- Abe et al.'s unified regression: power and time of a GPU at any clocks --------------------


Quantity = Literal["power", "time"]
Domain = Literal["core", "memory"]
MOST_VARIABLES = 10
"""Section IV A: fifteen or twenty variables hardly improve the adjusted R2."""

_Frozen = ConfigDict(frozen=True, extra="forbid")


class AbeTerm(BaseModel):
    """One variable: a counter with the clock of its domain."""

    model_config = _Frozen

    counter: str
    domain: Domain
    coefficient: float


class AbeModel(BaseModel):
    """A fitted regression: coefficients for clocks in MHz."""

    model_config = _Frozen

    quantity: Quantity
    terms: tuple[AbeTerm, ...]
    intercept: float
    adjusted_r2: float

    def predict(
        self, counters: Floats, names: Sequence[str], core_mhz: Floats, memory_mhz: Floats
    ) -> Floats:
        """Watts or seconds ``[n]`` from counters ``[n, k]`` named by ``names``.

        Rates (power) or totals (time), as the model was fitted on. Raises ModelError where a
        counter the model uses is missing.
        """
        total = np.full(len(core_mhz), self.intercept)
        for term in self.terms:
            clock = core_mhz if term.domain == "core" else memory_mhz
            if term.counter not in names:
                raise ModelError(f"the regression needs the counter {term.counter!r}")
            column = counters[:, list(names).index(term.counter)]
            total += term.coefficient * _with_clock(self.quantity, column, clock)
        return total


def fit_abe(
    quantity: Quantity,
    counters: Floats,
    names: Sequence[str],
    domains: Sequence[Domain],
    core_mhz: Floats,
    memory_mhz: Floats,
    target: Floats,
    most_variables: int = MOST_VARIABLES,
) -> AbeModel:
    """Regression of ``target`` ``[n]`` (watts or seconds) on counters ``[n, k]``.

    ``domains`` says for each counter whether it is a core or a memory event. Raises ModelError
    where no candidate is left.
    """
    clocks = {"core": core_mhz, "memory": memory_mhz}
    usable = np.flatnonzero(counters.any(axis=0)).tolist()
    if not usable:
        raise ModelError("no counter varies enough to regress on")
    columns = [_with_clock(quantity, counters[:, at], clocks[domains[at]]) for at in usable]
    x = np.column_stack(columns)
    chosen, adjusted = _forward(x, target, most_variables)
    coefficients, intercept = _solve(x[:, chosen], target)
    terms = tuple(
        AbeTerm(counter=names[usable[at]], domain=domains[usable[at]], coefficient=float(value))
        for at, value in zip(chosen, coefficients, strict=True)
    )
    return AbeModel(
        quantity=quantity,
        terms=terms,
        intercept=intercept,
        adjusted_r2=adjusted,
    )


def _with_clock(quantity: Quantity, counter: Floats, clock: Floats) -> Floats:
    return counter * clock if quantity == "power" else counter / clock


def _forward(columns: Floats, target: Floats, most: int) -> tuple[list[int], float]:
    """Columns of greatest adjusted R2, added one by one while it rises, and that R2.

    Columns that the chosen ones (nearly) span are passed over.
    """
    n = len(target)
    norms = np.sum(columns**2, axis=0)
    basis = np.full((n, 1), 1 / np.sqrt(n))
    residual = target - basis @ (basis.T @ target)
    total = float(residual @ residual)
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < min(most, n - 2):
        free = columns - basis @ (basis.T @ columns)
        lengths = np.sum(free**2, axis=0)
        gain = np.where(lengths > 1e-12 * norms, (free.T @ residual) ** 2, 0.0)
        gain /= np.maximum(lengths, np.finfo(float).tiny)
        gain[chosen] = 0.0
        at = int(np.argmax(gain))
        left = float(residual @ residual) - float(gain[at])
        adjusted = 1 - (left / (n - len(chosen) - 2)) / (total / (n - 1))
        if gain[at] <= 0 or adjusted <= best:
            break
        chosen.append(at)
        best = adjusted
        direction = free[:, at] / np.sqrt(lengths[at])
        basis = np.column_stack([basis, direction])
        residual = residual - direction * float(direction @ residual)
    return chosen, best


def _solve(x: Floats, target: Floats) -> tuple[Floats, float]:
    """Coefficients and intercept of least squares, on standardised columns."""
    centre, spread, mean = x.mean(axis=0), x.std(axis=0), float(target.mean())
    solution, *_ = np.linalg.lstsq((x - centre) / spread, target - mean, rcond=None)
    coefficients = solution / spread
    return coefficients, mean - float(coefficients @ centre)


# ------------------------------------------------------------------------------------------


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

    def fit(self, rows: Bools) -> AbeModel:
        """The regression of some rows."""
        return fit_abe(
            self.quantity,
            self.counters[rows],
            self.names,
            self.domains,
            self.core_mhz[rows],
            self.memory_mhz[rows],
            self.target[rows],
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


def leave_benchmarks_out(rows: AbeRows) -> AbeScores:
    """Each benchmark predicted by a model of the others."""
    everything = np.ones(len(rows.target), dtype=bool)
    model = rows.fit(everything)
    left_out = [
        rows.errors(rows.fit(rows.benchmark != name), rows.benchmark == name)
        for name in np.unique(rows.benchmark)
    ]
    return AbeScores(
        rows.label,
        float(np.concatenate(left_out).mean() * 100),
        float(rows.errors(model, everything).mean() * 100),
        model.adjusted_r2,
    )


def micro_to_real(rows: AbeRows) -> AbeScores:
    """Real kernels predicted by a model of the microbenchmarks."""
    model = rows.fit(~rows.real)
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
    """The table as Markdown."""
    titles = ["campaign", "quantity", "as printed", "in sample", "adjusted R²"]
    with ProcessPoolExecutor(jobs) as pool:
        lines = list(pool.map(_line, cases()))
    return table(titles, lines)


def _line(case: tuple[AbeRows, bool]) -> Sequence[str]:
    rows, to_real = case
    score = micro_to_real if to_real else leave_benchmarks_out
    plain = score(rows)
    return [
        plain.label,
        rows.quantity,
        f"{plain.left_out_percent:.1f}",
        f"{plain.in_sample_percent:.1f}",
        f"{plain.adjusted_r2:.2f}",
    ]


def best_pairs_table() -> str:
    """Table IV and Figure 4: the measured pair of least energy of each benchmark (core/memory MHz:
    benchmarks) and the energy it saves against the reference."""
    lines = []
    for campaign in POWER_CAMPAIGNS:
        read = read_frequency(campaign)
        frame = read.frame.assign(joules=read.frame["power_watts"] * read.frame["time_seconds"])
        best = frame.loc[frame.groupby("kernel")["joules"].idxmin()]
        pairs = Counter(zip(best["core_mhz"], best["memory_mhz"], strict=True))
        reference = frame[frame["is_reference"]].set_index("kernel")["joules"]
        saved = 1 - best.set_index("kernel")["joules"] / reference
        named = [f"{core:.0f}/{memory:.0f}: {n}" for (core, memory), n in pairs.most_common(3)]
        lines.append(
            [
                campaign,
                f"{read.reference.core_mhz:.0f}/{read.reference.memory_mhz:.0f}",
                str(len(pairs)),
                ", ".join(named),
                f"{saved.mean() * 100:.1f}",
                f"{saved.max() * 100:.1f}",
            ]
        )
    titles = ["campaign", "reference", "pairs that are best", "most often", "saved, %", "at most"]
    return table(titles, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = parser_of("abe", __doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    print(abe_table(options.jobs))
    print(f"Their Table IV saves 0.8, 12.3, 12.1 and 24.4 %:\n\n{best_pairs_table()}")
    return 0
