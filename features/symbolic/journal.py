"""What the walk found, entry by entry, so that a loop tried in vain can be taken back.

Totals are of the launch, or of each launch that is walked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.symbolic.arith import Missing
from wattcast.features.symbolic.each import Amount, Number


class Visit(NamedTuple):
    """A block was executed: launch totals. ``known``: the warp count is not in doubt.
    ``by_warp``: executions of each sampled warp, where blocks are a sample."""

    block: int
    warps: Amount
    lanes: Amount
    known: bool
    by_warp: npt.NDArray[np.float64] | None = None


class Guarded(NamedTuple):
    """A guarded instruction was: lanes whose guard is true."""

    position: int
    lanes: Amount
    known: bool


class Split(NamedTuple):
    """A conditional branch was: warps and lanes that take it, and that do not."""

    position: int
    taken_warps: Amount
    taken_lanes: Amount
    other_warps: Amount
    other_lanes: Amount
    reason: Missing | None


class Touched(NamedTuple):
    """A memory access was: launch totals. ``reason`` tells why the address is not known."""

    position: int
    part: int
    requests: Amount
    sectors: Amount
    transactions: Amount
    stride: Number | None
    reason: Missing | None
    l1_millicycles: Amount = 0.0


class Rounds(NamedTuple):
    """A loop was entered by ``entries`` lanes, which executed its header ``headers`` times.

    ``how``: ``inferred``, ``doubtful`` (lanes differ, and which of them enter is a guess) or
    ``unknown`` (a stand-in).
    """

    loop: int
    entries: Amount
    headers: Amount
    reason: Missing | None
    how: str


Entry = Visit | Guarded | Split | Touched | Rounds
