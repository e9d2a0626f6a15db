"""What executing a kernel tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wattcast.features.counts import Atomics, Counts, Traffic
from wattcast.features.diagnostics import Diagnostic
from wattcast.features.execution.sampling import SamplingPlan

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoopTrips:
    """How often a loop's header was executed per entry, over the sampled threads.

    ``back_edges`` counts coming round again (``mean`` less one per entry). ``entries`` are
    thread entries of the whole launch. ``extrapolated``: iterations were skipped because
    they repeat, or cut off where the budget ended. ``rough``: what they touched of memory is a
    guess, as accesses do not move by whole sectors, or not evenly.
    """

    function: str
    loop: int
    label: str | None
    line: int
    mean: float
    lowest: int
    highest: int
    entries: float
    extrapolated: bool
    rough: bool


@dataclass(frozen=True, slots=True)
class SamplingInfo:
    """What was run. ``relative_standard_error`` is that of the launch's warp executions.

    ``completed`` tells that every sampled block ran to its end. ``effort`` is the work it took, in
    instructions times lanes (``features.effort.Effort``). ``uneven``: blocks do more or less by
    their place, and those that were run stand for others there.
    """

    plan: SamplingPlan
    launch_blocks: int
    relative_standard_error: float
    uneven: bool
    completed: bool
    steps: int
    effort: int


@dataclass(frozen=True)
class ExecutionResult:
    """The executed analysis of one launch. ``functions`` is keyed by function name."""

    functions: Mapping[str, Counts]
    loops: tuple[LoopTrips, ...]
    memory: Traffic
    atomics: Atomics
    sampling: SamplingInfo
    diagnostics: tuple[Diagnostic, ...]
    shared_bytes: int
    lower_bounds: bool = False
    """Cut short outside any loop whose counts could be scaled: what lies behind is missing."""
    carried_out: Mapping[str, Floats] = field(default_factory=dict)
    """By function: executions of each instruction by warps that were really carried out."""
