"""The clocks of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattcast.features.diagnostics import Diagnostic
from wattcast.features.gpus import GpuProfile
from wattcast.models.clocks import ClockPair, admitted, default_clocks, is_supported

if TYPE_CHECKING:
    from wattcast.predictor.messages import Clocks


def clocks_of(asked: Clocks | None, gpu: GpuProfile) -> tuple[ClockPair, Sequence[Diagnostic]]:
    """The clocks a request names, or the GPU's default ones. Raises ClockError."""
    if asked is None:
        return default_clocks(gpu), ()
    pair = asked.pair(gpu)
    admitted([pair], gpu)
    if is_supported(pair, gpu):
        return pair, ()
    detail = (
        f"{gpu.id} is not known to run at {pair.core_mhz:g}/{pair.memory_mhz:g} MHz; the "
        "prediction is extrapolated"
    )
    return pair, (Diagnostic("clocks_extrapolated", detail),)
