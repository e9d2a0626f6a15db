"""A constant shift between two boards of one GPU, as a factor on the watts.

Boards of one product differ by a few percent at the same work (silicon, sensor calibration), and
whole test rigs by more. A factor, not an offset in watts, because intervals and errors here are
on the logarithmic scale, and a sensor's gain multiplies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

LEVEL = 0.95
"""Confidence at which a shift must differ from none to be taken over."""


def board_factor(measured: Floats, reference: Floats, groups: Indices) -> float:
    """Ratio of measured watts ``[n]`` to what another board would draw (``reference``).

    The median over kernel groups of each group's median ratio, so that neither a kernel with many
    launches nor a few outliers decide. 1 where the sign test (distribution-free, by group) cannot
    tell it from none: a factor drawn from noise would only add noise. Rows whose reference is
    not a positive number are left out.
    """
    from scipy.stats import binomtest

    known = np.isfinite(reference) & (reference > 0)
    ratios = np.log(measured[known] / reference[known])
    own = groups[known]
    each = np.array([np.median(ratios[own == group]) for group in np.unique(own)])
    above, below = int(np.sum(each > 0)), int(np.sum(each < 0))
    if not above + below or binomtest(above, above + below).pvalue > 1 - LEVEL:
        return 1.0
    return float(np.exp(np.median(each)))
