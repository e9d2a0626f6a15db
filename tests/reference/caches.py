"""A plain cache simulator: L1 of every SM, one L2, least recently used, and what reaches memory.

Every block of a launch is played, in the order the reference interpreter ran each of its warps.
Blocks are given out to the SMs in turn, as many as may be resident; a new one takes the place of
one that ends. In every round each SM lets one of its warps make its next request, its warps
taking turns; a warp at a barrier waits for the others of its block.

A line is 128 bytes in four sectors of 32, each fetched on its own. L1 holds loads only, is passed
by what says so (``ld.cg``, ``ld.volatile``, ``cp.async.cg``, atomics) and starts empty; stores go
through it. L2 holds loads and stores; a stored sector is written to memory when its line is
replaced and is not fetched before. The launch is played twice: the second time L2 holds what
the first left, and only the second is counted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.reference.machine import Event, run

LINE_BYTES = 128
SECTOR_BYTES = 32
SECTORS_PER_LINE = LINE_BYTES // SECTOR_BYTES
HASH = 0x9E3779B97F4A7C15  # spreads lines over sets (Fibonacci hashing, Knuth volume 3, 6.4)

LOAD, DIRECT_LOAD, STORE, ATOMIC, BARRIER = range(5)


class Request(NamedTuple):
    """A warp's access: the distinct sectors of each of its lines (``line -> mask``)."""

    kind: int
    lines: tuple[tuple[int, int], ...]


Warps = list[list[Request]]


def kind_of(opcode: str) -> int:
    words = opcode.split(".")
    if words[0] in ("atom", "red"):
        return ATOMIC
    if words[0] == "st":
        return STORE
    if any(word in ("cg", "cv", "volatile", "relaxed", "acquire") for word in words):
        return DIRECT_LOAD
    return LOAD


def record(
    ptx: str, entry: str, grid: tuple[int, ...], block: tuple[int, ...],
    arguments: Mapping[str, object], dynamic_shared_bytes: int = 0,
) -> list[Warps]:  # fmt: skip
    """Global memory requests and barriers of every warp of every block."""
    blocks: dict[int, dict[int, list[Request]]] = {}

    def note(event: Event) -> None:
        requests = blocks.setdefault(event.block, {}).setdefault(event.warp, [])
        if not event.touched and "arrive" not in event.opcode:
            requests.append(Request(BARRIER, ()))
        lines: dict[int, int] = {}
        for space, _, address, size in event.touched:
            if space == "global":
                first, last = address // SECTOR_BYTES, (address + size - 1) // SECTOR_BYTES
                for sector in range(first, last + 1):
                    line = sector // SECTORS_PER_LINE
                    lines[line] = lines.get(line, 0) | 1 << sector % SECTORS_PER_LINE
        if lines:
            requests.append(Request(kind_of(event.opcode), tuple(lines.items())))

    run(ptx, entry, grid, block, arguments, dynamic_shared_bytes, on_event=note)
    return [list(warps.values()) for _, warps in sorted(blocks.items())]


class Cache:
    """``ways`` lines in each of ``bytes / 128 / ways`` sets, replaced least recently used."""

    def __init__(self, size_bytes: int, ways: int) -> None:
        lines = max(1, size_bytes // LINE_BYTES)
        self.ways = min(ways, lines)
        self.sets = [OrderedDict[int, list[int]]() for _ in range(max(1, lines // self.ways))]

    def touch(self, line: int) -> tuple[list[int], list[int] | None]:
        """Sectors ``[present, dirty]`` of a line, made the latest; and those of one replaced."""
        held = self.sets[(((line * HASH) & (1 << 64) - 1) >> 40) % len(self.sets)]
        found = held.get(line)
        if found is not None:
            held.move_to_end(line)
            return found, None
        gone = held.popitem(last=False)[1] if len(held) >= self.ways else None
        held[line] = [0, 0]
        return held[line], gone


@dataclass
class Traffic:
    """32-byte sectors past L1, and read from and written to memory."""

    l2_sectors: int = 0
    dram_read_sectors: int = 0
    dram_write_sectors: int = 0


class Gpu(NamedTuple):
    """``resident_blocks`` on each SM at most. Without L1 (``l1_bytes`` 0) all loads pass."""

    sm_count: int
    resident_blocks: int
    l1_bytes: int
    l2_bytes: int
    l1_ways: int = 1 << 30
    l2_ways: int = 16


class _Launch:
    def __init__(self, gpu: Gpu, blocks: list[Warps], l2: Cache) -> None:
        self.gpu, self.blocks, self.l2 = gpu, blocks, l2
        self.traffic = Traffic()

    def play(self) -> Traffic:
        waiting = deque(range(len(self.blocks)))
        running = [_Multiprocessor(self) for _ in range(self.gpu.sm_count)]
        for _ in range(self.gpu.resident_blocks):
            for sm in running:
                if waiting:
                    sm.take(self.blocks[waiting.popleft()])
        while True:
            busy = False
            for sm in running:
                if sm.step() and waiting:
                    sm.take(self.blocks[waiting.popleft()])
                busy |= bool(sm.warps)
            if not busy:
                return self.traffic

    def below(self, kind: int, line: int, mask: int) -> None:
        """Sectors of a line asked of L2."""
        traffic = self.traffic
        traffic.l2_sectors += mask.bit_count()
        held, gone = self.l2.touch(line)
        if gone is not None:
            traffic.dram_write_sectors += gone[1].bit_count()
        if kind != STORE:
            traffic.dram_read_sectors += (mask & ~held[0]).bit_count()
        held[0] |= mask
        if kind in (STORE, ATOMIC):
            held[1] |= mask


class _Warp:
    __slots__ = ("at", "block", "requests", "waits")

    def __init__(self, requests: list[Request], block: list[_Warp]) -> None:
        self.requests, self.block = requests, block
        self.at = 0
        self.waits = False


class _Multiprocessor:
    def __init__(self, launch: _Launch) -> None:
        self.launch = launch
        self.l1 = Cache(launch.gpu.l1_bytes, launch.gpu.l1_ways)
        self.warps: deque[_Warp] = deque()

    def take(self, block: Warps) -> None:
        members: list[_Warp] = []
        members += [_Warp(requests, members) for requests in block if requests]
        self.warps.extend(members)

    def step(self) -> bool:
        """One request of the next warp that can make one; whether a block came to its end."""
        for _ in range(len(self.warps)):
            warp = self.warps.popleft()
            if warp.waits:
                self.warps.append(warp)
                continue
            request = warp.requests[warp.at]
            warp.at += 1
            if request.kind == BARRIER:
                warp.waits = True
            else:
                self.serve(request)
            if warp.at == len(warp.requests):
                warp.block.remove(warp)
            else:
                self.warps.append(warp)
            if all(other.waits for other in warp.block):
                for other in warp.block:
                    other.waits = False
            if request.kind != BARRIER or not warp.block:
                return not warp.block
        return False

    def serve(self, request: Request) -> None:
        for line, mask in request.lines:
            if request.kind != LOAD or not self.launch.gpu.l1_bytes:
                self.launch.below(request.kind, line, mask)
                continue
            held, _ = self.l1.touch(line)
            missing = mask & ~held[0]
            held[0] |= mask
            if missing:
                self.launch.below(LOAD, line, missing)


def simulate(gpu: Gpu, blocks: list[Warps]) -> Traffic:
    """Traffic of a launch that has been run before."""
    l2 = Cache(gpu.l2_bytes, gpu.l2_ways)
    _Launch(gpu, blocks, l2).play()
    return _Launch(gpu, blocks, l2).play()


def distinct_sectors(blocks: list[Warps]) -> int:
    """Sectors that a launch touches at all."""
    touched: dict[int, int] = {}
    for block in blocks:
        for requests in block:
            for request in requests:
                for line, mask in request.lines:
                    touched[line] = touched.get(line, 0) | mask
    return sum(mask.bit_count() for mask in touched.values())
