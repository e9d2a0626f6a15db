"""Scaling from code alone: the sequence model of Guerreiro et al., and counted tokens beside it.

    python -m studies sequence [--seeds 5] [--epochs 30] [--write models/artifacts]

Both learn from the 140 microbenchmarks of the GTX Titan X (gpuPTXModel) and are scored on 15
applications, which take no part in any fit or choice. What is chosen is chosen on microbenchmarks:
programs made from one source are a family, each family left out in turn. Needs the extra
``sequence`` (PyTorch) unless ``--seeds 0``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from studies.card_tables import table
from studies.data.frequency import SEQUENCES
from studies.fitting.scaling.scores import choice_scores, scale_scores
from studies.papers.guerreiro.applications import PRINTED, REFERENCE, scales
from wattcast.models.cards import (
    FeatureFacts,
    ScaledQuantity,
    ScaleWidth,
    ScalingCard,
    ScalingChoice,
    ScalingErrors,
    ScalingIntervals,
    ScalingScores,
    ScalingTrainingFacts,
    SchemaReference,
    Source,
    sha256_of,
)
from wattcast.models.clocks import ClockPair, CodeModel
from wattcast.models.intervals import conformal_factors
from wattcast.models.papers.scaling.card import SCHEMAS, TOKEN_SCHEMAS, Token, schema_hash
from wattcast.models.papers.scaling.code import (
    CodeParameters,
    CodeScaling,
    Stream,
    TokenForm,
    TokenScaling,
    log_times,
    warp_work,
)
from wattcast.models.papers.scaling.use import Floats
from wattcast.models.store import ONNX_NAME, PARAMETERS_NAME
from wattcast.training.data.datasets import data_root
from wattcast.training.families import library_versions
from wattcast.training.provenance import code_revision, today, write_artifact

TOKENS = ("sequences", "gtx_titan_x_sequences.csv.gz")
CAMPAIGN = "guerreiro_gtx_titan_x"
LONGEST_PERIOD = 40
"""Tokens of a loop body that folding looks for."""

LEVEL = 0.9

Bools = np.ndarray


class Programs(NamedTuple):
    """Programs and what was measured of them: streams of each one's kernels, logarithms of time
    and power over the reference's, ``[n, m, 2]``."""

    names: tuple[str, ...]
    streams: tuple[tuple[Stream, ...], ...]
    logs: Floats
    pairs: tuple[ClockPair, ...]

    @property
    def clocks(self) -> Floats:
        return np.array(self.pairs, dtype=np.float64)

    @property
    def reference(self) -> int:
        return self.pairs.index(REFERENCE)

    def take(self, rows: Bools) -> Programs:
        at = np.flatnonzero(rows)
        return self._replace(
            names=tuple(self.names[one] for one in at),
            streams=tuple(self.streams[one] for one in at),
            logs=self.logs[at],
        )


WIDTHS = (3, 1, 2, 1, 1, 1)
"""Digits of each field of a token in a published code."""


def code_of(token: Token) -> str:
    """Nine digits."""
    return "".join(f"{value:0{width}d}" for value, width in zip(token, WIDTHS, strict=True))


def token_of(code: str) -> Token:
    """The token of nine digits. Raises ValueError for anything else."""
    if len(code) != sum(WIDTHS) or not code.isdecimal():
        raise ValueError(f"{code!r} is no code of a token: nine digits")
    digits = iter(code)
    return Token(*(int("".join(next(digits) for _ in range(width))) for width in WIDTHS))


def folded(codes: Sequence[str]) -> Stream:
    """Tokens of which repeated stretches stand once, with how often: an unrolled loop is folded."""
    numbers = np.unique(np.array(codes), return_inverse=True)[1]
    found, repeats, at = [], [], 0
    while at < len(codes):
        period, times = _longest(numbers[at:])
        found += [token_of(code) for code in codes[at : at + period]]
        repeats += [times] * period
        at += period * times
    return Stream(found, np.array(repeats, dtype=np.float64))


def _longest(rest: np.ndarray) -> tuple[int, int]:
    """(period, times) of the repetition at the start that stands for most tokens."""
    best = (0, 1, 1)
    for period in range(1, min(LONGEST_PERIOD, len(rest) // 2) + 1):
        if not np.array_equal(rest[:period], rest[period : 2 * period]):
            continue
        differs = np.flatnonzero(rest[:-period] != rest[period:])
        times = (int(differs[0]) if len(differs) else len(rest) - period) // period + 1
        if (times - 1) * period > best[0]:
            best = ((times - 1) * period, period, times)
    return best[1:]


@cache
def _read(root: Path) -> Mapping[tuple[str, str], tuple[Stream, ...]]:
    frame = pd.read_csv(root.joinpath(*TOKENS), dtype={"code": str})
    by_kernel = frame.groupby(["kind", "benchmark", "kernel"], sort=True)["code"]
    found: dict[tuple[str, str], tuple[Stream, ...]] = {}
    for key, codes in by_kernel:
        assert isinstance(key, tuple)
        program = str(key[0]), str(key[1])
        found[program] = (*found.get(program, ()), folded(codes.tolist()))
    return found


def programs(kind: str, root: Path | None = None) -> Programs:
    """Microbenchmarks (``micro``; of two kernels the last, the first fills their buffers) or
    applications (``real``; all kernels)."""
    time, power = scales(kind, root)
    kernels = _read(root or data_root())
    names = tuple(str(name) for name in time.index)
    streams = tuple(kernels[kind, name][-1 if kind == "micro" else 0 :] for name in names)
    pairs = tuple(ClockPair(*map(float, pair)) for pair in time.columns.to_list())
    logs = np.log(np.stack([time.to_numpy(), power.to_numpy()], axis=2))
    return Programs(names, streams, logs, pairs)


_FAMILIES = (
    (r"(sp|int|dp)_(add|mul|fma|mad)_\d+", "simple"),
    (r"fadd_(dram|l1d|l2d|shd)_.*|global_l1_hit", "movement"),
    (r".*_asm", "instructions"),
    (r"L2.*|DRAM", "streams"),
    (r"Shared.*|SP|DP|INT", "loops"),
)


def family(benchmark: str) -> str:
    """Microbenchmarks of one source, parameters apart."""
    return next(name for pattern, name in _FAMILIES if re.fullmatch(pattern, benchmark))


# --- counted tokens -------------------------------------------------------------------------------


def fit_tokens(micro: Programs) -> CodeParameters:
    """The form of ``tokens``: least mean error of ln time, every family as one; power by least
    squares on the times that this form tells."""
    kinds = [family(name) for name in micro.names]
    weights = np.array([1 / kinds.count(kind) for kind in kinds])
    weights /= weights.sum()
    work = np.array([warp_work(each[-1]) for each in micro.streams])
    cores = tuple(sorted({pair.core_mhz for pair in micro.pairs}))
    memories = tuple(sorted({pair.memory_mhz for pair in micro.pairs}))
    blank = [[(0.0, 0.0, 0.0)] * len(cores) for _ in memories]
    parameters = CodeParameters(
        gpu="gtx-titan-x",
        campaign=CAMPAIGN,
        reference=REFERENCE,
        core_mhz=cores,
        memory_mhz=memories,
    )

    def form(values: Floats) -> TokenForm:
        l2, memory, order = np.exp(values[:3])
        return TokenForm(
            l2_bytes=l2,
            memory_bytes=memory,
            order=1 + order,
            miss_offset=float(values[3]),
            miss_slope=float(values[4]),
            power=blank,
        )

    def told(values: Floats) -> Floats:
        logs = log_times(form(values), work, parameters, micro.clocks)
        found: Floats = logs - logs[:, [micro.reference]]
        return found

    # An SM of GM200: 568 bytes a clock of L2 and 268.7 GB/s (gtx-titan-x.toml) over 24.
    start = np.array([np.log(14.0), np.log(9.6), 1.0, 0.0, 0.0])

    def loss(values: Floats) -> float:
        error = np.abs(told(values) - micro.logs[:, :, 0]).mean(axis=1)
        return float(weights @ error + 1e-3 * ((values - start) ** 2).sum())

    simplex = np.vstack([start, start + 0.7 * np.eye(5)])
    options = {"maxiter": 400, "xatol": 1e-2, "fatol": 1e-4, "initial_simplex": simplex}
    values = minimize(loss, start, method="Nelder-Mead", options=options).x
    times = told(values)
    slow = [
        micro.pairs.index(ClockPair(REFERENCE.core_mhz, memories[0])),
        micro.pairs.index(ClockPair(cores[0], REFERENCE.memory_mhz)),
    ]
    inputs = np.column_stack([np.ones(len(times)), times[:, slow]])
    square = inputs.T @ (weights[:, None] * inputs) + np.diag([0.0, 0.01, 0.01])
    found = np.linalg.solve(square, inputs.T @ (weights[:, None] * micro.logs[:, :, 1]))
    power = [
        [
            tuple(round(float(each), 6) for each in found[:, micro.pairs.index(pair)])
            for pair in (ClockPair(core, memory) for core in cores)
        ]
        for memory in memories
    ]
    rounded = form(np.round(values, 4)).model_dump() | {"power": power}
    return parameters.model_copy(update={"form": TokenForm.model_validate(rounded)})


# --- both models, told and scored -----------------------------------------------------------------

Fit = Callable[[Programs], CodeScaling]


def told_by(model: CodeScaling, of: Programs) -> Floats:
    """Logarithms of time and power scales, ``[n, m, 2]``."""
    found = [model.scales(streams, of.pairs, REFERENCE) for streams in of.streams]
    factors = np.array([[(one.time, one.power) for one in each] for each in found])
    logs: Floats = np.log(factors)
    return logs


def left_out(micro: Programs, told: Callable[[Programs, Programs], Floats]) -> Floats:
    """Every family told by what learned from the others."""
    kinds = np.array([family(name) for name in micro.names])
    found = np.empty_like(micro.logs)
    for kind in np.unique(kinds):
        found[kinds == kind] = told(micro.take(kinds != kind), micro.take(kinds == kind))
    return found


class Scores(NamedTuple):
    """Mean absolute percentage errors, and energy saved at the pair of least told energy."""

    time: float
    power: float
    energy: float
    saved: float
    oracle: float
    hypervolume: float


def score(told: Floats, of: Programs) -> Scores:
    """Scores of logarithms ``[n, m, 2]``; errors without the reference."""
    shape = told.shape[:2]
    at = np.tile(np.arange(shape[1]) == of.reference, shape[0])
    both = [np.exp(logs).reshape(-1, 2).T for logs in (told, of.logs)]
    three = [np.vstack([each, each.prod(axis=0)]) for each in both]
    errors = [scale_scores(one, other, at).mape_percent for one, other in zip(*three, strict=True)]
    choice = choice_scores(
        (both[0][0], both[0][1]), (both[1][0], both[1][1]), np.repeat(range(shape[0]), shape[1])
    )
    time, power, energy = errors
    return Scores(
        time,
        power,
        energy,
        choice.saved_percent,
        choice.oracle_percent,
        choice.hypervolume_ratio,
    )


def mean_curve(micro: Programs, of: Programs) -> Floats:
    """What knows clocks and nothing of the code: the mean of the microbenchmarks' scales."""
    mean = np.log(np.exp(micro.logs).mean(axis=0))
    told: Floats = np.broadcast_to(mean, (len(of.names), *mean.shape))
    return told


def counted(micro: Programs, of: Programs) -> Floats:
    return told_by(TokenScaling(fit_tokens(micro)), of)


class Network(CodeScaling):
    """A trained network, told by PyTorch: what its ONNX file tells."""

    def __init__(self, micro: Programs, seed: int, epochs: int) -> None:
        from studies.papers.guerreiro.sequence_net import train_sequence

        super().__init__(fit_clocks(micro))
        logs = np.concatenate([micro.logs, micro.logs.sum(axis=2, keepdims=True)], axis=2)
        shares = micro.clocks / np.array(REFERENCE)
        streams = [each[-1] for each in micro.streams]
        self.net = train_sequence(streams, logs, shares, micro.reference, seed, epochs)

    def logs(self, stream: Stream, clocks: Floats) -> Floats:
        from studies.papers.guerreiro.sequence_net import predict_logs

        return predict_logs(self.net, stream, clocks / np.array(REFERENCE))[:, :2]


def fit_clocks(micro: Programs) -> CodeParameters:
    """The clocks of a network, without any parameters of its own."""
    return CodeParameters(
        gpu="gtx-titan-x",
        campaign=CAMPAIGN,
        reference=REFERENCE,
        core_mhz=tuple(sorted({pair.core_mhz for pair in micro.pairs})),
        memory_mhz=tuple(sorted({pair.memory_mhz for pair in micro.pairs})),
    )


# --- artifacts ------------------------------------------------------------------------------------


def write(
    name: CodeModel,
    micro: Programs,
    real: Programs,
    told: Floats,
    write_files: Callable[[Path], None],
    out: Path,
    root: Path | None,
    hyperparameters: Mapping[str, float],
) -> ScalingCard:
    """Write a model and its card: scores and widths on the applications."""
    ours, base = score(told, real), score(mean_curve(micro, real), real)
    quantities: tuple[ScaledQuantity, ...] = ("time", "power", "energy")
    rest = np.arange(len(real.pairs)) != real.reference
    groups = np.repeat(range(len(real.names)), rest.sum())
    three = [np.dstack([each, each.sum(axis=2)]) for each in (told, real.logs)]
    mean = np.broadcast_to(mean_curve(micro, real), real.logs.shape)
    three.append(np.dstack([mean, mean.sum(axis=2)]))

    def errors(at: int, which: int) -> ScalingErrors:
        scores = scale_scores(
            np.exp(three[which][:, :, at]).ravel(),
            np.exp(three[1][:, :, at]).ravel(),
            np.tile(~rest, len(real.names)),
        )
        names = ("mean_points", "median_points", "mape_percent", "close_percent")
        return ScalingErrors(**{one: round(getattr(scores, one), 4) for one in names})

    def width(at: int) -> ScaleWidth:
        residuals = (real.logs - told)[:, rest, at].ravel()
        low, high = conformal_factors(residuals, groups, LEVEL, symmetric=True)
        return ScaleWidth(low_factor=round(low, 4), high_factor=round(high, 4))

    card = ScalingCard(
        gpu="gtx-titan-x",
        target="scaling",
        family=name,
        source=CAMPAIGN,
        version=1,
        feature_schema=SchemaReference(
            id=TOKEN_SCHEMAS[name], sha256=schema_hash(TOKEN_SCHEMAS[name])
        ),
        features=_features(name, micro),
        training=ScalingTrainingFacts(
            rows=micro.logs.shape[0] * micro.logs.shape[1],
            kernels=len(micro.names),
            kernel_groups=len({family(each) for each in micro.names}),
            pairs=len(micro.pairs),
            dropped={},
            noted={},
        ),
        sources=tuple(
            Source(
                repository="https://github.com/hpc-ulisboa/gpuPTXModel",
                path=f"{path[-1]} (uniform columns)",
                sha256=sha256_of((root or data_root()).joinpath(*path)),
                used_sha256=sha256_of((root or data_root()).joinpath(*path)),
                licence="BSD-3-Clause",
            )
            for path in (SEQUENCES, TOKENS)
        ),
        hyperparameters=dict(hyperparameters),
        libraries=library_versions(("scipy",) if name == "tokens" else ("torch",)),
        scores=tuple(
            ScalingScores(
                protocol="micro_to_real",
                quantity=quantity,
                reference_mhz=(REFERENCE.core_mhz, REFERENCE.memory_mhz),
                kernels=len(real.names),
                model=errors(at, 0),
                mean_curve=errors(at, 2),
            )
            for at, quantity in enumerate(quantities)
        ),
        intervals=ScalingIntervals(level=LEVEL, time=width(0), power=width(1)),
        choice=(
            ScalingChoice(
                protocol="micro_to_real",
                saved_percent=round(ours.saved, 4),
                mean_curve_saved_percent=round(base.saved, 4),
                oracle_percent=round(ours.oracle, 4),
                hypervolume_ratio=round(ours.hypervolume, 4),
            ),
        ),
        files={PARAMETERS_NAME: sha256_of(Path(__file__))},
        created=today(),
        code_revision=code_revision(),
    )
    return write_artifact(card, out, write_files)


def _features(name: CodeModel, micro: Programs) -> tuple[FeatureFacts, ...]:
    streams = [each[-1] for each in micro.streams]
    if name == "tokens":
        values = np.array([warp_work(stream) for stream in streams])
    else:
        fields = np.vstack([np.array(stream.tokens) for stream in streams])
        repeats = np.concatenate([np.log2(stream.repeats) for stream in streams])
        values = np.column_stack([fields, repeats])
    names = SCHEMAS[TOKEN_SCHEMAS[name]]
    assert len(names) == values.shape[1], "as the schema names them"
    return tuple(
        FeatureFacts(
            name=each,
            minimum=float(values[:, at].min()),
            maximum=float(values[:, at].max()),
            missing_share=0.0,
        )
        for at, each in enumerate(names)
    )


def write_tokens(micro: Programs, real: Programs, out: Path, root: Path | None) -> None:
    """Fit and write ``tokens``."""
    model = TokenScaling(fit_tokens(micro))
    files = partial(_write_json, model.parameters)
    write("tokens", micro, real, told_by(model, real), files, out, root, {})


def write_sequence(
    network: Network, micro: Programs, real: Programs, out: Path, root: Path | None, epochs: int
) -> None:
    """Write ``sequence``: the network as ONNX, and its clocks."""
    from studies.papers.guerreiro.sequence_net import export_sequence

    def files(folder: Path) -> None:
        _write_json(network.parameters, folder)
        export_sequence(network.net, folder / ONNX_NAME)

    settings = {"seed": 0, "epochs": epochs}
    write("sequence", micro, real, told_by(network, real), files, out, root, settings)


def _write_json(parameters: CodeParameters, folder: Path) -> None:
    text = parameters.model_dump_json(indent=1) + "\n"
    (folder / PARAMETERS_NAME).write_text(text, "utf-8")


# --- the tables -----------------------------------------------------------------------------------


def _row(title: str, kernels: int, scores: Scores) -> list[str]:
    errors = [f"{each:.1f}" for each in scores[:3]]
    return [title, str(kernels), *errors, f"{scores.saved:.1f} of {scores.oracle:.1f}"]


_TITLES = ["model", "applications", "time %", "power %", "energy %", "energy saved %"]


def study(seeds: int, epochs: int, out: Path | None, root: Path | None = None) -> str:
    """Train, write to ``out`` if given, and tell the table of the applications as Markdown."""
    micro, real = programs("micro", root), programs("real", root)
    count = len(real.names)
    rows = [_row("mean curve of microbenchmarks", count, score(mean_curve(micro, real), real))]
    saved = 100 * (1 - np.exp(real.logs.sum(axis=2)))
    best, micro_best = saved.mean(axis=0), np.exp(micro.logs.sum(axis=2)).mean(axis=0)
    oracle = float(saved.max(axis=1).mean())
    for title, at in (
        ("best fixed pair", int(best.argmax())),
        ("fixed pair best for microbenchmarks", int(micro_best.argmin())),
    ):
        pair = real.pairs[at]
        named = f"{title}, {pair.core_mhz:g}/{pair.memory_mhz:g} MHz"
        rows.append([named, str(count), "-", "-", "-", f"{best[at]:.1f} of {oracle:.1f}"])
    rows.append(_row("tokens", count, score(counted(micro, real), real)))
    if out is not None:
        write_tokens(micro, real, out, root)
    found = []
    for seed in range(seeds):
        network = Network(micro, seed, epochs)
        found.append(score(told_by(network, real), real))
        if seed == 0 and out is not None:
            write_sequence(network, micro, real, out, root, epochs)
    if found:
        rows.append(_row("sequence, as served (seed 0)", count, found[0]))
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0)
        cells = [f"{one:.1f} ± {other:.1f}" for one, other in zip(mean, spread, strict=True)]
        title = f"sequence, {len(found)} seeds"
        rows.append([title, str(count), *cells[:3], f"{cells[3]} of {oracle:.1f}"])
    return table(_TITLES, [*rows, PRINTED])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m studies sequence", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="networks to train")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--write", type=Path, help="folder of artifacts to write both models to")
    told = parser.parse_args(arguments)
    print(study(told.seeds, told.epochs, told.write), flush=True)
    return 0
