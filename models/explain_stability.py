"""How far an explanation made with chance says the same again with another seed.

Index of selection: Visani, Bagli, Chesani, Poluzzi and Capuzzo, Statistical stability indices for
LIME, Journal of the Operational Research Society 73 (2022), their Variables Stability Index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, pstdev

from wattcast.features.errors import ModelError

TOP = 5
"""Features that count as the strongest."""


@dataclass(frozen=True, slots=True)
class Stability:
    """Agreement of several explanations of one prediction.

    ``selection``: share of the ``top`` strongest features that two runs have in common, mean over
    all pairs. ``sign_agreement``: over features among the strongest of any run, the share of runs
    that give the sign most of them give. ``spread``: standard deviation of each feature's weight,
    in its unit.
    """

    seeds: int
    top: int
    selection: float
    sign_agreement: float
    spread: Mapping[str, float]


def stability(runs: Sequence[Mapping[str, float]], top: int = TOP) -> Stability:
    """Stability of ``runs``: weights by feature, one mapping for each seed.

    Raises ModelError for fewer than two runs.
    """
    if len(runs) < 2:
        raise ModelError("stability needs at least two seeds")
    chosen = [strongest(run, top) for run in runs]
    common = [
        len(one & other) / max(len(one), len(other), 1) for one, other in combinations(chosen, 2)
    ]
    signs = []
    for name in set().union(*chosen):
        positive = sum(run.get(name, 0.0) > 0 for run in runs)
        negative = sum(run.get(name, 0.0) < 0 for run in runs)
        signs.append(max(positive, negative) / len(runs))
    spread = {name: pstdev([run.get(name, 0.0) for run in runs]) for name in runs[0]}
    return Stability(len(runs), top, fmean(common), fmean(signs) if signs else 1.0, spread)


def strongest(weights: Mapping[str, float], top: int = TOP) -> frozenset[str]:
    """The features of largest absolute weight, without those of none."""
    ordered = sorted(weights, key=lambda name: -abs(weights[name]))
    return frozenset(name for name in ordered[:top] if weights[name])


def signs_agree(
    weights: Mapping[str, float], others: Mapping[str, float], top: int = TOP
) -> list[bool]:
    """Whether each of the strongest features of ``weights`` has the same sign in ``others``."""
    return [weights[name] * others.get(name, 0.0) > 0 for name in strongest(weights, top)]
