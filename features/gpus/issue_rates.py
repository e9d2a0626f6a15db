"""How fast an SM issues one kind of instruction, and how many warps that takes, as measured."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from wattcast.features.gpus.facts import PositiveFloat, PositiveInt, Strict, Text


class IssueRate(Strict):
    """Peak throughput of one instruction by instruction-level parallelism (thesis Table 3.1).

    ``throughput[i]``: results of an SM per core cycle with ``i + 1`` independent instructions a
    warp (the thesis' TP); ``peak_warps[i]``: the fewest warps of an SM that reach it (its
    peakWarps). What was measured at 1 alone has one entry each.
    """

    unit: Annotated[str, StringConstraints(pattern="^thread/cycle$")]
    source: str
    note: Text | None = None
    throughput: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    peak_warps: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]

    @property
    def problem(self) -> str | None:
        """What cannot hold: unequal numbers of throughputs and peak warps."""
        if len(self.throughput) == len(self.peak_warps):
            return None
        return f"{len(self.throughput)} throughputs and {len(self.peak_warps)} peak warps"
