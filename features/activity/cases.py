"""Activity in other cases than the one analysed: other trip counts, other registers.

The executed analysis runs loops as often as the arguments (given or assumed) make it; a trip count
that the user gives, or that stands assumed in the answer, may be another. Counts inside a loop
follow in proportion, and so does what it reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from wattcast.features.attached import attached
from wattcast.features.cfg import ControlFlowGraph
from wattcast.features.counts import Counts
from wattcast.features.isa import classify
from wattcast.features.loops import LoopForest
from wattcast.features.ptx.ir import Body

Floats = npt.NDArray[np.float64]


def loop_factors(
    cfg: ControlFlowGraph,
    forest: LoopForest,
    counted: Mapping[int, float],
    wanted: Sequence[float | None],
) -> Floats:
    """How much more often each instruction runs, ``float64[instructions]``.

    ``counted`` are the trips of the loops (by index) behind the counts at hand, ``wanted`` those
    of the case, ``None`` where the counts are right as they are. Nested loops multiply. A loop
    that was counted with no trips cannot be scaled and stays as it is.
    """
    factors = np.ones(len(cfg.body.instructions))
    of_loop = [1.0] * len(forest.loops)
    for loop in sorted(forest.loops, key=lambda one: one.depth):
        want, have = wanted[loop.index], counted.get(loop.index, 0.0)
        around = of_loop[loop.parent] if loop.parent is not None else 1.0
        known = want is None or have <= 0 or want == have
        of_loop[loop.index] = around if known or want is None else around * (want / have)
    for block in cfg.blocks:
        if (inner := forest.innermost[block.index]) >= 0:
            factors[block.start : block.end] = of_loop[inner]
    return factors


@attached
def _moving(body: Body) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which instructions load, and which store."""
    kinds = [classify(instruction.opcode).category for instruction in body.instructions]
    loaded = np.array([kind in ("load", "copy", "texture") for kind in kinds])
    return loaded, np.array([kind in ("store", "atomic") for kind in kinds])


def traffic_factors(body: Body, counts: Counts, factors: Floats) -> tuple[float, float, float]:
    """What factors for each instruction do to the sectors that a kernel loads and stores, and to
    all its requests; 1 where it does nothing of a kind."""
    loaded, stored = _moving(body)

    def factor(weights: Floats) -> float:
        total = float(weights.sum())
        return float((weights * factors).sum()) / total if total else 1.0

    sectors = counts.sectors
    return factor(sectors * loaded), factor(sectors * stored), factor(counts.requests)
