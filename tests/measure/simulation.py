"""Onboarding of a simulated GPU with the whole catalogue: what was found out, beside the truth.

    python -m tests.measure.simulation [FOLDER] [--gpu ID] [--micro] [--minutes N]

Measures as ``wattcast measure --applications`` does and fits as ``wattcast onboard --replay`` does,
on a board whose every number is known, and prints one table. The exit code is 1 where a parameter
is more than 10 % or an unseen kernel's prediction more than 6 % off on average, or where the
catalogue is planned to take more than 15 minutes. The recording stays in FOLDER: run again, it
goes on. Energies, latencies and rates below are made up; what simulation and models share, and so
cannot be proven here, docs/measuring.md tells.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from types import MappingProxyType

from studies.card_tables import table
from tests.measure.simulated import Faults, SimulatedGpu, SimulatedRunner, Truth
from tests.measure.simulated_nvml import SimulatedNvml
from wattcast.features.activity.memory import GLOBAL_L1_SINCE
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.gpus.facts import Fact
from wattcast.features.gpus.sections import BlockStart, LaunchOverhead
from wattcast.measure.nvml import Nvml
from wattcast.measure.onboard.run import Onboarded, onboard
from wattcast.measure.protocol import Settings
from wattcast.measure.recording import Recording, read_recording
from wattcast.measure.run import Campaign, Machine, Request, prepare
from wattcast.models.time.beside import DEPENDENT_CYCLES
from wattcast.models.time.bottleneck import L1_BYTES_PER_CLOCK

PARAMETER_PERCENT = 10.0
PREDICTION_PERCENT = 6.0
PLANNED_MINUTES = 15.0
POLL_SECONDS = 0.02
"""A fifth of the sensor's period, as the protocol's 5 ms are of a fast one; 4 times as quick."""

WORST = 6
"""Kernels named whose predictions are furthest off."""

PICOJOULES: Mapping[str, float] = MappingProxyType(
    {
        "issue": 130.0,
        "fma": 4.1,
        "fp16": 2.6,
        "tensor": 0.35,
        "alu": 3.2,
        "fp64": 11.0,
        "sfu": 12.0,
        "load_store": 5.5,
        "l2": 520.0,
        "texture": 20.0,
        "dram": 31.0,
    }
)
"""Made up; of the size that a full unit may draw of a board of 700 W."""

LATENCIES: Mapping[str, float] = MappingProxyType(
    {
        "fma.f32": 4.2,
        "add.f32": 4.3,
        "mul.f32": 4.4,
        "fma.f64": 8.4,
        "add.s32": 4.6,
        "ex2.f32": 17.3,
        "shared": 31.0,
        "l1": 36.5,
        "l2": 265.0,
        "dram": 655.0,
    }
)

RESULTS: Mapping[str, float] = MappingProxyType(
    {"fma.f32": 121.0, "add.s32": 61.0, "fma.f64": 59.0, "ex2.f32": 15.1}
)
"""Results an SM and cycle of throughput probes."""

NO_COUNTER = Faults(not_supported=frozenset({"DeviceGetTotalEnergyConsumption"}))
"""The harder case: power by samples alone."""


def truth(gpu: str, *, blocks_after: bool = False) -> Truth:
    """A board of a profile's size whose rates are none of the profile's."""
    base = load_gpu(gpu)
    # From 7.0 on the time model serves loads by banks and lines, at L1's full rate.
    rated = base.compute_capability.partition(".")[0] in DEPENDENT_CYCLES
    near = 97.0 if rated else float(L1_BYTES_PER_CLOCK)
    timing = {
        "l1_latency": Fact(value=LATENCIES["l1"], unit="cycle", source="truth"),
        "l2_latency": Fact(value=LATENCIES["l2"], unit="cycle", source="truth"),
        "dram_latency": Fact(value=LATENCIES["dram"], unit="cycle", source="truth"),
        "shared_latency": Fact(value=LATENCIES["shared"], unit="cycle", source="truth"),
        "l1_bytes_per_clock": Fact(value=near, unit="byte/cycle", source="truth"),
        "l2_bytes_per_clock": Fact(value=27.0 * base.sm_count, unit="byte/cycle", source="truth"),
    }
    share = Fact(value=0.81, unit="share", source="truth")
    launch = LaunchOverhead(unit="us", source="truth", microseconds=3.1, microseconds_per_thread=0)
    starts = BlockStart(unit="cycle", source="truth", cycles=2.4, cycles_per_warp=0.3)
    profile = base.model_copy(
        update={
            "memory_timing": base.memory_timing.model_copy(update=timing),
            "memory": base.memory.model_copy(update={"streaming_share": share}),
            "kernel_launch": launch,
            "block_start": starts,
        }
    )
    return Truth(
        profile,
        idle_watts=0.11 * base.tdp_watts,
        active_watts=0.09 * base.tdp_watts,
        picojoules=PICOJOULES,
        latency_cycles=LATENCIES,
        results_per_cycle=RESULTS,
        launch_seconds=launch.microseconds * 1e-6,
        blocks_after=blocks_after,
    )


@dataclass(frozen=True)
class Line:
    """One figure; ``bound_percent`` is what ``error_percent`` must stay within, if anything."""

    name: str
    true: float
    found: float | None
    bound_percent: float | None = PARAMETER_PERCENT

    @property
    def error_percent(self) -> float | None:
        """How far off, over the truth."""
        return None if self.found is None else abs(self.found / self.true - 1) * 100

    @property
    def holds(self) -> bool:
        """Whether it was found, within its bound."""
        if self.bound_percent is None:
            return True
        error = self.error_percent
        return error is not None and error <= self.bound_percent


def simulated(board: SimulatedGpu) -> Machine:
    """The machine of a simulated board."""
    return Machine(SimulatedRunner(board), Nvml(SimulatedNvml(board)), board, "simulated")


def parameters(known: Truth, recording: Recording, made: Onboarded) -> Iterator[Line]:
    """Every number that onboarding is to find out."""
    sensor, gpu, fitted = recording.sensor, made.gpu, made.profile.fitted
    yield Line(
        "sensor: update period, s", known.update_period_seconds, sensor.update_period_seconds
    )
    yield Line("sensor: lag, s", known.lag_seconds, sensor.lag_seconds)
    yield Line("idle, W", known.idle_watts, gpu.idle_watts)
    yield Line("busy beside events, W", known.active_watts, made.picojoules.get("active_watts"))
    for event, picojoules in known.picojoules.items():
        # No workload reads textures, and none works units that the board lacks.
        if event != "texture" and event not in lacking(known.profile):
            unresolved = made.power is not None and event in made.power.unresolved
            yield Line(
                f"energy of {event}, pJ" + (" (told as not resolved)" if unresolved else ""),
                picojoules,
                made.picojoules.get(event),
                None if unresolved else PARAMETER_PERCENT,
            )
    for target, cycles in known.latency_cycles.items():
        near = {
            "l1": gpu.l1_latency_cycles,
            "l2": gpu.l2_latency_cycles,
            "dram": gpu.dram_latency_cycles,
            "shared": gpu.shared_latency_cycles,
        }
        yield Line(f"latency of {target}, cycles", cycles, near.get(target) if target in near
                   else gpu.latency_cycles.get(target))  # fmt: skip
    for target, rate in known.results_per_cycle.items():
        yield Line(
            f"results an SM and cycle, {target}", rate, fitted.get(f"results_per_cycle {target}")
        )
    launch, block, true = gpu.kernel_launch, gpu.block_start, known.profile.block_start
    assert true is not None
    yield Line("launch, us", known.launch_seconds * 1e6, launch.microseconds if launch else None)
    yield Line("a block's start, cycles", true.cycles, block.cycles if block else None)
    yield Line(
        "a warp's of a block", true.cycles_per_warp, block.cycles_per_warp if block else None
    )
    yield from rates(known.profile, gpu)
    yield from growths(known, gpu)


def growths(known: Truth, gpu: GpuProfile) -> Iterator[Line]:
    """What the thesis' models ask for: latency under load, and throughputs at a small and a large
    launch."""
    latency = gpu.global_memory_latency
    threads = gpu.sm_count * gpu.max_threads_per_sm // 2
    loaded = known.latency_cycles["dram"] + known.loaded_cycles_per_thread * threads
    found = None
    if latency is not None:
        piece = next(
            p for p in latency.pieces if p.below_threads is None or threads < p.below_threads
        )
        found = piece.slope * threads + piece.constant
    yield Line("latency of a load with half the threads, cycles", loaded, found)
    for name, curve in (
        ("global", gpu.global_memory_throughput),
        ("shared", gpu.shared_memory_throughput),
    ):
        a, b, c = known.growth[name]
        for n in (0.5 / c, 5 / c):
            yield Line(
                f"{name} memory at {n:.0f} instructions, MB/s",
                a * (b - exp(-c * n)),
                None if curve is None else curve.at(n),
            )


def lacking(profile: GpuProfile) -> set[str]:
    """Events and rates of units that a board does not have; Kepler's L1 caches no global loads."""
    major, minor = (int(part) for part in profile.compute_capability.split("."))
    units = {
        "fp16": profile.fp16_lanes,
        "tensor": profile.tensor_fma_per_clock,
        "l1_bytes_per_clock": (major, minor) >= GLOBAL_L1_SINCE,
    }
    return {name for name, number in units.items() if not number}


def rates(profile: GpuProfile, gpu: GpuProfile) -> Iterator[Line]:
    """Bandwidths and clocks."""
    for name, unit in (
        ("l1_bytes_per_clock", "L1, bytes an SM and cycle"),
        ("l2_bytes_per_clock", "L2, bytes a cycle"),
        ("streaming_share", "device memory, share of the peak"),
        ("core_mhz", "core clock, MHz"),
        ("memory_mhz", "memory clock, MHz"),
    ):
        true = getattr(profile, name)
        assert true is not None
        if name not in lacking(profile):
            yield Line(unit, true, getattr(gpu, name))


def accuracy(made: Onboarded) -> list[tuple[str, float, float]]:
    """What, mean error and that of the median as the prediction, both in percent."""
    found = made.validation
    if found is None:
        return []
    named = [(f"power, {one.protocol}", found.power_scores(one.protocol)) for one in found.power]
    named += [("time", found.time_scores())] if found.timed else []
    return [(name, s["mape_percent"], s["baseline_mape_percent"]) for name, s in named]


def report(campaign: Campaign, recording: Recording, made: Onboarded, board: SimulatedGpu) -> int:
    """Print everything; the number of figures that do not hold."""
    lines = list(parameters(board.truth, recording, made))
    print(
        table(
            ("parameter", "truth", "found", "error"),
            [
                (
                    one.name,
                    f"{one.true:.4g}",
                    "-" if one.found is None else f"{one.found:.4g}",
                    "not found" if one.error_percent is None else f"{one.error_percent:.2f} %",
                )
                for one in lines
            ],
        )
    )
    missed = sum(not one.holds for one in lines)
    scores = accuracy(made)
    on_applications = made.validation is not None and made.validation.on_applications
    what = "application kernels" if on_applications else "families of microbenchmarks left out"
    print(
        "\n"
        + table(
            (f"on {what}", "mean error", "median as prediction"),
            [(name, f"{mine:.2f} %", f"{other:.1f} %") for name, mine, other in scores],
        )
    )
    missed += sum(mine > PREDICTION_PERCENT for _, mine, _ in scores)
    families = made.validation.by_family() if made.validation is not None else []
    for target in ("power", "time"):
        errors = {one["family"]: one[f"{target}_error_percent"] or 0.0 for one in families}
        worst = sorted(errors, key=lambda name: -errors[name])[:WORST]
        told = ", ".join(f"{name} {errors[name]:.1f} %" for name in worst)
        print(f"worst of {len(errors)} by {target}: {told}")
    unresolved = [one for one in recording.configurations if one.result.unresolved]
    timed = [one for one in recording.configurations if one.workload.timed_only]
    widths = [
        one.result.power_ci_watts / one.result.power_watts
        for one in recording.configurations
        if one.result.power_ci_watts is not None and one.result.power_watts
    ]
    print(
        f"configurations: {len(recording.configurations)} of {len(campaign.planned)} measured "
        f"({len(timed)} for their time alone), {len(recording.failures)} failed, "
        f"{len(unresolved)} not resolved; mean interval of a power {fmean(widths):.2%}"
    )
    for one in unresolved:
        print(f"  {one.key}: {', '.join(one.result.unresolved)}")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, measure, onboard, compare."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.measure.simulation",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("folder", nargs="?", type=Path, help="where recording and home are kept")
    parser.add_argument("--gpu", default="h200-sxm5", help="profile that the board has the size of")
    parser.add_argument("--micro", action="store_true", help="no application kernels")
    parser.add_argument("--minutes", type=float, default=inf, help="simulated; as of measure")
    parser.add_argument(
        "--blocks-after", action="store_true", help="blocks start after the work of a launch"
    )
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as fresh:
        folder = given.folder or Path(fresh)
        path = folder / f"simulated-{given.gpu}.jsonl"
        board = SimulatedGpu(truth(given.gpu, blocks_after=given.blocks_after), NO_COUNTER)
        machine = simulated(board)
        settings = Settings(poll_seconds=POLL_SECONDS)
        alone = prepare(machine, Request(), settings)
        request = Request(applications=not given.micro, most_seconds=60 * given.minutes)
        campaign = prepare(machine, request, settings)
        campaign.run(path, _progress)
        print(f"simulated measuring: {board.now() / 60:.1f} minutes", file=sys.stderr)
        made = onboard(path, folder / "home", progress=_progress)
        missed = report(campaign, read_recording(path), made, board)
    minutes = alone.seconds / 60
    print(
        f"planned: {len(alone.planned)} microbenchmarks {minutes:.1f} minutes, all "
        f"{len(campaign.planned)} configurations {campaign.seconds / 60:.1f} minutes"
    )
    missed += minutes > PLANNED_MINUTES
    print("everything holds" if not missed else f"{missed} figures do not hold")
    return 1 if missed else 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
