"""What the symbolic analysis of one launch tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wattcast.features.counts import Counts
from wattcast.features.errors import Diagnostic
from wattcast.features.execution.sampling import SamplingPlan

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

How = Literal["constant", "inferred", "given", "assumed"]


@dataclass(frozen=True, slots=True)
class TripInfo:
    """How often a loop is gone round each time it is entered.

    ``how``: ``constant`` follows from the text alone, ``inferred`` from launch and arguments;
    both are exact. ``given`` and ``assumed`` are the user's or the default trip count where
    neither was possible, for the ``reason`` on ``reason_line`` of the PTX.
    ``count`` is the mean over lanes of executions of the loop's body as the programmer sees
    it; ``mean`` that of its header block per entry, which is one more where the test comes first.
    ``entries``: lanes that enter, over the launch.
    """

    loop: int
    label: str | None
    line: int
    how: How
    count: float
    mean: float
    entries: float
    reason: str | None = None
    reason_line: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the counts are exact for the lanes looked at."""
        return self.how in ("constant", "inferred")


class AccessInfo(NamedTuple):
    """A memory access (of the launch). ``affine``: its address is known exactly.

    ``stride_bytes`` lies between neighbouring lanes (``None``: not one number).
    """

    position: int
    opcode: str
    line: int
    space: str
    affine: bool
    stride_bytes: int | None
    address: str
    reason: str | None = None
    reason_line: int | None = None


class BranchInfo(NamedTuple):
    """A conditional branch: shares of the warps that come to it. ``known``: its condition is."""

    position: int
    line: int
    taken_warps: float
    other_warps: float
    known: bool
    reason: str | None = None
    reason_line: int | None = None


@dataclass(frozen=True, slots=True)
class SampledBlocks:
    """Which blocks were looked at, and what each stands for. ``exact``: all differ in nothing
    that was not looked at (every block, or every kind of block by its affine conditions).
    ``cuts``: along each axis, blocks from which on others behave differently, as far as is known.
    ``drawn``: else, the sample of blocks, as large as one that an execution would run."""

    blocks: tuple[int, ...]
    weights: tuple[float, ...]
    launch_blocks: int
    exact: bool
    cuts: tuple[tuple[int, ...], ...]
    drawn: SamplingPlan | None = None


@dataclass(frozen=True)
class SymbolicResult:
    """The symbolic analysis of one launch. ``functions`` is keyed by function name.

    ``functions`` and the totals have the names of ``ExecutionResult`` and are the kernel's own,
    as are ``loops``, ``accesses`` and ``branches``.
    """

    functions: Mapping[str, Counts]
    loops: tuple[TripInfo, ...]
    accesses: tuple[AccessInfo, ...]
    branches: tuple[BranchInfo, ...]
    sampling: SampledBlocks
    diagnostics: tuple[Diagnostic, ...]
    complete: bool = True
    """No function is called."""
    relative_standard_error: float = 0.0
    """Of the launch's warp executions; 0 where the sampling is exact."""

    @property
    def exact(self) -> bool:
        """Whether every decision and every address is known, in every kind of block, or in as many
        blocks as an execution would run."""
        return (
            self.known
            and (self.sampling.exact or self.sampling.drawn is not None)
            and all(loop.how != "assumed" for loop in self.loops)
            and all(branch.known for branch in self.branches)
            and all(access.affine for access in self.accesses)
        )

    @property
    def known(self) -> bool:
        """Whether no count at all rests on a guess."""
        return self.complete and all(bool(np.all(f.counts_known)) for f in self.functions.values())
