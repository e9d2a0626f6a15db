"""Applications of the Titan X at 32 clock pairs: the setting of Guerreiro et al., IEEE Access 2019.

    python -m studies applications          from code, as POST /dvfs is asked
    python -m studies applications --boards also public programs on four boards, what is proposed

Ten of the fifteen applications whose times are published were also counted. Each is predicted from
its counters by models fitted without its program: microbenchmarks and the other applications
(``python -m studies clocks`` prints the scores). The authors print scores of their sequence model
for 24 applications, these among them (``python -m studies sequence``).

Fourteen of the fifteen are written anew (``applications.cu``: the algorithms of the suites;
``applications.toml``: launches) and asked of the use case that ``POST /dvfs`` calls; the times of
an application's kernels are added up. The board's power model is fitted without the
program, on any board, and without its like (three products of a matrix and a vector are one
program). Nothing of the time model was fitted to them; what was taken from this board is the time
of one microbenchmark. S3D is left out: 27 kernels of chemistry. Needs the extra ``cuda``.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from studies.card_tables import table
from studies.data.frequency import (
    COUNTED_TOO,
    kernel_group,
    read_frequency,
    read_measured_sequences,
)
from studies.end_to_end import CAMPAIGNS, programs
from studies.fitting.physical.fit import Fits, FitSettings, parameters_of
from studies.fitting.physical.rows import all_rows
from studies.fitting.scaling.protocols import (
    FEW_KERNELS,
    Predictions,
    corrected,
    fit_physical,
    power_rows,
)
from studies.fitting.scaling.rows import TITAN_X, Bools, Floats, ScalingRows, scaling_rows
from studies.fitting.scaling.scores import (
    Scored,
    careful_factors,
    choice_scores,
    one_in_ten,
    scale_scores,
)
from studies.measuring_kernels import target, without_comments
from wattcast.app.settings import Settings
from wattcast.features.cuda import compile_cuda
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.physical import relative_time
from wattcast.models.power.physical import PhysicalParameters
from wattcast.predictor import Predictor
from wattcast.predictor.dvfs import dvfs
from wattcast.predictor.messages.dvfs import DvfsRequest

REFERENCE = ClockPair(1164.0, 3505.0)
MEMORY_MHZ = (810.0, 3505.0)
PRINTED = ["the paper's LSTM", "24", "15.8", "5.4", "13.0", "11.5 of 18.1"]
"""As printed there; |p - m| / m of scaling factors, as all of these."""


def scales(kind: str = "real", root: Path | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Time and power over those at ``REFERENCE``: a row for each application (``real``) or
    microbenchmark (``micro``), a column for each (core, memory) clock."""
    frame = read_measured_sequences(root)
    frame = frame[frame["kind"] == kind]
    wide = [
        frame.pivot(index="benchmark", columns=["core_mhz", "memory_mhz"], values=column)
        for column in ("time_ms", "power_watts")
    ]
    time, power = (each.div(each[tuple(REFERENCE)], axis=0) for each in wide)
    return time, power


def from_counters(root: Path | None = None) -> Scored:
    """The counted applications at all 32 pairs, predicted by models that saw none of their
    programs. Raises DataError for missing data."""
    rows = scaling_rows(TITAN_X, root, reference=REFERENCE, memory_mhz=MEMORY_MHZ)
    timed = np.isfinite(rows.time_scale)
    told = {name: np.full(len(rows), np.nan) for name in ("time", "physical", "hybrid")}
    for group in np.unique(rows.groups[timed]):
        out = rows.groups == group
        for name, values in _fitted(rows, ~out).items():
            told[name][out] = values[out]
    mine = rows.take(timed)
    pairs = list(zip(mine.core_mhz, mine.memory_mhz, strict=True))
    mean = [frame.mean() for frame in scales("micro", root)]
    time, power = (np.array([float(each[pair]) for pair in pairs]) for each in mean)
    measured = scales("real", root)[1]
    of_theirs = [
        float(measured.loc[COUNTED_TOO[str(name)], pair])
        for name, pair in zip(mine.names, pairs, strict=True)
    ]
    fitted = {name: values[timed] for name, values in told.items()}
    return Scored(
        "leave_programs_out",
        Predictions(
            replace(mine, power_scale=np.array(of_theirs)),
            {"mean curve": time, "physical": fitted["time"], "hybrid": fitted["time"]},
            {"mean curve": power, "physical": fitted["physical"], "hybrid": fitted["hybrid"]},
        ),
    )


def _fitted(rows: ScalingRows, train: Bools) -> dict[str, Floats]:
    """Scales of all rows by models of the training rows: time, power, power with trees."""
    fit = fit_physical([rows.take(train)])[0]
    relative = relative_time(fit.time, rows.use, rows.core, rows.memory)
    power = power_rows(rows, fit)
    assert power is not None, "the campaign measured power"
    return {
        "time": relative / relative[rows.reference_rows],
        "physical": power.physical,
        "hybrid": corrected(power, train, FEW_KERNELS),
    }


def _line(
    title: str, count: int, errors: Sequence[float] | None, saved: float, oracle: float
) -> list[str]:
    cells = ["-"] * 3 if errors is None else [f"{error:.1f}" for error in errors]
    return [title, str(count), *cells, f"{saved:.1f} of {oracle:.1f}"]


# --- from code ----------------------------------------------------------------------------------

HERE = Path(__file__).parent
GPU = "gtx-titan-x"


class FromCode(NamedTuple):
    """Scales of time and power at the measured pairs, predicted and measured, ``[n]`` each."""

    time: Floats
    power: Floats
    measured_time: Floats
    measured_power: Floats


@cache
def launches() -> Mapping[str, Any]:
    """``applications.toml``: by application its kernels, and the source if it is another."""
    found = tomllib.loads((HERE / "applications.toml").read_text(encoding="utf-8"))
    return {one["name"]: one for one in found["application"]}


@cache
def _ptx(name: str) -> str:
    text = (HERE / name).read_text(encoding="utf-8")
    return without_comments(compile_cuda(text, target(text)).ptx)


def asked(
    predictor: Predictor, application: str, pairs: Sequence[tuple[float, float]]
) -> tuple[Floats, Floats]:
    """Seconds and watts of an application at (core, memory) clocks, ``[n]`` each: the sum over its
    kernels, and their mean power over time. Raises WattcastError."""
    seconds, joules = np.zeros((2, len(pairs)))
    one = launches()[application]
    for kernel in one["kernel"]:
        launch = {name: kernel[name] for name in ("grid", "block", "arguments")}
        request = {
            "ptx": _ptx(one.get("file", "applications.cu")),
            "kernel": kernel["entry"],
            "gpu": GPU,
            "launch": launch,
            "clocks": [{"core_mhz": core, "memory_mhz": memory} for core, memory in pairs],
            "reference": REFERENCE._asdict(),
        }
        answer = dvfs(predictor, DvfsRequest.model_validate(request))
        found = {(each["core_mhz"], each["memory_mhz"]): each for each in answer["points"]}
        for at, pair in enumerate(pairs):
            time = found[pair]["time"]["seconds"] * kernel.get("times", 1)
            seconds[at] += time
            joules[at] += time * found[pair]["power"]["watts"]
    return seconds, joules / seconds


def power_without(fits: Fits, application: str) -> PhysicalParameters:
    """The board's power model, fitted without a program (and its like) on any board."""
    theirs = {name: each for each, name in COUNTED_TOO.items()}
    program = kernel_group(theirs.get(application, application))
    weights, voltage = fits.fit(GPU, (FitSettings(),), frozenset({program}))
    return parameters_of(fits.tables[GPU], weights, voltage)


def measured_pairs(root: Path | None = None) -> list[tuple[float, float]]:
    """(core, memory) clocks of the campaign, in the order of the columns of ``scales``."""
    index = scales("real", root)[0].columns
    first, second = (index.get_level_values(level).astype(float) for level in (0, 1))
    return list(zip(first.tolist(), second.tolist(), strict=True))


def from_code(root: Path | None = None) -> Iterator[tuple[str, FromCode]]:
    """Every application that was written anew. Raises DataError, CompilerMissingError."""
    time, power = scales("real", root)
    pairs = measured_pairs(root)
    fits = Fits(all_rows())
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        model = predictor.power.physical(load_gpu(GPU))
        for name in launches():
            model.parameters = power_without(fits, name)
            seconds, watts = asked(predictor, name, pairs)
            base = pairs.index((REFERENCE.core_mhz, REFERENCE.memory_mhz))
            mine = (seconds / seconds[base], watts / watts[base])
            yield name, FromCode(*mine, time.loc[name].to_numpy(), power.loc[name].to_numpy())


def code_table(root: Path | None = None) -> str:
    """The table from code, Markdown."""
    found = dict(from_code(root))
    pairs = measured_pairs(root)
    base = np.array([pair == (REFERENCE.core_mhz, REFERENCE.memory_mhz) for pair in pairs])
    count, size = len(found), len(pairs)
    true = tuple(np.concatenate([each[at] for each in found.values()]) for at in (2, 3))
    rows = np.repeat(range(count), size)
    micro = [np.tile(frame.mean().to_numpy(), count) for frame in scales("micro", root)]
    others = [
        np.concatenate([np.mean([found[o][at] for o in found if o != n], axis=0) for n in found])
        for at in (2, 3)
    ]
    ours = [np.concatenate([each[at] for each in found.values()]) for at in (0, 1)]
    lines = []
    for title, told in (
        ("from code, as served", ours),
        ("mean curve of microbenchmarks", micro),
        ("mean curve of the other applications", others),
    ):
        saved = choice_scores((told[0], told[1]), (true[0], true[1]), rows)
        errors = _errors(told, true, np.tile(base, count))
        lines.append(_line(title, count, errors, saved.saved_percent, saved.oracle_percent))
    energy = np.mean([each[2] * each[3] for each in found.values()], axis=0)
    core, memory = pairs[int(np.argmin(energy))]
    oracle = choice_scores((true[0], true[1]), (true[0], true[1]), rows).oracle_percent
    fixed = 100 * (1 - float(energy.min()))
    lines.append(_line(f"best fixed pair, {core:g}/{memory:g} MHz", count, None, fixed, oracle))
    titles = ["model", "applications", "time %", "power %", "energy %", "energy saved %"]
    return table(titles, lines)


BOARDS = {**CAMPAIGNS, "gtx-980": "wang_gtx_980_high"}


def public_programs(gpu: str, root: Path | None = None) -> Iterator[tuple[str, FromCode, Bools]]:
    """The programs of ``studies.end_to_end`` as asked on a board, each left out of its power model,
    and which pair is the reference. Raises DataError."""
    table, fits = read_frequency(BOARDS[gpu], root), Fits(all_rows())
    reference = (table.reference.core_mhz, table.reference.memory_mhz)
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        model = predictor.power.physical(load_gpu(gpu))
        for program in programs():
            group = frozenset({kernel_group(program.name)})
            weights, voltage = fits.fit(gpu, (FitSettings(),), group)
            model.parameters = parameters_of(fits.tables[gpu], weights, voltage)
            mine = table.frame[table.frame["benchmark"] == program.name]
            rows = mine.groupby(["core_mhz", "memory_mhz"])[["time_seconds", "power_watts"]].mean()
            clocks = [{"core_mhz": core, "memory_mhz": memory} for core, memory in rows.index]
            body = {**program.request(gpu), "clocks": clocks}
            answer = dvfs(
                predictor,
                DvfsRequest.model_validate({**body, "reference": table.reference._asdict()}),
            )
            # Points are sorted by clocks, as the groups are.
            told = [[point["scale"][name] for point in answer["points"]] for name in TOLD]
            values, pairs = rows.to_numpy(float).T, [tuple(pair) for pair in rows.index]
            base = np.array([pair == reference for pair in pairs])
            yield program.name, FromCode(*map(np.array, told), *(values / values[:, base])), base


TOLD = ("time", "power")


def boards_table(boards: Sequence[str] = tuple(BOARDS), root: Path | None = None) -> str:
    """Saved and lost by pairs of least predicted energy and by those proposed, by board; the last
    column is ``predictor.dvfs.ONE_IN_TEN``, in the last row ``ANY_BOARD``. Raises DataError,
    CompilerMissingError."""
    base = np.array([pair == tuple(REFERENCE) for pair in measured_pairs(root)])
    asked = {(GPU, name): (one, base) for name, one in from_code(root)} if GPU in boards else {}
    for gpu in set(boards) - {GPU}:
        asked |= {(gpu, name): (one, at) for name, one, at in public_programs(gpu, root)}
    lines: list[list[str]] = []
    pooled: list[tuple[Floats, NDArray[np.str_]]] = []
    for gpu in boards:
        mine = {name: each for (board, name), each in asked.items() if board == gpu}
        sizes = [len(at) for _, at in mine.values()]
        names = np.repeat([*mine], sizes)
        groups = np.array([kernel_group(str(name)) for name in names])
        columns = [
            np.concatenate(each) for each in zip(*(one for one, _ in mine.values()), strict=True)
        ]
        time, power, true_time, true_power = columns
        away = ~np.concatenate([at for _, at in mine.values()])
        errors = np.log(true_time * true_power / (time * power))[away]
        pooled.append((errors, np.char.add(f"{gpu} ", names[away])))
        factors = careful_factors(errors, names[away], groups[away], groups)
        both = (time, power), (true_time, true_power), np.repeat(range(len(mine)), sizes)
        cells = [
            cell
            for one in (choice_scores(*both), choice_scores(*both, factors))
            for cell in (f"{one.oracle_share_percent:.0f} %", f"{one.largest_loss_percent:.1f} %")
        ]
        lines.append([gpu, str(len(mine)), *cells, f"{one_in_ten(errors, names[away]):.3f}"])
    together = [np.concatenate(each) for each in zip(*pooled, strict=True)]
    lines.append(["all", str(len(asked)), *4 * [""], f"{one_in_ten(*together):.3f}"])
    titles = ["board", "programs", "share of the oracle", "largest loss", "proposed: share"]
    return table([*titles, "largest loss", "one in ten"], lines)


def _errors(told: Sequence[Floats], true: Sequence[Floats], base: Bools) -> list[float]:
    """MAPE of time, power and energy, away from the reference."""
    both = [*zip(told, true, strict=True), (told[0] * told[1], true[0] * true[1])]
    return [scale_scores(*each, base).mape_percent for each in both]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 where data are missing."""
    parser = argparse.ArgumentParser("python -m studies applications", description=__doc__)
    parser.add_argument("--boards", nargs="*", help="of public programs too: share and loss")
    options = parser.parse_args(arguments)
    if options.boards is not None:
        print(boards_table(options.boards or (*BOARDS, GPU)))
        return 0
    print(code_table())
    return 0
