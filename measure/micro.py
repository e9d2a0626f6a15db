"""The microbenchmarks: every configuration with the exact mix of instructions it executes.

Iterations follow the clock (about ``LAUNCH_SECONDS`` a launch), blocks the SMs, streams the L2.

``LOOP`` and kernels/mixes.toml say what one turn of a kernel's loop executes, as its source does
(kernels/micro*.cu). What stands before and behind the loop comes on top; a test runs every kernel
by the executed analysis and compares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from wattcast.features.activity.memory import READ_ONLY_L1
from wattcast.features.checked import PositiveInt, Strict, checked, read_toml
from wattcast.measure.workload import (
    Board,
    Buffer,
    Element,
    Given,
    Kind,
    Probe,
    Scalar,
    Workload,
)

LOOP: Mapping[str, int] = {"sub.u32": 1, "setp.ne.u32": 1, "bra": 1}
"""What turns the loop."""

EVENTS = 64
"""Operations of one turn of arithmetic and shared memory loops."""

FOLDER = Path(__file__).with_name("kernels")


class _Mixes(Strict):
    chain: Mapping[str, str]
    single: Mapping[str, Mapping[str, PositiveInt]]


_MIXES = checked(_Mixes, read_toml(FOLDER / "mixes.toml"), "mixes.toml")
CHAIN = _MIXES.chain
"""Opcode of kernels ``<target with _>_i<chains>`` that run 64 of one operation a turn."""


def body(kernel: str) -> dict[str, int]:
    """Instructions by full opcode that one turn of a kernel's loop executes, the loop's own three
    left out. Raises KeyError for a kernel without a loop."""
    if kernel in _MIXES.single:
        return dict(_MIXES.single[kernel])
    name, _, _ = kernel.rpartition("_i")
    return {CHAIN[name.replace("_", ".")]: EVENTS}


LAUNCH_SECONDS = 1e-3
"""About what one launch should take: long against its overhead, short against a window."""

MODULES = ("micro", "micro_half", "micro_tensor", "micro_mma")
"""PTX files."""

SLOTS = 1024
"""Threads between two operands of an energy kernel's input: the largest block."""

_KERNEL = re.compile(r"^\.visible \.entry (\w+)\(.*?^\}", re.M | re.S)
_TARGET = re.compile(r"^\.target sm_(\d+)$", re.M)
_STATEMENT = re.compile(r"^\s*(?:@!?[\w%]+\s+)?([a-z][\w.]*)(?:\s[^;]*)?;", re.M)


@lru_cache(maxsize=32)
def ptx_text(module: str) -> str:
    """The committed PTX of a source. Raises OSError."""
    return (FOLDER / f"{module}.ptx").read_text(encoding="utf-8")


@lru_cache(maxsize=32)
def capability(module: str) -> tuple[int, int]:
    """The compute capability that a PTX file needs, its target. Raises OSError."""
    found = _TARGET.search(ptx_text(module))
    assert found is not None
    return divmod(int(found[1]), 10)


@lru_cache(maxsize=1)
def modules() -> dict[str, str]:
    """Which module holds a microbenchmark's kernel."""
    return {name: one for one in MODULES for name in _KERNEL.findall(ptx_text(one))}


@lru_cache(maxsize=256)
def around(kernel: str) -> Counter[str]:
    """Instructions before and behind a kernel's loop, by full opcode; these run once a warp."""
    text = ptx_text(modules()[kernel])
    found = next(one for one in _KERNEL.finditer(text) if one[1] == kernel)[0]
    head, again, rest = found.partition("AGAIN:\n")
    if again:
        _, end, rest = rest.partition("bra AGAIN;")
        if not end:
            raise ValueError(f"the loop of {kernel} has no end")
    return Counter(_STATEMENT.findall(head) + _STATEMENT.findall(rest))


class Maker:
    """Makes the workloads of one board."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.full_warps = board.max_threads_per_sm // 32
        major, minor = board.compute_capability
        self.through_l1 = "nc" if f"{major}.{minor}".startswith(READ_ONLY_L1) else "ca"
        """What ``ld.global`` is followed by where L1 is to answer."""

    def turns(self, cycles: float) -> int:
        """Turns of a loop whose turn takes about so many cycles."""
        return max(2, round(LAUNCH_SECONDS * self.board.core_mhz * 1e6 / cycles))

    def shape(self, warps_per_sm: int) -> tuple[int, int]:
        """Blocks and threads that put so many warps on every SM, in the fewest blocks; one warp
        alone for 0."""
        if not warps_per_sm:
            return 1, 32
        blocks = next(n for n in range(1, 65) if warps_per_sm % n == 0 and warps_per_sm / n <= 32)
        return self.board.sm_count * blocks, 32 * warps_per_sm // blocks

    def make(
        self,
        name: str,
        kernel: str,
        given: tuple[Given, ...],
        shape: tuple[int, int],
        turns: int,
        description: str,
        *,
        kind: Kind,
        target: str,
        each: float = 0,
        parallelism: int = 1,
        warps: int | None = None,
        results: Element | None = "u32",
        results_of_thread: int = 1,
    ) -> Workload:
        """A workload and its mix: what is around the loop once a warp, the loop each turn.

        Kernels take where their ``results`` go (if they keep any), what is ``given``, and the
        turns. ``each`` is what a turn does of what the probe counts: a thread of it, or of a
        latency the whole chain.
        """
        blocks, threads = shape
        everywhere = 1 if "latency" in (kind, target) else blocks * threads
        kept = () if results is None else (out(results_of_thread * blocks * threads, results),)
        around_loop = blocks * -(-threads // 32)
        mix = {opcode: float(around_loop * count) for opcode, count in around(kernel).items()}
        if turns:
            for part in (LOOP, body(kernel)):
                for opcode, count in part.items():
                    mix[opcode] = mix.get(opcode, 0.0) + float(around_loop * turns * count)
        module = modules()[kernel]
        return Workload(
            id=name,
            role="micro",
            family=kernel,
            kernel=kernel,
            ptx=ptx_text(module),
            grid=(blocks, 1, 1),
            block=(threads, 1, 1),
            arguments=(*kept, *given, number(turns)) if turns else (),
            mix=mix,
            probe=Probe(
                kind=kind,
                target=target,
                operations=float(each * max(turns, 1) * everywhere),
                parallelism=parallelism,
                warps_per_sm=warps,
            ),
            minimum_capability=capability(module),
            description=description,
        )

    def latency(
        self,
        target: str,
        kernel: str,
        given: tuple[Given, ...],
        operations: int,
        cycles: float,
        description: str,
        *,
        name: str = "",
        threads: int = 32,
        results: Element = "u32",
    ) -> Workload:
        """A chain of ``operations`` a turn, of about so many ``cycles``, in one warp or less."""
        return self.make(
            name or f"latency.{target}", kernel, given, (1, threads),
            self.turns(operations * cycles), description,
            kind="latency", target=target, each=operations, warps=1, results=results,
        )  # fmt: skip


def element_of(target: str) -> Element:
    """What a kernel's chains are made of, by the type in its target."""
    if target.endswith(".f64"):
        return "f64"
    return "f32" if target.endswith(".f32") else "u32"


def out(elements: int, element: Element = "u32") -> Buffer:
    """Where results are kept."""
    return Buffer(elements=elements, element=element, fill="zeros")


def number(value: int, element: Literal["u32", "u64"] = "u32") -> Scalar:
    """A whole number that a kernel is given."""
    return Scalar(element=element, value=value)


# Rough cycles of one operation, only there to make launches about equally long.
_CYCLES = {"fma.f64": 16, "ex2.f32": 16, "div.f32": 250, "shfl.b32": 24, "ld.shared": 28}

_WHOLE = (number(12345), number(678))
"""Operands of integer chains; any others would do."""


def arithmetic(make: Maker, target: str, chains: int, warps: int) -> Workload:
    """Dependent chains of one operation: in one warp for its latency (``warps`` 0), in many for
    its throughput."""
    kernel = f"{target.replace('.', '_')}_i{chains}"
    element = element_of(target)
    cycles = _CYCLES.get(target, 6)
    given: tuple[Given, ...] = _WHOLE
    if target == "ld.shared":
        given = (number(1),)
    elif element != "u32":
        real: Literal["f32", "f64"] = "f64" if element == "f64" else "f32"
        given = tuple(Scalar(element=real, value=value) for value in (0.999, 0.001))
    if not warps:
        said, of = f"one chain of {target} in one warp", target.replace("ld.shared", "shared")
        return make.latency(
            of, kernel, given, EVENTS, cycles, said, name=f"latency.{target}", results=element
        )
    label = "max" if warps == make.full_warps else str(warps)
    return make.make(
        f"throughput.{target}.i{chains}.w{label}", kernel, given, make.shape(warps),
        make.turns(EVENTS * max(cycles / chains, cycles * warps / 32)),
        f"{chains} chains of {target}, {warps} warps an SM",
        kind="throughput", target=target, each=EVENTS, parallelism=chains, warps=warps,
        results=element,
    )  # fmt: skip


def latencies(make: Maker) -> Iterator[Workload]:
    """Arithmetic, shared memory without bank conflicts."""
    for target in (*CHAIN, "ld.shared"):
        yield arithmetic(make, target, 1, 0)


CHASES = (
    *(("ca", 32, 1024 * k) for k in (4, 16, 32, 64, 128, 256)),
    *(("cg", 32, 1024 * k) for k in (64, 512, 2048)),
    *(("cg", 128, 2**20 * m) for m in (1, 2, 4, 8, 16, 32, 64, 128, 512)),
    *(("cg", 4096, 2**20 * m) for m in (1, 64, 512)),
    *(("cg", 2**21 + 128, 2**20 * m) for m in (64, 512)),
)
"""Cache operator (``ca`` stands for ``Maker.through_l1``), stride and footprint in bytes. Strides
over 2 MiB take a page a step (the extra 128 bytes keep them from falling into one set)."""


def _size(value: int) -> str:
    for unit, letter in ((2**20, "m"), (2**10, "k")):
        if value >= unit:
            return f"{value // unit}{letter}"
    return str(value)


def chases(make: Maker) -> Iterator[Workload]:
    """Pointer chases; a ring is walked on from launch to launch."""
    l2 = make.board.l2_bytes
    for operator, stride, footprint in CHASES:
        if footprint > make.board.memory_bytes // 4:
            continue
        name = f"chase.{operator}.{_size(stride)}.{_size(footprint)}"
        target = name  # between two levels: a latency of its own
        if operator == "ca" and footprint <= 16 * 1024:
            target = "l1"
        elif operator == "cg" and stride <= 128 and 65536 <= footprint <= l2 // 4:
            target = "l2"
        elif operator == "cg" and stride == 128 and footprint >= 4 * l2:
            target = "dram"
        steps = footprint // stride
        ring = Buffer(
            elements=max(steps, 1) * stride // 8, element="u64", fill="chase", stride_bytes=stride
        )
        loads = make.through_l1 if operator == "ca" else operator
        yield make.latency(
            target, f"chase_{loads}", (ring,), 16, {"l1": 40, "l2": 260}.get(target, 700),
            f"one thread, {steps} places {stride} bytes apart, through ld.global.{loads}",
            name=name, threads=1, results="u64",
        )  # fmt: skip


def throughputs(make: Maker) -> Iterator[Workload]:
    """Throughput against independent chains and warps of an SM."""
    full = make.full_warps
    for chains in (1, 2, 3, 4):
        for warps in sorted({1, 4, 8, 16, full}):
            yield arithmetic(make, "fma.f32", chains, warps)
    yield arithmetic(make, "fma.f32", 8, full)
    for target in ("add.s32", "mad.s32", "shf.b32", "fma.f64", "fma.f16x2", "ex2.f32", "ld.shared"):
        for chains in (1, 2):
            for warps in sorted({4, 8, 16, full}):
                yield arithmetic(make, target, chains, warps)
        yield arithmetic(make, target, 4, full)


def launches(make: Maker) -> Iterator[Workload]:
    """A kernel that does nothing."""
    sms = make.board.sm_count
    for threads in (32, 256, 1024):
        for blocks, name in ((1, "1"), (sms, "sm"), (64 * sms, "64sm")):
            yield make.make(
                f"launch.b{name}.t{threads}", "nothing", (), (blocks, threads), 0,
                "a launch that does nothing", kind="launch", target="launch", each=1,
            )  # fmt: skip


GROWTHS = ((0, 1), (1, 1), (4, 1), (8, 1), (32, 1), (32, 4), (32, 16), (32, 64))
"""Launches over which throughput grows: warps an SM (0: one warp alone), turns of the loop."""


def growths(make: Maker) -> Iterator[Workload]:
    """Latency and throughput of memory over the size of the launch (thesis 3.3.3 and 4.4.5)."""
    board = make.board
    stride = 128
    slots = min(8 * board.l2_bytes, board.memory_bytes // 4) // stride
    for warps in sorted({0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64}):
        if warps > make.full_warps:
            continue
        blocks, threads = shape = make.shape(warps)
        apart = max(1, slots // (blocks * threads // 32)) * stride
        yield make.make(
            f"growth.latency.w{warps}", "chase_cg",
            (
                Buffer(elements=blocks * threads, element="u64", fill="places", stride_bytes=apart),
                Buffer(elements=slots * stride // 8, element="u64", fill="chase",
                       stride_bytes=stride),
            ),
            shape, make.turns(16 * 700),
            f"each warp chases through device memory, {warps} warps an SM",
            kind="growth", target="latency", each=16, results=None,
        )  # fmt: skip
    for target, kernel, loads, size in (
        ("global", "read_cg", 4, 16), ("shared", "ld_shared_i4", EVENTS, 4),
    ):  # fmt: skip
        for warps, turns in GROWTHS:
            blocks, threads = shape = make.shape(warps)
            whole = 16 * blocks * threads
            given: tuple[Given, ...] = (number(1),)
            if target == "global":
                footprint = 1 << (max(4 * whole * turns, 2**16) - 1).bit_length()
                given = stream(footprint, 16 * threads, whole)
            yield make.make(
                f"growth.{target}.w{warps}.n{turns}", kernel, given, shape, turns,
                f"{loads * turns} loads a thread, {warps} warps an SM",
                kind="growth", target=target, each=size * loads, parallelism=loads * turns,
                results="f32" if target == "global" else "u32",
            )  # fmt: skip


def stream(footprint: int, first: int, step: int, low: float = 0.0) -> tuple[Given, ...]:
    """What kernels that walk through ``footprint`` bytes are given: the data, and in bytes where
    the second block begins, how far a step goes, and the mask that turns back to the start."""
    data = Buffer(elements=footprint // 4, low=low)
    return data, *(number(value, "u64") for value in (first, step, footprint - 1))
