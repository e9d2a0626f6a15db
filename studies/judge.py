"""Pairs of variants of one kernel: how often ``wattcast judge`` is right, and how sure it may be.

    python -m studies judge                       what was predicted before, or is missing
    python -m studies judge --write               also the spread that the product ships

Variants are seeded configurations of the public tuning spaces (``studies counters`` tells them
and where their PTX lies), predicted as users ask. Pairs are drawn of each space alike, until they
are ``MOST_PAIRS`` together; which side is the candidate is drawn too. Every figure of a space comes
from a spread fitted to the other kernels: the three convolutions are one kernel.

ln(measured ratio) is taken to follow Student's distribution with two degrees of freedom around
ln(predicted ratio). Its scale is hypot(noise, mix * d, slope * ln(predicted ratio)): d is how far
both sides lie apart in the shares of their time that each resource would need alone (Euclidean),
noise that of configurations whose code is the same. Mix and slope are chosen by likelihood, each
kernel weighing the same; that it is d, and these tails, was chosen with all spaces in sight.
Energy has no public pairs of variants with code: the sweeps of multiply-adds on
A100 and A40 (``studies end-to-end``) stand in, one kernel with more and more work. Of programs that
were measured at many clocks, pairs of one program at two of them are judged too; the power model
was fitted to boards and programs of these (``studies physical`` has the errors with them left out),
their times were fitted to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import t as student

from studies import parser_of
from studies.card_tables import table
from studies.counters import SEED, ask, sample, spaces
from studies.data.activity_tables import TABLE_CONSTANTS, read_activity_table
from studies.end_to_end import shares_of, sweep
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError
from wattcast.features.launch import WARP_SIZE
from wattcast.models.power.physical import WorkAtTime
from wattcast.models.time.bottleneck import predicted_seconds, resource_seconds
from wattcast.predictor import Predictor
from wattcast.predictor import compare as use_case

Floats = NDArray[np.float64]

MOST_PAIRS = 50_000
SURE = (0.05, 0.95)
"""Probabilities between which a pair is measured."""
BINS = 10
DIFFERENT = 0.2
"""Pairs that differ by so much have to get the right sign."""
BOARDS = ("a100-sxm4-40gb", "a40")
CLOCKED = ("gtx-1080-ti", "quadro-rtx-8000", "tesla-p100", "tesla-v100")
"""Boards whose programs have counts and measurements at many clocks (``activity`` of the data)."""
START, BOUNDS = (0.3, 0.05), ((-7.0, 0.0), (-7.0, 0.0))
"""Mix and slope where a fit starts, and logarithms between which it looks."""
STUDENT = student(2)
UNUSED = {
    "convolution_2080ti": ("PADDING", None),
    "convolution_titan_rtx": ("use_padding", "block_size_x"),
}
"""Parameters that code does not use, where the other is a multiple of 32 (the kernels' sources)."""
FILE = Path(use_case.__file__).with_name("judge.toml")


class Pairs(NamedTuple):
    """Logarithms of ratios, candidate over reference, and how far the sides lie ``apart``: ``[n]``
    each."""

    predicted: Floats
    measured: Floats
    apart: Floats

    def together(self, other: Pairs) -> Pairs:
        """Both."""
        return Pairs(*(np.concatenate(each) for each in zip(self, other, strict=True)))


NOWHERE = Pairs(np.zeros(0), np.zeros(0), np.zeros(0))


class Spread(NamedTuple):
    """As the product's, for many pairs."""

    mix: float
    slope: float

    def scale(self, pairs: Pairs) -> Floats:
        """Scales ``[n]``."""
        told = use_case.NOISE**2 + (self.mix * pairs.apart) ** 2
        return np.asarray(np.sqrt(told + (self.slope * pairs.predicted) ** 2))

    def less(self, pairs: Pairs) -> Floats:
        """Probability that the candidate takes less ``[n]``."""
        return np.asarray(STUDENT.cdf(-pairs.predicted / self.scale(pairs)))


class Variant(NamedTuple):
    """Of one configuration: what was predicted and measured, and the shares of its time."""

    predicted: float
    measured: float
    shares: Mapping[str, float]


def pairs_of(variants: Sequence[Variant], most: int) -> Pairs:
    """Pairs of variants, at most so many, each a candidate or a reference by lot."""
    rng = np.random.default_rng(SEED)
    one, other = np.triu_indices(len(variants), 1)
    kept = rng.permutation(one.size)[:most]
    turned = rng.random(kept.size) < 0.5
    old = np.where(turned, one[kept], other[kept])
    new = np.where(turned, other[kept], one[kept])
    names = sorted({name for each in variants for name in each.shares})
    shares = np.array([[each.shares.get(name, 0.0) for name in names] for each in variants])
    logs = np.log([each[:2] for each in variants])
    predicted, measured = (logs[new] - logs[old]).T
    return Pairs(predicted, measured, np.linalg.norm(shares[new] - shares[old], axis=1))


def fitted(groups: Sequence[Pairs]) -> Spread:
    """The likeliest spread, each group of pairs weighing the same."""

    def unlikely(logarithms: Floats) -> float:
        spread, told = Spread(*np.exp(logarithms).tolist()), 0.0
        for each in groups:
            scale = spread.scale(each)
            off = (each.measured - each.predicted) / scale
            told += float(np.mean(np.log(scale) - STUDENT.logpdf(off)))
        return told

    found = minimize(unlikely, np.log(START), method="Nelder-Mead", bounds=BOUNDS)
    return Spread(*np.exp(found.x).tolist())


def calibration(probability: Floats, less: NDArray[np.bool_]) -> list[tuple[int, float, float]]:
    """Pairs, mean probability and share that took less, of each bin that holds any."""
    places = np.minimum((probability * BINS).astype(int), BINS - 1)
    told = []
    for number in range(BINS):
        here = places == number
        if here.any():
            means = float(probability[here].mean()), float(less[here].mean())
            told.append((int(here.sum()), *means))
    return told


def right(pairs: Pairs, where: NDArray[np.bool_]) -> str:
    """Share of some pairs whose sign is right, and how many there are."""
    if not where.any():
        return "-"
    same = np.sign(pairs.predicted) == np.sign(pairs.measured)
    return f"{100 * same[where].mean():.1f} % of {int(where.sum()):,}"


def figures(pairs: Pairs, spread: Spread) -> list[str]:
    """What a table says of a space: signs by what was measured and what was predicted, intervals,
    calibration, and what measuring is saved."""
    apart = np.abs(pairs.measured) >= np.log1p(DIFFERENT)
    told = np.abs(pairs.predicted) >= np.log1p(DIFFERENT)
    less = pairs.measured < 0
    probability = spread.less(pairs)
    held = np.abs(pairs.measured - pairs.predicted) <= use_case.HALF * spread.scale(pairs)
    off = [(abs(mean - share), number) for number, mean, share in calibration(probability, less)]
    unsure = (probability > SURE[0]) & (probability < SURE[1])
    wrong = ~unsure & ((probability > 0.5) != less)
    return [
        f"{pairs.predicted.size:,}", right(pairs, np.ones(told.size, bool)), right(pairs, apart),
        right(pairs, told), f"{100 * held.mean():.0f} %", f"{max(gap for gap, _ in off):.3f}",
        f"{sum(gap * number for gap, number in off) / less.size:.3f}",
        f"{100 * (1 - unsure.mean()):.0f} %", f"{100 * wrong.mean():.1f} %",
    ]  # fmt: skip


TITLES = (
    "left out", "pairs", "sign right", "measured 20 % apart", "predicted 20 % apart",
    "in 90 % interval", "worst bin off", "mean off", "not measured", "of all wrongly so",
)  # fmt: skip
STEPS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, np.inf)


def by_ratio(pairs: Pairs) -> str:
    """How often the sign is right, by how far apart the predictions are."""
    size = np.expm1(np.abs(pairs.predicted))
    rows = [
        [f"{100 * low:.0f} to {100 * high:.0f} %", right(pairs, (size >= low) & (size < high))]
        for low, high in pairwise(STEPS)
    ]
    return table(["predicted difference", "sign right"], rows)


def left_out(groups: Mapping[str, Pairs], kernels: Mapping[str, str]) -> str:
    """Every space by a spread of the other kernels, and all of them together."""
    rows, bins = [], []
    for name, pairs in groups.items():
        kernel = kernels[name]
        spread = fitted([pair for other, pair in groups.items() if kernels[other] != kernel])
        rows.append([name, *figures(pairs, spread)])
        bins.append((spread.less(pairs), pairs.measured < 0))
    probability, less = (np.concatenate(each) for each in zip(*bins, strict=True))
    told = [
        [f"{number:,}", f"{mean:.3f}", f"{share:.3f}", f"{abs(mean - share):.3f}"]
        for number, mean, share in calibration(probability, less)
    ]
    titles = ["pairs", "probability told", "share that took less", "off"]
    return f"{table(TITLES, rows)}\n\nAll of them:\n\n{table(titles, told)}"


def times(variants: int) -> tuple[dict[str, Pairs], dict[str, str]]:
    """Pairs of every space with PTX, and the kernel of each. Raises DataError without PTX."""
    found: dict[str, list[Variant]] = {}
    predictor = Predictor(Settings())
    for name, space in spaces().items():
        rows = space.rows()
        seeded = set(sample(rows, variants)[0])
        told = [
            Variant(one.seconds, one.measured_seconds, shares_of(one.parts, one.seconds))
            for one in ask(predictor, space, rows, variants, kept=True)
            if one.place in seeded
        ]
        if len(told) > 1:
            found[name] = told
    if not found:
        raise DataError("no PTX of any space")
    most = -(-MOST_PAIRS // len(found))
    pairs = {name: pairs_of(each, most) for name, each in found.items()}
    return pairs, {name: spaces()[name].kernel for name in found}


def noise() -> float:
    """Scale of ln(ratio) of configurations whose code is the same: where a parameter is not used.
    It is told by the interval that holds as many as a verdict's. Raises DataError without data."""
    apart: list[float] = []
    for name, (unused, where) in UNUSED.items():
        same: dict[tuple[str, ...], list[float]] = {}
        for row in spaces()[name].rows():
            if where is None or int(row[where]) % WARP_SIZE == 0:
                key = tuple(row[each] for each in spaces()[name].tunables if each != unused)
                same.setdefault(key, []).append(float(np.log(float(row["time_seconds"]))))
        apart += [abs(each[0] - each[1]) for each in same.values() if len(each) == 2]
    return float(np.quantile(apart, use_case.LEVEL)) / use_case.HALF


def energies() -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    """Pairs of the sweeps by board: joules, and watts. Raises DataError without data."""
    predictor = Predictor(Settings())
    joules, watts = {}, {}
    for gpu in BOARDS:
        points = sweep(predictor, gpu)
        power = [Variant(p.watts, p.measured_watts, p.shares) for p in points]
        joules[gpu] = pairs_of(
            [
                Variant(p.seconds * p.watts, p.measured_seconds * p.measured_watts, p.shares)
                for p in points
            ],
            MOST_PAIRS,
        )
        watts[gpu] = pairs_of(power, MOST_PAIRS)
    return joules, watts


def clocked() -> dict[str, Pairs]:
    """Pairs of one program and input at two clocks by board, joules. Raises DataError without
    data."""
    predictor, found = Predictor(Settings()), {}
    for name in CLOCKED:
        gpu = predictor.gpus.load(name)
        model = predictor.power.physical(gpu, "")
        programs: dict[tuple[str, str], list[Variant]] = {}
        for row in read_activity_table(name):
            seconds = predicted_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS)
            parts = resource_seconds(row.activity, gpu, row.clocks, TABLE_CONSTANTS)
            power = model.predict(WorkAtTime(row.activity, seconds), row.clocks)
            joules = seconds * power.estimate.value, row.time_seconds * row.power_watts
            one = Variant(*joules, shares_of(parts, seconds))
            programs.setdefault(row.label, []).append(one)
        several = [each for each in programs.values() if len(each) > 1]
        most = MOST_PAIRS // len(CLOCKED) // len(several)
        found[name] = _joined([pairs_of(each, most) for each in several])
    return found


def main(arguments: Sequence[str] | None = None, say: Callable[[str], object] = print) -> int:
    """Print the tables; 2 without data or PTX."""
    parser = parser_of("judge", __doc__)
    parser.add_argument("--variants", type=int, default=131, help="of each space at most")
    parser.add_argument("--write", action="store_true", help="the spread of time and energy")
    given = parser.parse_args(arguments)
    try:
        groups, kernels = times(given.variants)
        joules, watts = energies()
        scaled = clocked()
    except DataError as error:
        print(f"judge: {error}", file=sys.stderr)
        return 2
    say(f"## Time, kernels left out\n\n{left_out(groups, kernels)}")
    whole = _joined([NOWHERE, *groups.values()])
    say(f"\n## By predicted difference\n\n{by_ratio(whole)}")
    kinds = {kernel: [p for n, p in groups.items() if kernels[n] == kernel] for kernel in
             dict.fromkeys(kernels.values())}  # fmt: skip
    time = fitted([_joined(each) for each in kinds.values()])
    boards = {gpu: gpu for gpu in joules}
    say(f"\n## Energy of sweeps, the board left out\n\n{left_out(joules, boards)}")
    say("\n## Energy at two clocks, the board left out\n")
    say(left_out(scaled, {gpu: gpu for gpu in scaled}))
    say(f"\n{by_ratio(_joined(list(scaled.values())))}")
    power = fitted(list(watts.values()))
    # Errors of time and of power are taken to be independent: no data tell otherwise.
    energy = Spread(*(float(np.hypot(*each)) for each in zip(time, power, strict=True)))
    for name, one in (("time", time), ("power", power), ("energy", energy)):
        say(f"{name}: mix {one.mix:.3f}, slope {one.slope:.3f}")
    say(f"noise: {noise():.4f}")
    if given.write:
        _write({"time": time, "energy": energy}, whole.predicted.size, sorted(groups))
    return 0


def _joined(pairs: Sequence[Pairs]) -> Pairs:
    first, *rest = pairs
    for each in rest:
        first = first.together(each)
    return first


def _write(spreads: Mapping[str, Spread], pairs: int, names: Sequence[str]) -> None:
    """Into the product, below the comment that stands there."""
    comment = FILE.read_text(encoding="utf-8").partition("# source:")[0]
    told = f"# source: python -m studies judge --write, {pairs:,} pairs of {', '.join(names)};\n"
    told += "# power by the sweeps of multiply-adds on A100 and A40\n"
    for name, one in spreads.items():
        told += f"\n[{name}]\nmix = {one.mix:.4f}\nslope = {one.slope:.4f}\n"
    FILE.write_text(comment + told, encoding="utf-8")
