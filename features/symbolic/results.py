"""What the symbolic analysis of one launch tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.counts import Counts
from wattcast.features.errors import AnalysisError, Diagnostic

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

How = Literal["constant", "inferred", "assumed"]


def refused(what: str) -> AnalysisError:
    """The refusal to tell what is not proven."""
    return AnalysisError(f"{what}: analysis auto or executed answers", analysis="symbolic")


@dataclass(frozen=True, slots=True)
class TripInfo:
    """How often a loop is gone round each time it is entered.

    ``how``: ``constant`` follows from the text alone, ``inferred`` from launch and arguments;
    both are exact. Else the numbers say nothing.
    ``count`` is the mean over lanes of executions of the loop's body as the programmer sees
    it; ``mean`` that of its header block per entry, which is one more where the test comes first.
    ``entries``: lanes that enter, over the launch.
    """

    loop: int
    how: How
    count: float
    mean: float
    entries: float

    @property
    def exact(self) -> bool:
        """Whether the counts are exact for the lanes looked at."""
        return self.how != "assumed"


class AccessInfo(NamedTuple):
    """A memory access (of the launch). ``affine``: its address is known exactly.

    ``stride_bytes`` lies between neighbouring lanes (``None``: not one number).
    """

    position: int
    affine: bool
    stride_bytes: int | None
    address: str


class BranchInfo(NamedTuple):
    """A conditional branch: shares of the warps that come to it. ``known``: its condition is."""

    position: int
    taken_warps: float
    other_warps: float
    known: bool


@dataclass(frozen=True, slots=True)
class SampledBlocks:
    """Which blocks were looked at, and what each stands for. ``exact``: all differ in nothing
    that was not looked at (every block, or every kind of block by its affine conditions).
    ``cuts``: along each axis, blocks from which on others behave differently, as far as is known.
    ``drawn``: else, whether they are a sample as large as one that an execution would run."""

    blocks: tuple[int, ...]
    weights: tuple[float, ...]
    launch_blocks: int
    exact: bool
    cuts: tuple[tuple[int, ...], ...]
    drawn: bool = False


@dataclass(frozen=True)
class SymbolicResult:
    """The symbolic analysis of one launch. ``functions`` is keyed by function name.

    ``functions`` and the totals have the names of ``ExecutionResult`` and are the kernel's own,
    as are ``loops``, ``accesses`` and ``branches``. Counts that are not known (``counts_known``,
    ``access_known``) say nothing. ``unproven``: the first thing that is not proven, in one line;
    ``None`` where every count is exact.
    """

    functions: Mapping[str, Counts]
    loops: tuple[TripInfo, ...]
    accesses: tuple[AccessInfo, ...]
    branches: tuple[BranchInfo, ...]
    sampling: SampledBlocks
    diagnostics: tuple[Diagnostic, ...]
    unproven: str | None
    complete: bool
    """No function is called."""

    @property
    def exact(self) -> bool:
        """Whether every decision and every address is known, in every kind of block."""
        return self.unproven is None
