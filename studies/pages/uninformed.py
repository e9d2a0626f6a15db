"""Predictions that know nothing of the program: what any model has to beat."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def median_of_others(groups: Sequence[str], clocks: Sequence[Hashable], seconds: Floats) -> Floats:
    """For each row the median of what other groups took at its clocks, ``[n]``.

    The median of logarithms, as the error is a ratio. NaN where no other group was measured at
    those clocks.
    """
    return np.exp(_of_others(groups, clocks, np.log(seconds), np.median))


def mean_curve_of_others(
    groups: Sequence[str], clocks: Sequence[Hashable], seconds: Floats, reference: Integers
) -> Floats:
    """For each row the mean factor of other groups between the reference and its clocks, ``[n]``.

    ``reference`` is for each row the position of its kernel's row at the reference clocks. NaN
    where no other group was measured at the clocks.
    """
    return _of_others(groups, clocks, seconds / seconds[reference], np.mean)


def _of_others(
    groups: Sequence[str], clocks: Sequence[Hashable], values: Floats, middle: object
) -> Floats:
    assert callable(middle)
    names = np.asarray(groups)
    at_clocks: dict[Hashable, list[int]] = {}
    for row, pair in enumerate(clocks):
        at_clocks.setdefault(pair, []).append(row)
    found = np.full(len(values), np.nan)
    for rows in at_clocks.values():
        here = np.array(rows)
        for row in rows:
            others = values[here[names[here] != names[row]]]
            if len(others):
                found[row] = middle(others)
    return found
