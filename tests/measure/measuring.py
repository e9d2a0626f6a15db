"""Small kernels of known purpose, and a simulated board to measure them on.

python -m tests.measure.measuring RECORDING.jsonl     # what test_onboard.py onboards
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path

from tests.measure.simulated import Faults, SimulatedGpu, SimulatedRunner, Truth
from tests.measure.simulated_nvml import SimulatedNvml
from wattcast.features.gpus import load_gpu
from wattcast.features.gpus.facts import Fact
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.gpus.sections import BlockStart, LaunchOverhead
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module
from wattcast.measure.nvml import Nvml
from wattcast.measure.protocol import Settings
from wattcast.measure.run import Campaign, Machine, plan
from wattcast.measure.workload import Board, Buffer, Probe, Role, Workload

BODY = {
    "fma": "fma.rn.f32 %f{0}, %f{0}, %f8, %f9;",
    "alu": "xor.b32 %r{0}, %r{0}, %r8;",
    "fp64": "fma.rn.f64 %d{0}, %d{0}, %d4, %d5;",
    "sfu": "ex2.approx.ftz.f32 %f{0}, %f{0};",
    "fp16": "fma.rn.f16x2 %r{0}, %r{0}, %r8, %r9;",
    "tensor": (
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {{%f0, %f1, %f2, %f3, %f4, %f5, %f6, "
        "%f7}}, {{%r{0}, %r8}}, {{%r8, %r9}}, {{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}};"
    ),
    "mov": "bar.warp.sync -1;",
    "shared": "ld.shared.f32 %f{0}, [%rs];",
    "l2": "ld.global.cg.f32 %f{0}, [%rd2+{1}];",
    "stream": "ld.global.f32 %f{0}, [%rd2+{1}];",
}
"""One instruction of each unit; ``{0}`` is one of four registers, ``{1}`` a byte offset."""

STRIDE = 4 * 256 * 5120
TEMPLATE = (Path(__file__).parents[1] / "fixtures" / "ptx" / "measured_loop.txt").read_text("utf-8")

NOTHING = """\
.version 7.0
.target sm_70
.address_size 64
.visible .entry k()
{
 ret;
}
"""


def board_of(gpu_id: str) -> Board:
    """What the catalogue asks of a board, from its profile."""
    gpu = load_gpu(gpu_id)
    major, minor = gpu.compute_capability.split(".")
    return Board(
        sm_count=gpu.sm_count,
        compute_capability=(int(major), int(minor)),
        l2_bytes=gpu.l2_bytes,
        memory_bytes=gpu.memory_bytes or 2**33,
        max_threads_per_sm=gpu.max_threads_per_sm,
        core_mhz=gpu.core_mhz,
    )


@lru_cache(maxsize=16)
def module(ptx: str) -> Module:
    """A module of the catalogue, read once."""
    return read_module(ptx)


def ptx(body: Sequence[str], trips: int, *, advance: int = 0, store: bool = True) -> str:
    """A module whose kernel ``k`` runs ``body`` (keys of ``BODY``) ``trips`` times a thread.

    ``advance`` moves the global pointer on by so many bytes with each turn.
    """
    lines = [BODY[name].format(at % 4, (at % 4) * STRIDE) for at, name in enumerate(body)]
    loop = "\n ".join(lines)
    step = f"add.s64 %rd2, %rd2, {advance};" if advance else ""
    end = "st.global.f32 [%rd3], %f0;" if store else ""
    return TEMPLATE.format(loop=loop, step=step, trips=trips, end=end)


def workload(
    name: str,
    body: Sequence[str],
    *,
    role: Role = "micro",
    family: str | None = None,
    trips: int = 16,
    blocks: int = 5120,
    threads: int = 256,
    probe: Probe | None = None,
    advance: int = 0,
    store: bool = True,
) -> Workload:
    """A kernel of ``body``; streams read 4 x trips elements a thread."""
    return Workload(
        id=name,
        role=role,
        family=family or name,
        kernel="k",
        ptx=ptx(body, trips, advance=advance, store=store),
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        arguments=(
            Buffer(elements=4 * 256 * 5120 * 4),
            Buffer(elements=256 * 5120, fill="zeros"),
        ),
        probe=probe,
    )


def energy(name: str, body: Sequence[str], **given: int) -> Workload:
    """A microbenchmark for the energy of its events."""
    probe = Probe(kind="energy", target=name, operations=0)
    return workload(f"energy-{name}", body, probe=probe, **given)


def energies() -> list[Workload]:
    """Units alone and in pairs."""
    return [
        energy("fma", ["fma"] * 32),
        energy("alu", ["alu"] * 32),
        energy("fp64", ["fp64"] * 16),
        energy("sfu", ["sfu"] * 16),
        energy("fp16", ["fp16"] * 32),
        energy("tensor", ["tensor"] * 8),
        energy("shared", ["shared"] * 32),
        energy("tight", ["alu"], trips=128),
        energy("branch", ["mov"] * 32),
        energy("stream", ["stream"] * 4, trips=4, advance=4 * STRIDE),
        energy("reread", ["l2"] * 4, trips=16, blocks=1024),
        energy("fma-sfu", ["fma", "fma", "fma", "sfu"] * 6),
        energy("fma-alu", ["fma", "alu"] * 16),
        energy("stream-fma", (["stream"] + ["fma"] * 8) * 2, trips=4, advance=4 * STRIDE),
        energy("shared-alu", ["shared", "alu", "alu"] * 8),
    ]


def probes() -> list[Workload]:
    """Latencies, throughput curves, bandwidths and launches."""
    found = []
    for target in ("fma.f32", "add.s32", "fma.f64", "shared", "l1", "l2", "dram"):
        for operations in (2000, 10000):
            found.append(
                workload(
                    f"latency-{target}-{operations}",
                    ["alu"] * 4,
                    family=f"latency-{target}",
                    blocks=80,
                    threads=32,
                    probe=Probe(kind="latency", target=target, operations=operations),
                )
            )
    for parallelism in (1, 2):
        for warps in (2, 4, 8, 16, 32):
            results = 80 * warps * 32 * parallelism * 4096.0
            found.append(
                workload(
                    f"throughput-fma.f32-{parallelism}-{warps}",
                    ["fma"] * 4,
                    blocks=80,
                    threads=32 * warps,
                    probe=Probe(
                        kind="throughput",
                        target="fma.f32",
                        operations=results,
                        parallelism=parallelism,
                        warps_per_sm=warps,
                    ),
                )
            )
    for blocks, threads in product((80, 1280, 20480), (32, 1024)):
        probe = Probe(kind="launch", target="launch", operations=blocks * threads)
        does_more = workload(
            f"launch-{blocks}-{threads}", [], blocks=blocks, threads=threads, probe=probe
        )
        found.append(does_more.model_copy(update={"ptx": NOTHING, "arguments": ()}))
    return found


def bandwidths() -> list[Workload]:
    """Streams from device memory and from L2."""
    size = 5120 * 256 * 4 * 4.0
    return [
        workload(
            "bandwidth-dram",
            ["stream"] * 4,
            trips=4,
            advance=4 * STRIDE,
            probe=Probe(kind="bandwidth", target="dram", operations=4 * size),
        ),
        workload(
            "bandwidth-l2",
            ["l2"] * 4,
            blocks=1280,
            probe=Probe(kind="bandwidth", target="l2", operations=1280 * 256 * 4 * 4 * 16.0),
        ),
    ]


def applications() -> list[Workload]:
    """Mixes no microbenchmark has, two sizes each."""
    mixes: dict[str, tuple[list[str], dict[str, int]]] = {
        "gemm": (["shared", "fma", "fma", "fma"] * 8, {}),
        "stencil": ((["stream"] * 2 + ["fma"] * 10 + ["alu"] * 4), {"trips": 4, "advance": STRIDE}),
        "options": (["sfu", "fma", "fma", "alu"] * 6, {}),
        "nbody": (["fma"] * 20 + ["sfu"] + ["shared"] * 2, {}),
        "hash": (["alu"] * 24 + ["shared"] * 2, {}),
        "physics": (["fp64"] * 8 + ["alu"] * 8, {}),
        "attention": (["tensor"] * 4 + ["fp16"] * 8 + ["sfu"] * 2, {}),
        "triad": (["stream", "fma"] * 4, {"trips": 4, "advance": 4 * STRIDE}),
    }
    return [
        workload(
            f"{name}-{blocks}",
            body,
            role="application",
            family=name,
            blocks=blocks,
            **given,  # type: ignore[arg-type]
        )
        for name, (body, given) in mixes.items()
        for blocks in (2560, 5120)
    ]


def catalogue(board: Board) -> list[Workload]:
    """All of them."""
    return probes() + bandwidths() + energies() + applications()


def true_profile() -> GpuProfile:
    """A Tesla V100 whose rates are not those of its datasheet."""
    gpu = load_gpu("tesla-v100")
    timing = gpu.memory_timing.model_copy(
        update={"l2_bytes_per_clock": Fact(value=2300.0, unit="byte/cycle", source="truth")}
    )
    memory = gpu.memory.model_copy(
        update={"streaming_share": Fact(value=0.83, unit="share", source="truth")}
    )
    launch = LaunchOverhead(unit="us", source="truth", microseconds_per_thread=0, microseconds=3.1)
    starts = BlockStart(unit="cycle", source="truth", cycles=3.3, cycles_per_warp=0.4)
    return gpu.model_copy(
        update={
            "memory_timing": timing,
            "memory": memory,
            "kernel_launch": launch,
            "block_start": starts,
        }
    )


def board(faults: Faults | None = None, **truth: object) -> SimulatedGpu:
    """A simulated board; keywords change its truth."""
    return SimulatedGpu(Truth(true_profile(), **truth), faults)  # type: ignore[arg-type]


NO_COUNTER = Faults(not_supported=frozenset({"DeviceGetTotalEnergyConsumption"}))
"""A driver without the energy counter: power by samples alone."""


def campaign(
    gpu: SimulatedGpu, workloads: Sequence[Workload], settings: Settings, label: str = ""
) -> Campaign:
    """Workloads on a simulated board; ``label`` tells clocks that are held apart."""
    runner, module = parts(gpu)
    nvml = Nvml(module)
    planned, _ = plan(workloads, (7, 0), 2**34, label=label)
    return Campaign(
        Machine(runner, nvml, gpu, "simulated"),
        nvml.sensor(gpu, runner.pci_bus()),
        runner.device(),
        tuple(planned),
        settings=settings,
    )


def record(
    gpu: SimulatedGpu, path: Path, workloads: Sequence[Workload], label: str = ""
) -> SimulatedRunner:
    """Measure workloads into a recording."""
    campaign(gpu, workloads, Settings(poll_seconds=0.02), label).run(path)
    return SimulatedRunner(gpu)


def parts(gpu: SimulatedGpu) -> tuple[SimulatedRunner, SimulatedNvml]:
    """Driver and NVML of a board."""
    return SimulatedRunner(gpu), SimulatedNvml(gpu)


if __name__ == "__main__":
    simulated = board(NO_COUNTER)
    record(simulated, Path(sys.argv[1]), catalogue(SimulatedRunner(simulated).device().board))
