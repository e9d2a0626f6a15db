"""From a recording to a GPU's profile: latencies, throughput curves, bandwidths, launch overhead.

A profile known before is the base: what was measured takes the place of its facts. For a GPU
without one the driver's facts are. docs/measuring.md tells how each number follows from the probes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares

from wattcast.features.activity import Activity
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.errors import WattcastError
from wattcast.features.gpus import GpuProfile
from wattcast.features.launch import WARP_SIZE
from wattcast.features.memory import SECTOR_BYTES
from wattcast.measure.device import known_profile
from wattcast.measure.onboard.data import (
    SOURCE,
    TOLD,
    base_data,
    driver_data,
    fact,
    profile_of,
    with_used_sources,
)
from wattcast.measure.onboard.growth import LEAST_POINTS, clock_split, latency_pieces, saturation
from wattcast.measure.recording import Configuration, Recording
from wattcast.measure.workload import Buffer, Probe, executed
from wattcast.models.clocks import ClockPair
from wattcast.models.time.beside import beside
from wattcast.models.time.bottleneck import (
    CONSTANTS,
    GAPS,
    LATENCY,
    combined_seconds,
    dram_bytes,
    resource_seconds,
)

PEAK_SHARE = 0.95
"""Share of the highest throughput that counts as reached (thesis section 3.2, peak warps)."""

PASSING_SHARE = 0.1
"""Share of a stream's sectors that may come from the L2 where it is to tell the L1's rate."""

_EMPTY = "{} empty kernels, back to back"
_WARPS = 8
_SCALES = (1.0, 4.0, 16.0, 64.0)
"""Where searches for a block's cycles start: at these multiples of the constant for other GPUs, in
a block of so many warps. Too low a start lies below the latency, which then hides the blocks."""


@dataclass
class FittedProfile:
    """The facts of a profile as TOML holds them, what was fitted, and what could not be.
    ``fitted`` maps the quantity's name (with its unit) to its value."""

    id: str
    data: dict[str, Any]
    fitted: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def steady_clocks(configurations: Iterable[Configuration]) -> ClockPair | None:
    """The pair most configurations ran at, in MHz; ``None`` where no driver told."""
    pairs = [
        (one.result.core_mhz, one.result.memory_mhz)
        for one in configurations
        if one.result.core_mhz
        and one.result.memory_mhz
        and "clocks_moved" not in one.result.unresolved
    ]
    if not pairs:
        return None
    return ClockPair(*max(sorted(set(pairs)), key=pairs.count))


def fit_profile(recording: Recording, gpu: str | None = None) -> FittedProfile:
    """Fit what the probes tell. Raises DataError where neither the driver nor a profile tells
    what a profile must hold."""
    device = recording.device
    base = known_profile(device, gpu)
    clocks = steady_clocks(recording.configurations)
    data = base_data(base) if base is not None else driver_data(device, clocks)
    fitted = FittedProfile(str(data["id"]), data)
    if clocks is None:
        clocks = ClockPair(
            data["clocks"]["core_mhz"]["value"], data["clocks"]["memory_mhz"]["value"]
        )
        fitted.notes.append("no clocks were recorded: taken to be the profile's")
    fit = _Fit(recording, fitted, clocks)
    fit.clocks_and_idle(known=base is not None)
    fit.launch()
    fit.latencies()
    fit.throughputs()
    fit.bandwidths()
    fit.growths()
    fitted.data = with_used_sources(data)
    return fitted


class _Fit:
    def __init__(self, recording: Recording, fitted: FittedProfile, clocks: ClockPair) -> None:
        self.recording, self.clocks = recording, clocks
        self.data, self.found, self.notes = fitted.data, fitted.fitted, fitted.notes
        self.data["sources"][SOURCE] = (
            f"wattcast onboard, {recording.provenance} on board {recording.device.label}, "
            f"{recording.sessions[0].started[:10]}, driver {recording.device.driver_version}"
        )
        self.sm_count = int(self.data["chip"]["sm_count"]["value"])
        self.start_seconds = CONSTANTS.launch_seconds

    def clocks_and_idle(self, *, known: bool) -> None:
        """The clock that kernels ran at, and idle power."""
        clocks = self.data["clocks"]
        before = float(clocks["core_mhz"]["value"])
        if abs(self.clocks.core_mhz / before - 1) > 0.01 or not known:
            clocks["core_mhz"] = fact(self.clocks.core_mhz, "MHz")
            highest, lowest = clocks.get("max_core_mhz"), clocks.get("base_core_mhz")
            if highest is not None and highest["value"] < self.clocks.core_mhz:
                clocks["max_core_mhz"] = fact(self.clocks.core_mhz, "MHz")
            if lowest is not None and highest is None and lowest["value"] > self.clocks.core_mhz:
                del clocks["base_core_mhz"]
        idle = self.recording.sensor.idle_watts
        if idle is None:
            seen = [one.result.idle_watts for one in self.recording.configurations]
            idle = min((watts for watts in seen if watts is not None), default=None)
        if idle is None:
            self.notes.append("idle power was not measured")
        elif idle < self.data["power"]["tdp_watts"]["value"]:
            self.data["power"]["idle_watts"] = fact(round(idle, 3), "W")
            self.found["idle_watts"] = idle

    def launch(self) -> None:
        """What empty kernels cost: each launch, each of its blocks, each warp of a block.

        The numbers under which the time model takes as long as they did. Also as the thesis has
        it, a line in the threads (section 3.4), through the same launch.
        """
        empty = self._empty()
        if not empty:
            self.notes.append("launch overhead was not measured")
            return
        seconds = np.array([one.seconds for one in empty])
        threads = np.array([one.blocks * one.threads for one in empty]) / seconds
        if len({one.blocks for one in empty}) > 1:
            constant, each, per_warp = _starts(empty)
            self._block_start(each, per_warp, len(empty))
        else:
            constant = float(np.median(seconds))
            self.notes.append("what starting a block costs: not told by the empty kernels")
        self.start_seconds = constant
        slope = max(0.0, float((1 - constant / seconds) @ threads / (threads @ threads)))
        self.data["kernel_launch"] = _section(
            "us",
            _EMPTY.format(len(empty)),
            microseconds_per_thread=slope * 1e6,
            microseconds=round(constant * 1e6, 6),
        )
        self.found["launch_microseconds"] = constant * 1e6

    def _empty(self) -> list[_EmptyKernel]:
        gpu = profile_of(self.data)
        found = []
        for _, one, seconds in self._probes("launch"):
            blocks, threads = prod(one.workload.grid), prod(one.workload.block)
            others: dict[str, float] = {}
            analysis = self._analysed(one, gpu)
            if analysis is not None:
                others = resource_seconds(analysis.activity, gpu, self._pair(one))
                del others["blocks"]
            found.append(_EmptyKernel(blocks, threads, seconds, self._hz(one), others))
        return found

    def _block_start(self, each: float, per_warp: float, kernels: int) -> None:
        if each + per_warp <= 0:
            self.notes.append("starting a block costs nothing that empty kernels show")
            return
        costs = {"cycles": round(each, 4), "cycles_per_warp": round(per_warp, 4)}
        self.data["block_start"] = _section("cycle", _EMPTY.format(kernels), **costs)
        self.found["block_start_cycles"] = each
        self.found["block_start_cycles_per_warp"] = per_warp

    def latencies(self) -> None:
        """Cycles of one operation of a chain: the slope over lengths of the same kernel, launch
        and buffers, else a chain less its launch; over strides and footprints the median."""
        found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for probe, one, seconds in self._probes("latency"):
            cycles = self._busy(seconds) * self._hz(one)
            found[probe.target][_same(one)].append((probe.operations, cycles))
        for target, chains in sorted(found.items()):
            each = float(np.median([_cycles(points) for points in chains.values()]))
            if each <= 0:
                self.notes.append(f"latency of {target}: not above 0, left out")
                continue
            latency = fact(round(each, 4), "cycle")
            if target in TOLD.timing_targets:
                self.data.setdefault("memory_timing", {})[TOLD.timing_targets[target]] = latency
            else:
                self.data.setdefault("latencies", {})[target] = latency
            self.found[f"latency_cycles {target}"] = each
        rows = self.data.get("latencies", {})
        for name, (of, share) in TOLD.latency_rows.items():
            if of in rows and rows[of]["source"] == SOURCE:
                cycles = round(share * rows[of]["value"], 4)
                rows[name] = fact(cycles, "cycle") | {"note": f"{share:g} of {of}"}
        shared = self.data.get("memory_timing", {}).get("shared_latency")
        if rows and shared is not None and shared["source"] == SOURCE:
            rows |= {"ld.shared": shared, "st.shared": shared}

    def growths(self) -> None:
        """What the thesis' and Wang and Chu's models ask of a GPU beyond that: latency over the
        threads launched, throughput over the memory instructions, latency over the clocks."""
        latency: list[tuple[float, float]] = []
        curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
        lanes = profile_of(self.data).lsu_lanes
        for probe, one, seconds in self._probes("growth"):
            threads, busy = prod(one.workload.grid) * prod(one.workload.block), self._busy(seconds)
            if probe.target == "latency":
                latency.append((threads, busy * self._hz(one) / probe.operations))
            else:
                batches = threads / lanes * probe.parallelism
                curves[probe.target].append((batches, probe.operations / busy / 1e6))
        if len(latency) >= LEAST_POINTS:
            pieces = latency_pieces([one[0] for one in latency], [one[1] for one in latency])
            note = f"lines through {len(latency)} launches in which every warp chases"
            listed = [piece.model_dump(exclude_none=True) for piece in pieces]
            self.data["global_memory_latency"] = _section("cycle", note, pieces=listed)
            self.found["loaded_latency_cycles"] = pieces[-1].constant
        for target, points in sorted(curves.items()):
            if len(points) > LEAST_POINTS:
                a, b, c, fit = saturation(*zip(*points, strict=True))
                note = f"{len(points)} launches, R2 {fit:.3f}"
                section = _section("MB/s", note, a=a, b=max(b, 1.0), c=c)
                self.data[f"{target}_memory_throughput"] = section
                self.found[f"{target}_megabytes_per_second"] = a * b
        self._queueing()

    def _queueing(self) -> None:
        """Wang and Chu's Eq. 4 and Table III, from chains and streams at several clocks."""
        chains: dict[ClockPair, list[float]] = defaultdict(list)
        for probe, one, seconds in self._probes("latency"):
            if probe.target == "dram":
                pair = self._pair(one)
                chains[pair].append(self._busy(seconds) * pair.core_hz / probe.operations)
        pairs = sorted(chains)
        split = clock_split(
            [pair.core_mhz for pair in pairs],
            [pair.memory_mhz for pair in pairs],
            [float(np.median(chains[pair])) for pair in pairs],
        ) if pairs else None  # fmt: skip
        if split is None:
            self.notes.append(
                "the clocks' parts of memory latency: not told by one ratio of clocks"
            )
            return
        fastest: dict[float, float] = defaultdict(float)
        for own, activity, one in self._alone("dram"):
            memory = self._pair(one).memory_mhz
            fastest[memory] = max(fastest[memory], dram_bytes(activity) / own)
        # Cycles between two sectors of an SM where both clocks are equal (docs/frequency.md).
        service = {
            memory: self.sm_count * SECTOR_BYTES * memory * 1e6 / rate
            for memory, rate in sorted(fastest.items())
        }
        if not service:
            return
        self.data["dram_queueing"] = {
            "latency_core_cycles": fact(round(split[0], 2), "cycle"),
            "latency_memory_cycles": fact(round(split[1], 2), "cycle"),
            "service_table": {
                "unit": "cycle",
                "source": SOURCE,
                "memory_mhz": list(service),
                "cycles": [round(one, 4) for one in service.values()],
            },
        }
        self.found |= dict(
            zip(("latency_core_cycles", "latency_memory_cycles"), split, strict=True)
        )

    def throughputs(self) -> None:
        """Highest results of an SM a cycle by instruction-level parallelism, and the fewest warps
        that reach it."""
        curves: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for probe, one, seconds in self._probes("throughput"):
            if probe.warps_per_sm is None:
                continue
            rate = probe.operations / (self._busy(seconds) * self._hz(one) * self.sm_count)
            curves[probe.target][probe.parallelism][probe.warps_per_sm] = rate
        for target, by_ilp in sorted(curves.items()):
            levels = [ilp for at, ilp in enumerate(sorted(by_ilp), start=1) if ilp == at]
            if not levels:
                self.notes.append(f"throughput of {target}: not measured without parallelism")
                continue
            peaks = [max(by_ilp[ilp].values()) for ilp in levels]
            fewest = [
                min(warps for warps, rate in by_ilp[ilp].items() if rate >= PEAK_SHARE * peak)
                for ilp, peak in zip(levels, peaks, strict=True)
            ]
            self.data.setdefault("issue_rates", {})[target] = {
                "throughput": [round(peak, 3) for peak in peaks],
                "peak_warps": fewest,
                "unit": "thread/cycle",
                "source": SOURCE,
            }
            self.found[f"results_per_cycle {target}"] = max(peaks)

    def bandwidths(self) -> None:
        """Rates under which the time model takes as long as the fastest stream did.
        Near caches first: a stream from device memory passes them."""
        self._rate("l1", "l1_bytes_per_clock", per_sm=True)
        self._rate("l2", "l2_bytes_per_clock", per_sm=False)
        self._streaming()

    def _rate(self, target: str, name: str, *, per_sm: bool) -> None:
        rates = []
        for own, activity, one in self._alone(target):
            moved = activity.l2_sectors
            if target == "l1":
                moved = activity.global_load_sectors + activity.global_store_sectors
                if activity.l2_sectors > PASSING_SHARE * moved:
                    continue  # an L1 too small or none for loads: the L2 answers
            clocks = own * self._hz(one) * (self.sm_count if per_sm else 1)
            rates.append(moved * SECTOR_BYTES / clocks)
        if rates:
            best = round(max(rates), 2)
            self.data.setdefault("memory_timing", {})[name] = fact(best, "byte/cycle")
            self.found[name] = best
        else:
            self.notes.append(f"bandwidth of {target}: not measured")

    def _streaming(self) -> None:
        peak = float(self.data["memory"]["bandwidth_bytes_per_second"]["value"])
        rates = [dram_bytes(activity) / own for own, activity, _ in self._alone("dram")]
        if not rates:
            self.notes.append("bandwidth of device memory: not measured")
            return
        share = max(rates) / peak
        if share > 1:
            self.notes.append(f"streams reached {share:.3f} of the peak: taken as 1")
        self.data["memory"]["streaming_share"] = fact(round(min(1.0, share), 4), "share")
        self.found["streaming_share"] = min(1.0, share)

    def _alone(self, target: str) -> list[tuple[float, Activity, Configuration]]:
        """Seconds the resource needs alone in each stream, so that with all others combined the
        model takes the time measured (``wattcast.models.time.bottleneck.combined_seconds``)."""
        gpu = profile_of(self.data)
        found = []
        for probe, one, seconds in self._probes("bandwidth"):
            analysis = self._analysed(one, gpu) if probe.target == target else None
            if analysis is not None:
                more, pair = beside(analysis.extras), self._pair(one)
                resources = resource_seconds(analysis.activity, gpu, pair, more=more)
                own = _own_seconds(resources, target, self._busy(seconds))
                found.append((own, analysis.activity, one))
        return found

    def _analysed(self, one: Configuration, gpu: GpuProfile) -> KernelAnalysis | None:
        """What a configuration executes, if its code is known."""
        workload = self.recording.workload(one)
        try:
            return None if workload is None else executed(workload, gpu, one.pattern)
        except WattcastError as error:
            self.notes.append(f"{one.key}: not analysed: {error}")
            return None

    def _probes(self, kind: str) -> list[tuple[Probe, Configuration, float]]:
        return [
            (one.workload.probe, one, one.result.time_seconds)
            for one in self.recording.configurations
            if one.workload.probe is not None
            and one.workload.kind == kind
            and one.result.time_seconds is not None
        ]

    def _busy(self, seconds: float) -> float:
        """Seconds without what starting the launch costs."""
        return max(seconds - self.start_seconds, 0.02 * seconds)

    def _pair(self, one: Configuration) -> ClockPair:
        result = one.result
        return ClockPair(
            result.core_mhz or self.clocks.core_mhz, result.memory_mhz or self.clocks.memory_mhz
        )

    def _hz(self, one: Configuration) -> float:
        return self._pair(one).core_hz


def _section(unit: str, note: str, **values: Any) -> dict[str, Any]:
    return {"unit": unit, "source": SOURCE, "note": note, **values}


class _EmptyKernel(NamedTuple):
    """A launch that does nothing: what it took, and would need beside starting its blocks."""

    blocks: int
    threads: int
    seconds: float
    hz: float
    others: Mapping[str, float]

    def predicted(self, constant: float, cycles: float, cycles_per_warp: float) -> float:
        each = cycles + cycles_per_warp * ceil(self.threads / WARP_SIZE)
        return constant + combined_seconds({**self.others, "blocks": self.blocks * each / self.hz})


def _starts(empty: Sequence[_EmptyKernel]) -> tuple[float, float, float]:
    """Seconds of a launch, cycles of a block, cycles of a warp: least squares of the share that
    the time model is off."""
    shortest = min(one.seconds for one in empty)

    def off(scaled: NDArray[np.float64]) -> list[float]:
        found = (float(scaled[0] * shortest), float(scaled[1]), float(scaled[2]))
        return [one.predicted(*found) / one.seconds - 1 for one in empty]

    searches = [
        least_squares(
            off,
            (1.0, CONSTANTS.block_cycles * scale, CONSTANTS.block_cycles / _WARPS * scale),
            bounds=([1e-3, 0.0, 0.0], np.inf),
        )
        for scale in _SCALES
    ]
    found = min(searches, key=lambda one: float(one.cost)).x
    return float(found[0] * shortest), float(found[1]), float(found[2])


def _same(one: Configuration) -> str:
    """Equal for chains that differ in their length alone."""
    workload = one.workload
    buffers = [argument for argument in workload.arguments if isinstance(argument, Buffer)]
    return repr((workload.family, workload.grid, workload.block, buffers))


def _cycles(points: list[tuple[float, float]]) -> float:
    """Cycles an operation from (operations, cycles) of chains."""
    operations, cycles = np.array(points).T
    if len(set(operations)) > 1:
        return float(np.polyfit(operations, cycles, 1)[0])
    return float(np.median(cycles / operations))


def _own_seconds(resources: Mapping[str, float], name: str, busy: float) -> float:
    def beyond(own: float) -> float:
        return combined_seconds({**resources, LATENCY: 0.0, GAPS: 0.0, name: own}) - busy

    # Where others explain more of the time, the stream did not bound it.
    least = busy / 2
    return least if beyond(least) >= 0 else float(brentq(beyond, least, busy))
