"""What an address touches that is a sum of multiples: pieces of memory, repeated by strides."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, gcd

from wattcast.features.memory import SECTOR_BYTES


class Box:
    """Pieces of ``extent`` adjacent bytes from ``start`` on, repeated by strides."""

    def __init__(self, start: int, width: float, dims: Iterable[tuple[int, float]]) -> None:
        self.start, self.extent = start, max(1.0, width)
        self.repeats: list[tuple[int, float]] = []
        for stride, count in sorted((abs(s), c) for s, c in dims if s and c > 1):
            inner = self.repeats[-1] if self.repeats else None
            if inner is None and stride <= max(self.extent, SECTOR_BYTES):
                self.extent += stride * (count - 1)
            elif inner is not None and stride % inner[0] == 0 and stride < inner[0] * inner[1]:
                self.repeats[-1] = inner[0], inner[1] + stride // inner[0] * (count - 1)
            else:
                self.repeats.append((stride, count))

    def units(self, unit: int, grain: int = 0) -> float:
        """Distinct units of so many bytes; ``grain``: by what boxes like it are moved."""
        pieces, extent = 1.0, self.extent
        for stride, count in self.repeats:
            if stride < unit and pieces == 1.0:
                extent += stride * (count - 1)
            else:
                pieces *= count
                grain = gcd(grain, stride)
        return pieces * _touched(self.start, extent, unit, gcd(grain, unit))

    def common(self, shift: float, unit: int) -> float:
        """The share of its units that it touches too when moved by some bytes, again and again."""
        share = 1.0
        if not shift:
            return share
        for stride, count in reversed(self.repeats):
            steps = round(shift / stride)
            share *= max(0.0, 1.0 - abs(steps) / count)
            shift -= steps * stride
        if not share or abs(shift) >= self.extent + unit:
            return 0.0
        ours = both = 0.0
        phases = unit // gcd(int(shift), unit) if shift else 1
        for turn in range(phases):
            low = self.start + turn * shift
            first, last = low // unit, (low + self.extent - 1) // unit
            low += shift
            ours += last - first + 1
            both += max(
                0.0, min(last, (low + self.extent - 1) // unit) - max(first, low // unit) + 1
            )
        return share * both / ours


def _touched(start: int, extent: float, unit: int, grain: int) -> float:
    """Units that ``extent`` bytes touch, on average over starts ``grain`` bytes apart."""
    starts = range(start % unit, start % unit + unit, grain or unit)
    return sum((at + ceil(extent) - 1) // unit - at // unit + 1 for at in starts) / len(starts)
