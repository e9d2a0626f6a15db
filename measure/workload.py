"""What is measured: one kernel with its launch, its data, and what it is there to tell.

A catalogue is a function from a board to workloads: launches follow the number of SMs and the size
of the caches, so that the same kernels fill any GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from wattcast.features.analysis import DEFAULT_EFFORT, KernelAnalysis, analyse
from wattcast.features.checked import Strict
from wattcast.features.errors import AnalysisError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.+-]*$", max_length=96)]
Role = Literal["micro", "application"]
Element = Literal["u8", "u32", "u64", "f16", "f32", "f64"]
Kind = Literal["latency", "throughput", "bandwidth", "launch", "energy", "growth"]
"""Kinds of probes."""
Pattern = Literal["zeros", "uniform", "random_bits"]
"""What data a configuration fills the varied buffers with: all bits zero; values uniform from low
to high (integers whole); every bit by chance. Toggling bits draw power (docs/measuring.md)."""

ELEMENT_BYTES: Mapping[str, int] = {"u8": 1, "u32": 4, "u64": 8, "f16": 2, "f32": 4, "f64": 8}


class Part(Strict):
    """A part of a recording, or of what is measured."""


class Board(Part):
    """What a catalogue needs to know of the GPU to size its launches."""

    sm_count: int = Field(ge=1)
    compute_capability: tuple[int, int]
    l2_bytes: int = Field(ge=1)
    memory_bytes: int = Field(ge=1)
    max_threads_per_sm: int = Field(ge=32)
    shared_bytes_per_block: int = Field(default=49152, ge=0)
    core_mhz: float = Field(default=1000.0, gt=0)


class Buffer(Part):
    """A pointer argument: device memory of ``elements`` elements.

    ``fill`` is ``varied`` for data whose values may change without changing what the kernel does
    (the configuration's ``Pattern`` fills it), a pattern for data that has to be so, ``index``
    for 0, 1, 2..., ``chase`` for a ring of absolute 64-bit addresses, ``stride_bytes`` apart, in a
    seeded random order that visits each once, and ``places`` for where the warps enter such a ring:
    32 times 0, then 32 times ``stride_bytes``...
    """

    kind: Literal["buffer"] = "buffer"
    elements: int = Field(ge=1)
    element: Element = "f32"
    fill: Literal["varied", "index", "chase", "places"] | Pattern = "varied"
    low: float = 0.0
    high: float = 1.0
    stride_bytes: int | None = Field(default=None, ge=8)

    @model_validator(mode="after")
    def _sound(self) -> Buffer:
        if (self.fill in ("chase", "places")) != (self.stride_bytes is not None):
            raise ValueError("a chase, its places, and nothing else, need stride_bytes")
        if self.fill in ("chase", "places") and self.element != "u64":
            raise ValueError("a chase is made of u64 addresses")
        return self

    @property
    def bytes(self) -> int:
        """Size in device memory."""
        return self.elements * ELEMENT_BYTES[self.element]


class Scalar(Part):
    """A number passed by value."""

    kind: Literal["scalar"] = "scalar"
    element: Literal["u32", "s32", "u64", "f32", "f64"]
    value: int | float


Given = Annotated[Buffer | Scalar, Field(discriminator="kind")]


class Probe(Part):
    """What a microbenchmark tells of the GPU.

    ``latency``     ``operations`` of ``target`` follow each other in every thread, one by one
    ``throughput``  ``operations`` results of ``target``, all threads together, with
                    ``parallelism`` independent ones a thread and ``warps_per_sm`` warps
    ``bandwidth``   ``operations`` bytes from ``target`` (dram, l2, l1, shared), all threads
    ``launch``      nothing but a launch: ``operations`` threads
    ``energy``      a mix of events, for its power
    ``growth``      how memory grows with the launch: ``operations`` loads of each thread one after
                    the other (target latency), or bytes of the launch (target global, shared)

    ``target`` of a latency is ``<opcode>.<type>`` (fma.f32), l1, l2, dram or shared; of a
    throughput an opcode.
    """

    kind: Kind
    target: Name
    operations: float = Field(ge=0)
    parallelism: int = Field(default=1, ge=1)
    warps_per_sm: int | None = Field(default=None, ge=1)


class Described(Part):
    """One launch of one kernel, but for its code.

    ``family`` groups what resembles each other: the kernel's name for applications (scores
    leave whole families out). ``mix`` is the number of warp instructions the launch executes by
    full PTX opcode (``fma.rn.f32``), all of them; empty where it follows the data.
    ``minimum_capability`` is what the PTX needs.
    """

    id: Name
    role: Role
    family: Name
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int = Field(default=0, ge=0)
    arguments: tuple[Given, ...] = ()
    mix: dict[str, float] = Field(default_factory=dict)
    probe: Probe | None = None
    minimum_capability: tuple[int, int] = (5, 0)
    description: str = ""

    @property
    def kind(self) -> str | None:
        """The kind of its probe; ``None`` for an application."""
        return None if self.probe is None else self.probe.kind

    @property
    def timed_only(self) -> bool:
        """Whether its power is not asked for."""
        return self.kind in ("latency", "throughput", "launch", "growth")

    @property
    def varied(self) -> bool:
        """Whether data patterns make a difference to any buffer."""
        return any(isinstance(a, Buffer) and a.fill == "varied" for a in self.arguments)

    @property
    def buffer_bytes(self) -> int:
        """Device memory of all arguments."""
        return sum(a.bytes for a in self.arguments if isinstance(a, Buffer))

    def launch(self, pattern: Pattern = "uniform") -> Launch:
        """The launch as the analysis takes it, with what it may know of the data."""
        return Launch(
            self.grid,
            self.block,
            self.dynamic_shared_bytes,
            {str(at): _hint(one, pattern) for at, one in enumerate(self.arguments)},
        )


class Workload(Described):
    """One launch of one kernel, with the module that holds it."""

    ptx: str = Field(repr=False)

    @property
    def ptx_sha256(self) -> str:
        """Name of the PTX in a recording."""
        return hashlib.sha256(self.ptx.encode()).hexdigest()

    @property
    def described(self) -> Described:
        """All but the code."""
        return Described.model_validate(self.model_dump(exclude={"ptx"}))


def _hint(argument: Buffer | Scalar, pattern: Pattern) -> PointerHint | int | float:
    if isinstance(argument, Scalar):
        return argument.value
    fill = pattern if argument.fill == "varied" else argument.fill
    values = {"zeros": "zeros", "index": "index", "places": "zeros"}.get(fill, "uniform")
    return PointerHint(argument.elements, values, argument.low, argument.high)


EFFORT = 600 * DEFAULT_EFFORT
"""Far more than a workload of ours takes."""


def executed(workload: Workload, gpu: GpuProfile, pattern: Pattern = "uniform") -> KernelAnalysis:
    """Analysis of one launch. Raises PtxError, KernelError, LaunchError, and AnalysisError where
    the kernel could not be run to its end."""
    analysis = analyse(
        _module(workload.ptx),
        workload.kernel,
        workload.launch(pattern),
        gpu,
        analysis="executed",
        effort=EFFORT,
    )
    for one in analysis.activity_diagnostics:
        if one.code == "execution_cut_short":
            raise AnalysisError(one.detail, analysis="executed")
    return analysis


@lru_cache(maxsize=256)
def _module(ptx: str) -> Module:
    return read_module(ptx)
