"""Pairs of variants of one kernel: how often ``wattcast judge`` is right, and how sure it may be.

    python -m studies judge                       what was predicted before, or is missing
    python -m studies judge --variants 100 --write    also the spread that the product ships

Variants are seeded configurations of the public tuning spaces (``studies counters`` tells them
and where their PTX lies), predicted as users ask. Pairs are all of a space, at most so many of
each that the whole is ``MOST_PAIRS``; which side is the candidate is drawn. Every figure of a space
comes from a spread fitted to the other kernels: the three convolutions are one kernel.

ln(measured ratio) is taken to follow a logistic distribution around ln(predicted ratio), whose
scale is hypot(floor, slope * |ln(predicted ratio)|); both are chosen by likelihood, each kernel
weighing the same. Energy has no public pairs of variants with code: the sweeps of multiply-adds on
A100 and A40 (``studies end-to-end``) stand in, one kernel with more and more work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies import parser_of
from studies.card_tables import table
from studies.counters import SEED, folder, sample, spaces
from studies.end_to_end import sweep
from studies.tuning import Forecasts
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError
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
FLOORS = np.geomspace(0.005, 0.4, 45)
SLOPES = np.arange(0.0, 0.81, 0.02)
FILE = Path(use_case.__file__).with_name("judge.toml")


class Pairs(NamedTuple):
    """Logarithms of ratios, candidate over reference: ``[n]`` each."""

    predicted: Floats
    measured: Floats

    def together(self, other: Pairs) -> Pairs:
        """Both."""
        return Pairs(*(np.concatenate(each) for each in zip(self, other, strict=True)))


class Spread(NamedTuple):
    """Scale of the logistic distribution around a predicted logarithm."""

    floor: float
    slope: float

    def scale(self, predicted: Floats) -> Floats:
        """At predicted logarithms ``[n]``."""
        return np.asarray(np.hypot(self.floor, self.slope * predicted))

    def less(self, predicted: Floats) -> Floats:
        """Probability that the candidate takes less ``[n]``."""
        return np.asarray(1 / (1 + np.exp(predicted / self.scale(predicted))))


def pairs_of(predicted: Floats, measured: Floats, most: int) -> Pairs:
    """Pairs of variants, at most so many, each a candidate or a reference by lot."""
    rng = np.random.default_rng(SEED)
    one, other = np.triu_indices(predicted.size, 1)
    kept = rng.permutation(one.size)[:most]
    turned = rng.random(kept.size) < 0.5
    old = np.where(turned, one[kept], other[kept])
    new = np.where(turned, other[kept], one[kept])
    return Pairs(np.log(predicted[new] / predicted[old]), np.log(measured[new] / measured[old]))


def fitted(groups: Sequence[Pairs]) -> Spread:
    """The likeliest spread, each group of pairs weighing the same."""

    def likelihood(spread: Spread) -> float:
        told = 0.0
        for each in groups:
            scale = spread.scale(each.predicted)
            off = np.abs(each.measured - each.predicted) / scale
            told += float(np.mean(-off - np.log(scale) - 2 * np.log1p(np.exp(-off))))
        return told

    tried = product(FLOORS.tolist(), SLOPES.tolist())
    return max((Spread(*each) for each in tried), key=likelihood)


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
    probability = spread.less(pairs.predicted)
    half = spread.scale(pairs.predicted) * np.log((1 + use_case.LEVEL) / (1 - use_case.LEVEL))
    held = np.abs(pairs.measured - pairs.predicted) <= half
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
        bins.append((spread.less(pairs.predicted), pairs.measured < 0))
    probability, less = (np.concatenate(each) for each in zip(*bins, strict=True))
    told = [
        [f"{number:,}", f"{mean:.3f}", f"{share:.3f}", f"{abs(mean - share):.3f}"]
        for number, mean, share in calibration(probability, less)
    ]
    titles = ["pairs", "probability told", "share that took less", "off"]
    return f"{table(TITLES, rows)}\n\nAll of them:\n\n{table(titles, told)}"


def times(variants: int) -> tuple[dict[str, Pairs], dict[str, str]]:
    """Pairs of every space with PTX, and the kernel of each. Raises DataError without PTX."""
    found: dict[str, tuple[Floats, Floats]] = {}
    kernels = {}
    for name, space in spaces().items():
        rows = space.rows()
        made = Forecasts(space, rows, None, kept=True)
        places = [
            place
            for place in sample(rows, len(rows))[0]
            if (folder() / space.ptx(rows[place])).is_file()
        ][:variants]
        told = [(made.seconds(place), float(rows[place]["time_seconds"])) for place in places]
        both = [(one, other) for one, other in told if one is not None]
        if len(both) > 1:
            predicted, measured = np.array(both).T
            found[name], kernels[name] = (predicted, measured), space.kernel
    if not found:
        raise DataError("no PTX of any space")
    most = MOST_PAIRS // len(found)
    return {name: pairs_of(*each, most) for name, each in found.items()}, kernels


def energies() -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    """Pairs of the sweeps by board: joules, and watts. Raises DataError without data."""
    predictor = Predictor(Settings())
    joules, watts = {}, {}
    for gpu in BOARDS:
        points = sweep(predictor, gpu)
        told = np.array(
            [(p.seconds, p.watts, p.measured_seconds, p.measured_watts) for p in points]
        )
        seconds, power, true_seconds, true_power = told.T
        joules[gpu] = pairs_of(seconds * power, true_seconds * true_power, MOST_PAIRS)
        watts[gpu] = pairs_of(power, true_power, MOST_PAIRS)
    return joules, watts


def main(arguments: Sequence[str] | None = None, say: Callable[[str], object] = print) -> int:
    """Print the tables; 2 without data or PTX."""
    parser = parser_of("judge", __doc__)
    parser.add_argument("--variants", type=int, default=130, help="of each space at most")
    parser.add_argument("--write", action="store_true", help="the spread of time and energy")
    given = parser.parse_args(arguments)
    try:
        groups, kernels = times(given.variants)
        joules, watts = energies()
    except DataError as error:
        print(f"judge: {error}", file=sys.stderr)
        return 2
    say(f"## Time, kernels left out\n\n{left_out(groups, kernels)}")
    whole = Pairs(np.zeros(0), np.zeros(0))
    for each in groups.values():
        whole = whole.together(each)
    say(f"\n## By predicted difference\n\n{by_ratio(whole)}")
    kinds = {kernel: [p for n, p in groups.items() if kernels[n] == kernel] for kernel in
             dict.fromkeys(kernels.values())}  # fmt: skip
    time = fitted([_joined(each) for each in kinds.values()])
    boards = {gpu: gpu for gpu in joules}
    say(f"\n## Energy of sweeps, the board left out\n\n{left_out(joules, boards)}")
    power = fitted(list(watts.values()))
    # Errors of time and of power are taken to be independent: no data tell otherwise.
    energy = Spread(*(float(np.hypot(*each)) for each in zip(time, power, strict=True)))
    for name, one in (("time", time), ("power", power), ("energy", energy)):
        say(f"{name}: floor {one.floor:.4f}, slope {one.slope:.2f}")
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
        told += f"\n[{name}]\nfloor = {one.floor:.4f}\nslope = {one.slope:.2f}\n"
    FILE.write_text(comment + told, encoding="utf-8")
