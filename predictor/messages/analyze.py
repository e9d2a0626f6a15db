"""Body and answer of ``POST /analyze``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from wattcast.predictor import messages as shared
from wattcast.predictor import reports


class AnalyzeRequest(shared.KernelRequest, shared.Asks["AnalyzeAnswer"]):
    """Body of ``POST /analyze``."""

    model_config = shared.examples("AnalyzeRequest")

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""


class AnalyzedArgument(shared.KernelParameter):
    """A parameter of the kernel and what the request says of it."""

    given: int | float | dict[str, int | float | str | None] | None = None
    """Null if not given; the warnings say what was assumed."""

    def __str__(self) -> str:
        given = "not given"
        if isinstance(self.given, dict):
            elements = self.given["elements"]
            count = "" if elements is None else f"{elements:,} elements, "
            given = f"{count}{self.given['values']}"
        elif self.given is not None:
            given = f"{self.given:,}" if isinstance(self.given, int) else f"{self.given:g}"
        return f"{self.position} {self.c_name or self.ptx_name} ({self.type}) = {given}"


class AnalyzedLaunch(shared.Answer):
    """The launch, and what follows from it."""

    grid: list[int]
    """Blocks along x, y, z."""
    block: list[int]
    """Threads of a block along x, y, z."""
    blocks: int
    threads: int
    warps_per_block: int
    dynamic_shared_bytes: int
    """Per block."""
    static_shared_bytes: int
    """Per block."""
    arguments: list[AnalyzedArgument]


class AnalyzedOccupancy(shared.Occupancy):
    """Occupancy with every limit, and the rounds in which the grid passes through the GPU."""

    limits: dict[str, int]
    """Blocks per SM that each limiter alone allows."""
    waves: float


class ObservedTrips(shared.Answer):
    """What the executed analysis saw of a loop: executions of its header per entry."""

    mean: float
    lowest: int
    highest: int
    entries: float
    """Times that a thread enters the loop, over the whole launch."""
    extrapolated: bool
    """Iterations that repeat or were cut off."""


class AnalyzedLoop(shared.LoopTrips):
    """One natural loop."""

    depth: int
    """1 for an outermost loop."""
    observed: ObservedTrips | None = None
    """Null if the loop was not executed."""


class AnalyzedAccess(shared.Answer):
    """One memory instruction: how its warps reach memory."""

    function: str
    position: int
    """Index of the instruction in its function."""
    line: int
    """Line in the PTX."""
    source_line: int | None = None
    """Line in the CUDA source, if the PTX has it."""
    opcode: str
    space: str
    is_load: bool
    is_store: bool
    requests: float
    """Warp requests of the whole launch."""
    sectors_per_request: float | None = None
    """32-byte sectors; null: not global."""
    transactions_per_request: float | None = None
    """Shared memory passes, 1 is free of bank conflicts; null: not shared."""
    stride_bytes: int | None = None
    """Between neighbouring lanes; null: not one."""
    affine: bool | None = None
    """Whether the address is known exactly."""
    address: str | None = None
    """The address, for people."""


class Quantity(shared.Answer):
    """One quantity of ``activity1``, for the whole launch."""

    name: str
    value: float
    unit: str
    description: str


class AnalyzedLine(shared.Answer):
    """What one source line executes (a PTX line where there is no line information)."""

    file: str | None = None
    """Null: the line is one of the PTX."""
    line: int
    warp_instructions_ptx: float
    warp_instructions_sass: float
    """After expansion to machine code."""
    active_lane_fraction: float
    global_requests: float
    global_sectors: float
    shared_requests: float
    shared_transactions: float


class AnalyzedBlock(shared.Answer):
    """A basic block of the kernel and its chain of dependent instructions."""

    block: int
    label: str | None = None
    line: int
    """PTX line of its first instruction."""
    instructions: int
    longest_chain: int
    """Instructions on the longest path of dependences."""
    ilp: float
    """Instructions over the longest chain; 1: nothing is parallel."""


class Sampling(shared.Answer):
    """Which part of the launch was executed, and how sure that makes of the whole."""

    sampled_blocks: int
    launch_blocks: int
    relative_standard_error: float
    """Of the launch's warp executions."""
    completed: bool
    """Every sampled block ran to its end."""
    effort: int
    """Work executed, in instructions times lanes."""


EXAMPLE: dict[str, Any] = json.loads(
    Path(__file__).with_name("analyze_example.json").read_text(encoding="utf-8")
)
"""What the service answers to the first example of ``AnalyzeRequest``; lists show one row."""


class AnalyzeAnswer(shared.Reported):
    """Answer of ``POST /analyze``: counts are totals of the launch."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    gpu: str
    kernel: shared.KernelName
    compiled: shared.Compiled | None = None
    """Null if the request had PTX."""
    launch: AnalyzedLaunch
    how: Literal["executed", "symbolic"]
    """Where the activity comes from."""
    occupancy: AnalyzedOccupancy
    registers: shared.Registers
    loops: list[AnalyzedLoop]
    mix: dict[str, float]
    """Warp instructions by opcode class, largest first."""
    blocks: list[AnalyzedBlock]
    """Basic blocks in text order."""
    accesses: list[AnalyzedAccess]
    activity: list[Quantity]
    """The quantities of schema `activity1`."""
    lines: list[AnalyzedLine]
    """The most machine instructions first."""
    sampling: Sampling | None = None
    """Null if nothing was executed."""
    needs: list[shared.Need] = Field(default_factory=list)
    """Arguments to give first, the most important one first."""
    coverage: shared.Coverage
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Occupancy, loops, accesses, mix, activity and source lines; the first of each."""
        launch, occupancy = self.launch, self.occupancy
        grid, block = (" x ".join(map(str, sizes)) for sizes in (launch.grid, launch.block))
        limits = ", ".join(f"{name} {blocks}" for name, blocks in occupancy.limits.items())
        static, dynamic = launch.static_shared_bytes, launch.dynamic_shared_bytes
        shared_bytes = f"{static:,} bytes static, {dynamic:,} bytes dynamic per block"
        blocks: list[reports.Block] = [reports.Title(self.kernel.demangled, f"on {self.gpu}")]
        if (made := self.compiled) is not None:
            target = f"{made.target // 10}.{made.target % 10}"
            blocks.append(
                reports.Line(f"compiled by {made.compiler} for compute capability {target}")
            )
        blocks += [
            reports.Line(
                f"grid {grid} of blocks {block}: {launch.blocks:,} blocks, "
                f"{launch.threads:,} threads"
            ),
            *(reports.Line(f"  {argument}") for argument in launch.arguments),
            reports.Line(
                f"occupancy {occupancy.occupancy:.0%}, limited by {occupancy.limiter} "
                f"(blocks per SM: {limits}); {occupancy.waves:g} waves"
            ),
            reports.Line(f"{self.registers}; shared memory {shared_bytes}"),
            _section("loops", self.loops, LOOP),
            _section("memory accesses", self.accesses, ACCESS),
        ]
        total = sum(self.mix.values())
        mix = [
            reports.Column("class", lambda row: row[0]),
            reports.Column("warp instructions", lambda row: reports.cell_of(row[1])),
            reports.Column("share", lambda row: f"{row[1] / total:.1%}"),
        ]
        blocks += [
            reports.Table(mix, list(self.mix.items()), "instruction mix", MOST_SHOWN),
            _section("source lines", self.lines, SOURCE_LINE),
            _section(f"activity, {self.how}", self.activity, QUANTITY, most=100),
        ]
        if (sampling := self.sampling) is not None:
            cut = "" if sampling.completed else ", cut short by the budget"
            blocks.append(
                reports.Line(
                    f"{sampling.sampled_blocks} of {sampling.launch_blocks:,} blocks "
                    f"executed{cut}; standard error {sampling.relative_standard_error:.2%}"
                )
            )
        return [*blocks, reports.Warnings(self.warnings)]


MOST_SHOWN = 12
"""Rows of each table that are shown."""
LOOP = {
    name: reports.words(name) for name in ("loop", "line", "source_line", "depth", "trips", "how")
}
ACCESS = {
    **{name: reports.words(name) for name in ("line", "source_line", "opcode", "requests")},
    "sectors_per_request": "sectors/request",
    "transactions_per_request": "passes/request",
    "stride_bytes": "stride",
    "address": "address",
}
SOURCE_LINE = {
    "line": "line",
    "warp_instructions_sass": "machine instructions",
    "active_lane_fraction": "active lanes",
    "global_sectors": "global sectors",
    "shared_transactions": "shared passes",
}
QUANTITY = {"name": "quantity", "value": "value", "unit": "unit"}


def _section(
    title: str, rows: Sequence[Any], columns: Mapping[str, str], most: int = MOST_SHOWN
) -> reports.Block:
    if not rows:
        return reports.Line(f"{title}: none")
    return reports.Table(
        [reports.word(heading, name) for name, heading in columns.items()], rows, title, most
    )


# Body and answer of ``POST /features``.


class FeaturesRequest(shared.KernelRequest, shared.Asks["FeaturesAnswer"]):
    """Body of ``POST /features``."""

    model_config = shared.examples("FeaturesRequest")

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    schema_id: shared.Name = Field("alavani2023", alias="schema")
    """Feature schema; see GET /schemas."""


class FeatureValue(shared.Answer):
    """One field of a vector; ``value`` null is missing."""

    name: str
    value: float | None
    unit: str
    source: str
    description: str
    model_input: bool


class FeaturesAnswer(shared.Reported):
    """Answer of ``POST /features``: the vector in the schema's order."""

    schema_id: str = Field(alias="schema")
    gpu: str
    kernel: shared.KernelName
    compiled: shared.Compiled | None = None
    """Null if the request had PTX."""
    features: list[FeatureValue]
    occupancy: shared.Occupancy
    registers: shared.Registers
    trip_counts: list[shared.LoopTrips]
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Each feature with its value and unit."""
        columns = [reports.word(name, name) for name in ("name", "value", "unit")]
        return [
            reports.Table(columns, self.features, most=len(self.features)),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each feature."""
        return (feature.data() for feature in self.features)
