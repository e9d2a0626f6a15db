"""Chooses the settings of the physical fit inside the training programs.

Whoever chooses by programs he then scores on has seen them. Here every left-out program gets the
settings under which the OTHER programs, left out in turn, come out best: a nested
cross-validation. The settings that ship are chosen the same way over all programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, product

import numpy as np

from wattcast.training.physical.fit import Averaged, Fits, FitSettings, predict, scored_programs
from wattcast.training.physical.rows import Floats

CANDIDATES = tuple(
    FitSettings(micro_weight=micro, counter_weight=counter, ridge=ridge)
    for micro, counter, ridge in product((0.1, 0.3, 1.0), (0.25, 0.5, 1.0), (1.0, 2.0, 4.0))
)
"""Settings tried: the ranges the prototype found good, and a factor beyond on either side."""

SHARE_KEPT = 3
"""The best one in so many candidates are averaged: the very best of near equals is chance."""


@dataclass(frozen=True)
class Choice:
    """Settings chosen over all programs, and for each program over the others."""

    best: Averaged
    without: Mapping[str, Averaged]

    def settings(self, program: str) -> Averaged:
        """Settings for fits that leave ``program`` out."""
        return self.without.get(program, self.best)


def choose(fits: Fits, candidates: Sequence[FitSettings] = CANDIDATES) -> Choice:
    """Settings by the mean error over GPUs with activities as they are served."""
    gpus = [
        gpu_id for gpu_id, table in fits.tables.items() if not table.counted[table.scored].all()
    ]
    programs = sorted({name for gpu_id in gpus for name in scored_programs(fits.tables[gpu_id])})
    errors = np.array([_pair_errors(fits, gpus, programs, each) for each in candidates])
    kept = max(1, len(candidates) // SHARE_KEPT)

    def least(by_program: Floats) -> Averaged:
        order = np.argsort(np.nanmean(by_program, axis=1), kind="stable")
        return tuple(candidates[at] for at in sorted(order[:kept]))

    without = {
        program: least(np.delete(errors[:, at, :], at, axis=1))
        for at, program in enumerate(programs)
    }
    return Choice(least(np.array([np.diag(error) for error in errors])), without)


def _pair_errors(
    fits: Fits, gpus: Sequence[str], programs: Sequence[str], settings: FitSettings
) -> Floats:
    """Error on program q by fits without p and q, ``[p, q]``, mean over the GPUs that ran q."""
    sums, counts = np.zeros((2, len(programs), len(programs)))
    for gpu_id in gpus:
        served = fits.tables[gpu_id].take(fits.tables[gpu_id].scored)
        relevant = set(served.programs)
        rows = [served.programs == name for name in programs]
        for first, second in combinations_with_replacement(range(len(programs)), 2):
            left_out = frozenset({programs[first], programs[second]})
            if not left_out & relevant:
                continue
            weights, voltage = fits.fit(gpu_id, (settings,), left_out)
            wrong = np.abs(predict(served, weights, voltage) / served.watts - 1)
            for into, of in {(first, second), (second, first)}:
                if programs[of] in relevant:
                    sums[into, of] += wrong[rows[of]].mean()
                    counts[into, of] += 1
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


@lru_cache(maxsize=2)
def cached_choice(fits: Fits) -> Choice:
    """``choose`` among ``CANDIDATES``, once for each ``fits``: it takes a minute."""
    return choose(fits)
