"""Microbenchmarks whose power is asked for: memory bandwidth, and mixes of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wattcast.features.checked import PositiveFloat, PositiveInt, Strict, checked, read_toml
from wattcast.measure.micro import EVENTS, FOLDER, SLOTS, Kind, Maker, count, out, wide
from wattcast.measure.workload import Buffer, Element, Given, Probe, Workload

MOST_STREAMED = 2**31
"""Largest stream over device memory, bytes."""


def _power_of_two(most: int) -> int:
    return 1 << (max(most, 2**16).bit_length() - 1)


def _footprint(make: Maker, level: str) -> int:
    """Bytes a stream walks through: far more than the L2, or a quarter of it at most."""
    board = make.board
    if level == "dram":
        return _power_of_two(min(16 * board.l2_bytes, board.memory_bytes // 4, MOST_STREAMED))
    return _power_of_two(board.l2_bytes // 4)


Event = tuple[str, Element, PositiveFloat]
"""Kernel, element of its operands, rough cycles."""


class _Energy(Strict):
    streams: Mapping[str, tuple[str, str, PositiveInt]]
    events: Mapping[str, Event]
    matrices: Mapping[str, Event]


_ENERGY = checked(_Energy, read_toml(FOLDER / "energy.toml"), "kernels/energy.toml")


def streams(make: Maker) -> Iterator[Workload]:
    """Streams of 16 bytes a thread; those named by FMAs add arithmetic to each load."""
    for name, (kernel, level, moved) in _ENERGY.streams.items():
        blocks, threads = make.shape(make.full_warps)
        whole = 16 * blocks * threads
        if level == "l1":
            kernel = f"read_{make.through_l1}"
            footprint, first, step = 16 * SLOTS, 0, 0
            turns = make.turns(4 * 16 * blocks // make.board.sm_count * threads / 64)
        else:
            footprint, first, step = _footprint(make, level), 16 * threads, whole
            # Device memory: once through, so that the next launch finds its start gone from the L2,
            # and no wrap makes a stream look as if it stayed near its start.
            turns = make.turns(4 * whole / make.board.sm_count / 24)
            if level == "dram":
                turns = max(1, footprint // (4 * whole))
        operations = float(4 * turns * blocks * threads * moved)
        kind: Kind = "bandwidth" if name.startswith("bandwidth") else "energy"
        target = level if kind == "bandwidth" else name.removeprefix("energy.")
        arguments: tuple[Given, ...] = (
            out(blocks * threads, "f32"),
            Buffer(elements=footprint // 4, low=-1.0, high=1.0),
            wide(first), wide(step), wide(footprint - 1), count(turns),
        )  # fmt: skip
        yield make.make(
            name, kernel, arguments,
            Probe(kind=kind, target=target, operations=operations,
                  warps_per_sm=make.full_warps),
            blocks, threads, turns, f"{kernel} over {footprint} bytes in {level}",
        )  # fmt: skip


_SPARSE = (("w1", 1, 1), ("w4", 4, 1), ("half", 0, 2))
"""FMA on part of the board: name, warps an SM (0: all that fit), one of so many SMs busy."""


def _operands(element: Element) -> Buffer:
    elements = 16 * SLOTS * (2 if element == "f16" else 1)
    if element == "u32":
        return Buffer(elements=elements, element=element, low=0.0, high=65535.0)
    return Buffer(elements=elements, element=element, low=-1.0, high=1.0)


def events(make: Maker) -> Iterator[Workload]:
    """One kind of event as often as the board can, and FMA on part of it."""
    plans = [(*one, make.full_warps, 1) for one in _ENERGY.events.items()]
    for part, warps, share in _SPARSE:
        fma = _ENERGY.events["fma.f32"]
        plans.append((f"fma.f32.{part}", fma, warps or make.full_warps, share))
    for name, (kernel, element, cycles), warps, share in plans:
        blocks, threads = make.shape(warps)
        blocks = max(1, blocks // share)
        turns = make.turns(EVENTS * max(cycles * warps, 1))
        results = out(blocks * threads, "u32" if element == "f16" else element)
        yield make.make(
            f"energy.{name}", kernel, (results, _operands(element), count(turns)),
            Probe(kind="energy", target=name, operations=0, warps_per_sm=warps),
            blocks, threads, turns, f"{kernel}, {warps} warps on one of {share} SMs",
        )  # fmt: skip


def shared(make: Maker) -> Iterator[Workload]:
    """Shared memory at full rate, with bank conflicts, and written."""
    blocks, threads = make.shape(make.full_warps)
    plans = [("bandwidth.shared.read", "ld_shared_i4", 1)]
    plans += [(f"energy.shared.stride{n}", "ld_shared_i4", n) for n in (2, 8, 32)]
    plans.append(("energy.shared.write", "st_shared_i4", 1))
    for name, kernel, stride in plans:
        turns = make.turns(EVENTS * make.full_warps * stride)
        kind: Kind = "bandwidth" if name.startswith("bandwidth") else "energy"
        target = "shared" if kind == "bandwidth" else name.removeprefix("energy.")
        yield make.make(
            name, kernel, (out(blocks * threads), count(stride), count(turns)),
            Probe(kind=kind, target=target,
                  operations=float(4 * EVENTS * turns * blocks * threads),
                  warps_per_sm=make.full_warps),
            blocks, threads, turns, f"shared memory, lanes {stride} words apart",
        )  # fmt: skip


def atomics(make: Maker) -> Iterator[Workload]:
    """Reductions in global memory: a word a thread, and few for all; atomics in shared memory."""
    blocks, threads = make.shape(make.full_warps)
    for name, slots in (("apart", 2**16), ("same", 32)):
        turns = make.turns(16 * make.full_warps * (8 if name == "apart" else 64))
        cells = Buffer(elements=slots, element="u32", fill="zeros")
        yield make.make(
            f"energy.red.{name}", "red_global", (cells, count(slots), count(turns)),
            Probe(kind="energy", target=f"red.{name}", operations=0,
                  warps_per_sm=make.full_warps),
            blocks, threads, turns, f"additions to {slots} words of global memory",
        )  # fmt: skip
    turns = make.turns(16 * make.full_warps * 4)
    yield make.make(
        "energy.atom.shared", "atom_shared",
        (out(blocks * threads), count(SLOTS), count(turns)),
        Probe(kind="energy", target="atom.shared", operations=0, warps_per_sm=make.full_warps),
        blocks, threads, turns, "atomic additions to shared memory, a word a thread",
    )  # fmt: skip


_WARPS = 16
"""Warps an SM of matrix kernels: four a scheduler, and registers for their fragments."""


def matrices(make: Maker) -> Iterator[Workload]:
    """Matrix units: one chain in one warp, several in many; power of each type."""
    for kernel, (target, element, cycles) in _ENERGY.matrices.items():
        name, _, number = kernel.rpartition("_i")
        chains = int(number)
        wide_sums = name == "mma_f64"
        a_thread = 32 if name.startswith("wmma") else 8 if wide_sums else 16
        sums: Element = "f64" if wide_sums else "f32" if name != "mma_s8" else "u32"
        operands = {"f16": 16384, "u8": 32768, "f32": 8192, "f64": 2048}[element]
        given = Buffer(
            elements=operands, element=element,
            low=0.0 if element == "u8" else -1.0, high=255.0 if element == "u8" else 1.0,
        )  # fmt: skip
        plans: list[tuple[Kind, int]] = (
            [("throughput", _WARPS)] if chains < 4 else [("energy", _WARPS)]
        )
        if chains == 1:
            plans.append(("latency", 1))
        for kind, warps in plans:
            blocks, threads = (1, 32) if kind == "latency" else make.shape(warps)
            turns = make.turns(16 * max(cycles * warps, 32.0 / chains))
            each = 16.0 * turns
            operations = {"latency": each, "throughput": each * blocks * threads}.get(kind, 0.0)
            label = f"throughput.{target}.i{chains}.w{warps}"
            ids: dict[Kind, str] = {"latency": f"latency.{target}", "throughput": label}
            yield make.make(
                ids.get(kind, f"energy.{target}"), kernel,
                (out(a_thread * blocks * threads, sums), given, count(turns)),
                Probe(kind=kind, target=target, operations=operations, parallelism=chains,
                      warps_per_sm=warps),
                blocks, threads, turns, f"{chains} chains of {target}, {warps} warps an SM",
            )  # fmt: skip
