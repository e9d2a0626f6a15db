"""How far away each level of memory is, and how wide the caches are."""

from __future__ import annotations

from itertools import pairwise

from wattcast.features.gpus.facts import BytesPerCycle, Cycles, Strict


class MemoryTiming(Strict):
    """Unloaded latencies in core cycles and cache bandwidths in bytes a core cycle.

    ``dram_latency``: a global load that misses every cache, at ``core_mhz`` and ``memory_mhz``
    unless the note says otherwise. ``l1_bytes_per_clock`` is per SM, ``l2_bytes_per_clock`` that
    of reads by the whole GPU; the note says whether it was measured or is the design's.
    """

    l1_latency: Cycles | None = None
    l2_latency: Cycles | None = None
    dram_latency: Cycles | None = None
    shared_latency: Cycles | None = None
    l1_bytes_per_clock: BytesPerCycle | None = None
    l2_bytes_per_clock: BytesPerCycle | None = None

    @property
    def problem(self) -> str | None:
        """What cannot hold at once: a cache slower than the level behind it."""
        levels = [
            (name, fact.value)
            for name in ("l1_latency", "l2_latency", "dram_latency")
            if (fact := getattr(self, name)) is not None
        ]
        for (near, cycles), (far, more) in pairwise(levels):
            if cycles >= more:
                return f"memory_timing.{near}: {cycles:g} is not below {far} {more:g}"
        return None
